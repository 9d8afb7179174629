package client

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth"
)

// Status says what runs and what is wrong.
func (c *Client) Status(ctx context.Context) (berth.Status, error) {
	var out berth.Status
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/status", out: &out})
	return out, err
}

// Version says which build the daemon is.
func (c *Client) Version(ctx context.Context) (berth.VersionInfo, error) {
	var out berth.VersionInfo
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/version", out: &out})
	return out, err
}

// Shutdown asks the daemon to stop. It returns when the daemon has taken the
// request, not when it is gone; what the daemon runs goes on.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/shutdown"})
	return err
}

// ReplaceGuest puts a guest of the daemon's build in place of the local one. Its
// sessions go on.
func (c *Client) ReplaceGuest(ctx context.Context) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/guest/replace", timeout: max(c.timeout, killTimeout)})
	return err
}

// Metrics gives the daemon's metrics in the Prometheus text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) { return c.text(ctx, "/metrics") }

// OpenAPI gives the description of the API.
func (c *Client) OpenAPI(ctx context.Context) ([]byte, error) { return c.text(ctx, "/openapi.json") }

func (c *Client) text(ctx context.Context, path string) (data []byte, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: path, answer: func(r *http.Response) error {
		data, err = io.ReadAll(io.LimitReader(r.Body, maxAnswer))
		return err
	}})
	return data, err
}

// SessionPage is one part of a list.
type SessionPage struct {
	Sessions []berth.Session `json:"sessions"`
	Next     string          `json:"next"` // cursor; "" = this was the last page
}

// SessionPage lists one page of sessions, newest first. cursor "" = the first;
// limit 0 = the daemon's.
func (c *Client) SessionPage(ctx context.Context, f berth.SessionFilter, cursor string, limit int) (SessionPage, error) {
	q := url.Values{}
	set := func(key, value string) {
		if value != "" {
			q.Set(key, value)
		}
	}
	set("host", f.Host)
	set("name", f.Name)
	set("parent", f.Parent)
	set("cursor", cursor)
	if len(f.States) > 0 {
		states := make([]string, len(f.States))
		for i, s := range f.States {
			states[i] = string(s)
		}
		set("state", strings.Join(states, ","))
	}
	if limit > 0 {
		set("limit", strconv.Itoa(limit))
	}
	var out SessionPage
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/sessions", query: q, out: &out})
	return out, err
}

// Sessions lists all sessions that pass the filter, newest first.
func (c *Client) Sessions(ctx context.Context, f berth.SessionFilter) ([]berth.Session, error) {
	all := []berth.Session{}
	for cursor := ""; ; {
		page, err := c.SessionPage(ctx, f, cursor, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Sessions...)
		if cursor = page.Next; cursor == "" {
			return all, nil
		}
	}
}

// Session finds a session by id, else by name: the live one of that name, else
// the newest.
func (c *Client) Session(ctx context.Context, ref string) (berth.Session, error) {
	var out berth.Session
	_, err := c.do(ctx, call{method: http.MethodGet, path: sessionPath(ref, ""), out: &out})
	return out, err
}

// Create starts a session. The same key and spec again answers the session
// that is there, with created = false; with "" the client makes a key, so that
// its own second attempt after a broken connection starts nothing twice.
func (c *Client) Create(ctx context.Context, spec berth.SessionSpec, key string) (s berth.Session, created bool, err error) {
	if key == "" {
		key = rand.Text()
	}
	status, err := c.do(ctx, call{
		method: http.MethodPost, path: "/v1/sessions", body: spec, out: &s,
		header: http.Header{"Idempotency-Key": {key}},
	})
	return s, status == http.StatusCreated, err
}

// Remove forgets a session that has ended, with every file of it. force ends
// its program first. ifMatch is a revision, 0 = any; so in the other calls.
func (c *Client) Remove(ctx context.Context, ref string, force bool, ifMatch int64) error {
	q := url.Values{}
	if force {
		q.Set("force", "true")
	}
	_, err := c.do(ctx, call{
		method: http.MethodDelete, path: sessionPath(ref, ""), query: q,
		header: match(ifMatch), timeout: max(c.timeout, killTimeout),
	})
	return err
}

// Resize changes the size of the terminal.
func (c *Client) Resize(ctx context.Context, ref string, size berth.Size, ifMatch int64) (berth.Session, error) {
	var out berth.Session
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: sessionPath(ref, "/resize"),
		body: berth.ResizeRequest{Size: size}, out: &out, header: match(ifMatch),
	})
	return out, err
}

// Signal signals the foreground process group: "SIGINT", "INT" or "2".
func (c *Client) Signal(ctx context.Context, ref, signal string) error {
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: sessionPath(ref, "/signal"), body: berth.SignalRequest{Signal: signal},
	})
	return err
}

// Kill ends the program and returns when it is gone.
func (c *Client) Kill(ctx context.Context, ref string, ifMatch int64) (berth.KillResult, error) {
	var out berth.KillResult
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: sessionPath(ref, "/kill"),
		out: &out, header: match(ifMatch), timeout: max(c.timeout, killTimeout),
	})
	return out, err
}

// Input writes to the program. After a broken connection it is not known
// whether the program got it, and the client does not send it again.
func (c *Client) Input(ctx context.Context, ref string, in berth.InputRequest) error {
	_, err := c.do(ctx, call{method: http.MethodPost, path: sessionPath(ref, "/input"), body: in})
	return err
}

// Screen gives the screen as text; ansi asks for its repaint too.
func (c *Client) Screen(ctx context.Context, ref string, ansi bool) (berth.Screen, error) {
	q := url.Values{}
	if ansi {
		q.Set("ansi", "true")
	}
	var out berth.Screen
	_, err := c.do(ctx, call{method: http.MethodGet, path: sessionPath(ref, "/screen"), query: q, out: &out})
	return out, err
}

// waitSlice is how long one request of a wait stays open. Shorter than what
// proxies and forwarders cut, and long enough to cost nothing.
const waitSlice = 25 * time.Second

// Wait returns the session once its program is not live any more. It connects
// again after any break; the error is that of the context, or a definite one.
func (c *Client) Wait(ctx context.Context, ref string) (berth.Session, error) {
	b := backoff{first: c.pause}
	q := url.Values{"timeout_ms": {strconv.FormatInt(waitSlice.Milliseconds(), 10)}}
	for first := true; ; first = false {
		var out berth.Session
		_, err := c.do(ctx, call{
			method: http.MethodGet, path: sessionPath(ref, "/wait"), query: q, out: &out,
			timeout: waitSlice + c.timeout,
		})
		if err == nil {
			return out, nil
		}
		if ctx.Err() != nil {
			return berth.Session{}, contextError(ctx)
		}
		if errors.Is(err, berth.CodeTimeout) { // the slice is over, the program lives
			b.reset()
			continue
		}
		if !transient(err) || first && errors.Is(err, berth.CodeDaemonNotRunning) {
			return berth.Session{}, err
		}
		if err := b.wait(ctx); err != nil {
			return berth.Session{}, err
		}
	}
}

func sessionPath(ref, rest string) string { return "/v1/sessions/" + url.PathEscape(ref) + rest }

func match(revision int64) http.Header {
	if revision == 0 {
		return nil
	}
	return http.Header{"If-Match": {strconv.Quote(strconv.FormatInt(revision, 10))}}
}
