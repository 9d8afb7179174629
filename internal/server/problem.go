package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"berth"
)

// problem is an error as the API answers it. huma writes it as it is.
type problem struct {
	berth.ProblemDocument
}

func (p *problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *problem) ContentType(string) string { return berth.ProblemType }

// newProblem dresses an error. A context that ended is the caller's doing.
func newProblem(err error) *problem {
	var known *berth.Error
	if !errors.As(err, &known) {
		switch {
		case errors.Is(err, context.Canceled):
			err = berth.Errorf(berth.CodeInterrupted, "the caller went away: %w", err)
		case errors.Is(err, context.DeadlineExceeded):
			err = berth.Errorf(berth.CodeTimeout, "it took longer than was allowed: %w", err)
		}
	}
	return &problem{berth.NewProblem(err)}
}

// writeProblem answers with an error, outside of huma.
func writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := newProblem(err)
	body, merr := json.Marshal(p)
	if merr != nil { // strings and numbers only; cannot be
		body = []byte(`{"code":"internal"}`)
	}
	h := w.Header()
	h.Set("Content-Type", berth.ProblemType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // whoever went away needs no answer
	}
}

// fromHuma gives huma's own complaints our codes. Values are left out: they may
// hold a secret from the body.
func fromHuma(m *huma.ErrorModel) *problem {
	code := berth.CodeInvalidArgument
	switch m.Status {
	case http.StatusRequestEntityTooLarge:
		code = berth.CodeTooLarge
	case http.StatusRequestTimeout:
		code = berth.CodeTimeout
	case http.StatusInternalServerError:
		code = berth.CodeInternal
	}
	var b strings.Builder
	b.WriteString(m.Detail)
	const most = 5 // a client that has more wrong will ask again
	for i, d := range m.Errors {
		if d == nil || i == most {
			break
		}
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep)
		if d.Location != "" {
			b.WriteString(d.Location + ": ")
		}
		b.WriteString(d.Message)
	}
	e := berth.Errorf(code, "%s", b.String())
	if len(m.Errors) > 0 && m.Errors[0] != nil && m.Errors[0].Location != "" {
		e = e.WithFact("location", m.Errors[0].Location)
	}
	return newProblem(e)
}

// humaCtx lets the transformer correct the status that huma is about to write.
type humaCtx struct {
	innerContext
	status int // 0 = huma's
}

type innerContext huma.Context

// Unwrap gives the context that humago knows.
func (c *humaCtx) Unwrap() huma.Context { return c.innerContext }

// SetStatus implements huma.Context.
func (c *humaCtx) SetStatus(code int) {
	if c.status != 0 {
		code = c.status
	}
	c.innerContext.SetStatus(code)
}

// transformErrors replaces huma's error documents by ours. huma has a package
// variable for that; this does without writing to it.
func transformErrors(ctx huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := fromHuma(m)
	if c, ok := ctx.(*humaCtx); ok {
		c.status = p.Status
	}
	return p, nil
}
