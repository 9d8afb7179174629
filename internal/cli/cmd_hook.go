package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
)

// A hook must never hold up the agent that calls it: everything together takes
// at most hookTimeout, and a payload above hookMaxPayload is left out.
const (
	hookTimeout    = 2 * time.Second
	hookMaxPayload = 1 << 20
	hookMaxLine    = 1 << 20 // of the relay; a longer line is dropped there
)

// Variables that a session gives its program.
const (
	envSession = "BERTH_SESSION"
	envSocket  = "BERTH_SOCKET"
)

func newHook(a *app) *cobra.Command {
	var event string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Tell berth of an agent's event, from inside a session",
		Long: `Tell berth of an agent's event, from inside a session. An agent calls it as a
hook, with the event as JSON on standard input (or as the last argument). It
writes nothing, takes two seconds at most and always succeeds: a hook must
never hold up an agent. Outside a session it does nothing.

berth hook print AGENT shows the settings that make an agent call it.`,
		Example: `berth hook print claude
echo '{"hook_event_name":"Stop"}' | berth hook --verbose`,
		Args: cobra.ArbitraryArgs,
		// An agent of another version may give flags that we do not know.
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.hook(cmd.Context(), event, args); err != nil && verbose {
				a.tell("berth hook: %v\n", err)
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exitStatus(berth.ExitDone) // also a bad flag must not fail the agent
	})
	cmd.Flags().StringVar(&event, "event", "", "`NAME` of the event; without it the payload's own is taken")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "say on standard error why nothing was sent")
	cmd.AddCommand(newHookPrint(a))
	return cmd
}

// hookLine is what the relay socket takes, one a line.
type hookLine struct {
	Session string          `json:"session"`
	Event   string          `json:"event"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// hook sends one line. Its error is only for --verbose.
func (a *app) hook(ctx context.Context, event string, args []string) error {
	session, socket := a.env.Getenv(envSession), a.env.Getenv(envSocket)
	if session == "" || socket == "" {
		return errors.New("not inside a session: BERTH_SESSION and BERTH_SOCKET are not set")
	}
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	payload, readErr := a.hookPayload(ctx, args)
	line, err := makeHookLine(session, event, payload)
	if err != nil {
		return errors.Join(readErr, err)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("reach the session's socket: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the line has been written, or has failed
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // a unix socket takes deadlines
	}
	if _, err = conn.Write(line); err != nil {
		return fmt.Errorf("write to the session's socket: %w", err)
	}
	return readErr
}

// hookPayload reads the event: from the last argument where that is an object
// (some agents give it there), else from standard input. A terminal is not
// read: nobody would know what to type.
func (a *app) hookPayload(ctx context.Context, args []string) ([]byte, error) {
	if n := len(args); n > 0 && strings.HasPrefix(strings.TrimSpace(args[n-1]), "{") {
		return []byte(args[n-1]), nil
	}
	if a.env.Stdin == nil || isTerminal(a.env.Stdin) {
		return nil, nil
	}
	type result struct {
		data []byte
		err  error
	}
	read := make(chan result, 1)
	go func() { // ends with its input, or with this process
		data, err := io.ReadAll(io.LimitReader(a.env.Stdin, hookMaxPayload+1))
		read <- result{data, err}
	}()
	// Half of the time is left for the sending, so that an agent which keeps
	// its end open is still heard by name.
	timer := time.NewTimer(hookTimeout / 2)
	defer timer.Stop()
	select {
	case r := <-read:
		if len(r.data) > hookMaxPayload {
			return nil, fmt.Errorf("the payload is larger than %d bytes; it is left out", hookMaxPayload)
		}
		return r.data, r.err
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, errors.New("standard input did not end in time; the payload is left out")
}

// makeHookLine builds the line. What is no JSON goes as a string, and a payload
// that makes the line too long is left out: the event's name is worth more.
func makeHookLine(session, event string, payload []byte) ([]byte, error) {
	payload = bytes.TrimSpace(payload)
	var raw json.RawMessage
	if len(payload) > 0 {
		var compact bytes.Buffer
		if err := json.Compact(&compact, payload); err == nil {
			raw = compact.Bytes()
		} else if raw, err = json.Marshal(string(payload)); err != nil {
			return nil, fmt.Errorf("encode the payload: %w", err)
		}
	}
	if event == "" {
		event = payloadEvent(raw)
	}
	if event == "" {
		return nil, errors.New("the event has no name: give --event, or a payload with hook_event_name or type")
	}
	line, err := encodeJSON(hookLine{session, event, raw})
	if err == nil && len(line)+1 > hookMaxLine {
		line, err = encodeJSON(hookLine{session, event, nil})
	}
	return append(line, '\n'), err
}

// payloadEvent finds the name of the event in the payload.
func payloadEvent(raw json.RawMessage) string {
	var names struct {
		HookEventName string `json:"hook_event_name"`
		Type          string `json:"type"`
		Event         string `json:"event"`
	}
	if json.Unmarshal(raw, &names) != nil {
		return ""
	}
	for _, name := range []string{names.HookEventName, names.Type, names.Event} {
		if name != "" {
			return name
		}
	}
	return ""
}

func newHookPrint(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "print AGENT",
		Short: "Print the settings that make an agent call berth hook",
		Long:  "Print the settings that make an agent (claude, codex, grok) call berth hook, and where they go.",
		Example: `berth hook print claude
berth hook print codex`,
		Args:      exactArgs("AGENT"),
		ValidArgs: []string{"claude", "codex", "grok"},
		RunE:      func(_ *cobra.Command, args []string) error { return a.hookPrint(args[0]) },
	}
}

// hookAnswer is the document of hook print.
type hookAnswer struct {
	V        int    `json:"v"`
	Agent    string `json:"agent"`
	Settings string `json:"settings"` // JSON or TOML, as the agent's file has it
	Place    string `json:"place"`    // where it goes, for a person
}

// hookPrint answers the settings alone, so that they can go into a file; where
// they go is a note.
func (a *app) hookPrint(agent string) error {
	settings, err := berth.HookSettings(agent)
	if err != nil {
		return err
	}
	if a.flags.json {
		return a.answer(hookAnswer{version1, agent, settings, berth.HookPlace(agent)})
	}
	a.note("%s", berth.HookPlace(agent))
	return a.printf("%s", settings)
}
