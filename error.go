package berth

import (
	"context"
	"errors"
	"fmt"
)

// Code names a kind of failure. It is what programs compare: the same code is
// in the store, on the wire, in `--json` and behind errors.Is. Codes are only
// ever added.
type Code string

// Error makes a Code usable as the target of errors.Is.
func (c Code) Error() string { return string(c) }

// Error is a failure with its code, what happened, the facts and the one next
// step. It survives the wire: the client gives back the same Error that the
// server had, without the cause.
type Error struct {
	Code   Code
	Detail string            // what happened, in words, for a person
	Hint   string            // the one next step; "" = the catalogue's
	Facts  map[string]string // typed details for programs; nil = none; never a secret
	Err    error             // the cause on this side of the wire; nil = none
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return string(e.Code)
	}
	return e.Detail
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is this error's code.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// Errorf makes an Error. A %w verb sets the cause as in fmt.Errorf.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Detail: err.Error(), Err: errors.Unwrap(err)}
}

// WithHint sets the next step and returns e.
func (e *Error) WithHint(hint string) *Error {
	e.Hint = hint
	return e
}

// WithFact adds a fact and returns e.
func (e *Error) WithFact(key, value string) *Error {
	if e.Facts == nil {
		e.Facts = map[string]string{}
	}
	e.Facts[key] = value
	return e
}

// AsError gives err as an Error. Anything that has no code is CodeInternal, but
// for a context that ended: a failure that nobody foresaw is never dressed as
// one that somebody did.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		if msg := err.Error(); msg != e.Error() { // keep what was wrapped around it
			c := *e
			c.Detail = msg
			e = &c
		}
	} else {
		e = &Error{Code: codeOf(err), Detail: err.Error(), Err: err}
	}
	if e.Hint == "" {
		if entry, ok := Catalogue(e.Code); ok && entry.Hint != "" {
			c := *e
			c.Hint = entry.Hint
			return &c
		}
	}
	return e
}

// codeOf names a failure that carries no code: the two that every wait can have,
// and everything else.
func codeOf(err error) Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return CodeTimeout
	case errors.Is(err, context.Canceled):
		return CodeInterrupted
	}
	return CodeInternal
}

// ExitCode gives the exit status of a command that failed with err; 0 for nil.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	if entry, ok := Catalogue(AsError(err).Code); ok {
		return entry.Exit
	}
	return ExitFailed
}

// Exit statuses of the command line.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitRefused     = 4
	ExitNeedsPerson = 5
	ExitInterrupted = 130
)
