package guestapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"berth"
)

// Exec runs a program on the guest's machine to its end. How it ended, also by
// its own timeout, is in the result and no error. When ctx ends, the program is
// ended too: CodeTimeout for a deadline, CodeInterrupted otherwise.
func (c *Client) Exec(ctx context.Context, in Exec) (ExecResult, error) {
	var r ExecResult
	err := c.do(ctx, http.MethodPost, "/v1/exec", nil, in, &r)
	return r, err
}

// ReadFile reads a regular file of at most limit bytes; 0 = MaxFileRead. A larger
// one is CodeTooLarge, a FIFO, device or directory CodeInvalidArgument. Size of
// the info is the length of the content.
func (c *Client) ReadFile(ctx context.Context, path string, limit int64) ([]byte, FileInfo, error) {
	q := pathQuery(path)
	if limit != 0 {
		q.Set("max", strconv.FormatInt(limit, 10))
	}
	var f FileContent
	if err := c.do(ctx, http.MethodGet, "/v1/files", q, nil, &f); err != nil {
		return nil, FileInfo{}, err
	}
	return f.Data, f.Info, nil
}

// Stat looks at a path; follow = at what a symbolic link leads to. Without it,
// Target of the info is what the link says.
func (c *Client) Stat(ctx context.Context, path string, follow bool) (FileInfo, error) {
	q := pathQuery(path)
	if follow {
		q.Set("follow", "true")
	}
	var f FileInfo
	err := c.do(ctx, http.MethodGet, "/v1/files/stat", q, nil, &f)
	return f, err
}

// ReadDir lists a directory, sorted by name. Links in it are not followed. More
// than MaxDirEntries are CodeTooLarge.
func (c *Client) ReadDir(ctx context.Context, path string) ([]FileInfo, error) {
	var l DirList
	err := c.do(ctx, http.MethodGet, "/v1/files/list", pathQuery(path), nil, &l)
	return l.Entries, err
}

// WriteFile replaces a file so that a reader, and a power cut, sees the old or
// the new content and nothing else. Its directory must be there. Anything at path
// that is not a regular file, also a symbolic link, is CodeConflict. mode has
// permission bits and no others.
func (c *Client) WriteFile(ctx context.Context, path string, data []byte, mode uint32) error {
	if len(data) > MaxFileWrite {
		return berth.Errorf(berth.CodeTooLarge, "write %s: %d bytes are more than %d", path, len(data), MaxFileWrite)
	}
	ctx, done := c.call(ctx)
	defer done()
	resp, err := c.send(ctx, http.MethodPut, "/v1/files", modeQuery(path, mode), bytes.NewReader(data))
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	var answer struct{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxProblem)).Decode(&answer); err != nil {
		return transportError(ctx, "PUT /v1/files", err)
	}
	return nil
}

// MkdirAll makes a directory and what is missing above it. One that is there is
// left as it is; anything else at path is CodeConflict.
func (c *Client) MkdirAll(ctx context.Context, path string, mode uint32) error {
	return c.do(ctx, http.MethodPost, "/v1/files/dir", modeQuery(path, mode), nil, nil)
}

// RemoveFile removes one file, link or socket; a directory is CodeInvalidArgument.
func (c *Client) RemoveFile(ctx context.Context, path string) error {
	return c.do(ctx, http.MethodDelete, "/v1/files", pathQuery(path), nil, nil)
}

// Space gives the room on the file system of path, or of its nearest ancestor
// that exists.
func (c *Client) Space(ctx context.Context, path string) (Space, error) {
	var s Space
	err := c.do(ctx, http.MethodGet, "/v1/files/space", pathQuery(path), nil, &s)
	return s, err
}

func pathQuery(path string) url.Values { return url.Values{"path": {path}} }

// modeQuery writes the mode in octal, as everybody reads it.
func modeQuery(path string, mode uint32) url.Values {
	return url.Values{"path": {path}, "mode": {strconv.FormatUint(uint64(mode), 8)}}
}
