package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"berth"
)

// Log reads output. See berth.LogChunk for its errors.
func (c *Client) Log(ctx context.Context, ref string, r berth.LogRequest) (chunk berth.LogChunk, err error) {
	_, err = c.do(ctx, call{
		method: http.MethodGet, path: sessionPath(ref, "/log"), query: r.Query(), timeout: r.Wait + c.timeout,
		answer: func(resp *http.Response) error {
			chunk, err = readChunk(resp)
			return err
		},
	})
	return chunk, err
}

// readChunk reads the headers and the body of a log answer.
func readChunk(resp *http.Response) (berth.LogChunk, error) {
	var failed error
	number := func(name string) uint64 {
		n, err := strconv.ParseUint(resp.Header.Get(name), 10, 64)
		if err != nil {
			failed = fmt.Errorf("header %s of a log answer: %w", name, err)
		}
		return n
	}
	chunk := berth.LogChunk{
		Offset:   number(berth.HeaderLogOffset),
		KeptFrom: number(berth.HeaderLogKeptFrom),
		End:      number(berth.HeaderLogEnd),
		Ended:    resp.Header.Get(berth.HeaderLogEnded) == "true",
	}
	chunk.Generation = int(number(berth.HeaderLogGeneration)) //nolint:gosec // a generation counts process starts
	if failed != nil {
		return berth.LogChunk{}, failed
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, berth.MaxLogChunk+1))
	if err == nil && len(data) > berth.MaxLogChunk {
		err = fmt.Errorf("a log answer is longer than %d bytes", berth.MaxLogChunk)
	}
	chunk.Data = data
	return chunk, err
}

// logWait is how long one request of FollowLog waits for output.
const logWait = 20 * time.Second

// FollowLog reads output from r on, as it comes, until the program has ended
// and all of it was read: then it returns nil. It calls f for each piece; the
// pieces follow each other without a byte lost or doubled, over any break. Where
// the output was dropped before it could be read, the next piece begins at a
// higher offset than the last one ended. The first answer fixes the generation.
// An error of f ends it and is returned as it is.
func (c *Client) FollowLog(ctx context.Context, ref string, r berth.LogRequest, f func(berth.LogChunk) error) error {
	b := backoff{first: c.pause}
	r.Wait = logWait
	for first := true; ; {
		asked := time.Now()
		chunk, err := c.Log(ctx, ref, r)
		switch {
		case err == nil:
			first = false
			if len(chunk.Data) > 0 {
				b.reset()
				if err := f(chunk); err != nil {
					return err
				}
			}
			r.Generation, r.FromStart = chunk.Generation, false
			r.From = chunk.Offset + uint64(len(chunk.Data))
			if chunk.Ended && r.From >= chunk.End {
				return nil
			}
			// A daemon that answers an empty wait at once must not be asked in a
			// tight circle.
			if len(chunk.Data) == 0 && time.Since(asked) < backoffLast {
				if err := b.wait(ctx); err != nil {
					return err
				}
			}
		case ctx.Err() != nil:
			return contextError(ctx)
		case !first && errors.Is(err, berth.CodeOffsetGone):
			r.FromStart = true
		case !transient(err) || first && errors.Is(err, berth.CodeDaemonNotRunning):
			return err
		default:
			if err := b.wait(ctx); err != nil {
				return err
			}
		}
	}
}

// Export writes the kept output of a session to w, as "text" or "cast". An
// error may come when a part was written already; then it is not whole. Only
// ctx bounds it: w may be a pager.
func (c *Client) Export(ctx context.Context, ref, format string, w io.Writer) error {
	req, err := c.request(ctx, call{
		method: http.MethodGet, path: sessionPath(ref, "/export"), query: url.Values{"format": {format}},
	})
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.transportError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // it has been read, or failed already
	if resp.StatusCode != http.StatusOK {
		return readProblem(resp)
	}
	from := &readFailure{r: resp.Body}
	_, err = io.Copy(w, from)
	switch {
	case from.err != nil:
		return c.transportError(ctx, fmt.Errorf("the export broke off: %w", from.err))
	case err != nil:
		return fmt.Errorf("write the export: %w", err) // of w, and not the daemon's
	}
	return nil
}

// readFailure keeps the failure of the reading half of a copy.
type readFailure struct {
	r   io.Reader
	err error
}

func (f *readFailure) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}
