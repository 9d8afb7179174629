package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"berth"
)

// probeTimeout covers a look at a machine whose every fact takes its whole
// deadline, on another host over a slow line.
const probeTimeout = 2 * time.Minute

// Environments says what is installed on each host. Nothing is probed.
func (c *Client) Environments(ctx context.Context) ([]berth.Environment, error) {
	out := berth.Environments{Environments: []berth.Environment{}}
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/environments", out: &out})
	return out.Environments, err
}

// Plan looks at a host and says what a change would do. It changes nothing.
func (c *Client) Plan(ctx context.Context, r berth.ProbeRequest) (berth.Plan, error) {
	var out berth.Plan
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/plans", body: r, out: &out, timeout: max(c.timeout, probeTimeout)})
	return out, err
}

// Diagnostics is a read-only report of one host, without secrets.
func (c *Client) Diagnostics(ctx context.Context, host string) (berth.Diagnostics, error) {
	var out berth.Diagnostics
	_, err := c.do(ctx, call{
		method: http.MethodGet, path: "/v1/environments/" + url.PathEscape(host) + "/diagnostics", out: &out, timeout: max(c.timeout, probeTimeout),
	})
	return out, err
}

// BeginOperation begins a setup, an update or a removal. The same key and request
// again answers the operation that is there, with created = false; with "" the
// client makes a key. A reinstallation looks at the host before it answers.
func (c *Client) BeginOperation(ctx context.Context, b berth.BeginOperation, key string) (op berth.Operation, created bool, err error) {
	if key == "" {
		key = rand.Text()
	}
	status, err := c.do(ctx, call{
		method: http.MethodPost, path: "/v1/operations", body: b, out: &op, timeout: max(c.timeout, probeTimeout),
		header: http.Header{"Idempotency-Key": {key}},
	})
	return op, status == http.StatusAccepted, err
}

// OperationPage lists one page of operations, the newest first. host "" = of all
// hosts; cursor "" = the first page; limit 0 = the daemon's. A page of one host
// may be shorter than the limit and yet have a Next.
func (c *Client) OperationPage(ctx context.Context, host, cursor string, limit int) (berth.Operations, error) {
	q := url.Values{}
	for key, value := range map[string]string{"host": host, "cursor": cursor} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var out berth.Operations
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/operations", query: q, out: &out})
	return out, err
}

// Operations lists all operations, the newest first. host "" = of all hosts.
func (c *Client) Operations(ctx context.Context, host string) ([]berth.Operation, error) {
	all := []berth.Operation{}
	for cursor := ""; ; {
		page, err := c.OperationPage(ctx, host, cursor, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Operations...)
		if cursor = page.Next; cursor == "" {
			return all, nil
		}
	}
}

// Operation reads an operation, with the progress of what runs now.
func (c *Client) Operation(ctx context.Context, id string) (berth.Operation, error) {
	return c.operation(ctx, call{method: http.MethodGet, path: operationPath(id, "")})
}

// ResumeOperation approves a plan by its digest, or goes on after a wait, a
// failure or a cancellation. CodeRevisionMismatch and CodePlanChanged say that
// what was looked at is no longer what there is; then nothing was changed.
func (c *Client) ResumeOperation(ctx context.Context, id string, r berth.ResumeOperation) (berth.Operation, error) {
	return c.operation(ctx, call{method: http.MethodPost, path: operationPath(id, "/resume"), body: r})
}

// CancelOperation asks an operation to end at its next safe boundary. One that
// is over is answered as it is.
func (c *Client) CancelOperation(ctx context.Context, id string) (berth.Operation, error) {
	return c.operation(ctx, call{method: http.MethodPost, path: operationPath(id, "/cancel")})
}

// AcceptReceipt answers the privileged step that waits. CodeReceiptConflict when
// the receipt is not for that one, or was used before: read the operation again.
func (c *Client) AcceptReceipt(ctx context.Context, id string, r berth.Receipt) (berth.Operation, error) {
	return c.operation(ctx, call{method: http.MethodPost, path: operationPath(id, "/receipt"), body: r})
}

// ResetOperations puts the operations of a host that are over into an archive.
func (c *Client) ResetOperations(ctx context.Context, host string) (berth.ResetResult, error) {
	var out berth.ResetResult
	_, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/operations/reset", body: berth.ResetOperations{Host: host}, out: &out})
	return out, err
}

// Engines lists the engines with their releases and installations.
func (c *Client) Engines(ctx context.Context) ([]berth.Engine, error) {
	out := berth.Engines{Engines: []berth.Engine{}}
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/engines", out: &out})
	return out.Engines, err
}

// Engine reads one engine.
func (c *Client) Engine(ctx context.Context, name string) (berth.Engine, error) {
	var out berth.Engine
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/engines/" + url.PathEscape(name), out: &out})
	return out, err
}

// Releases lists the releases, by engine, the newest first.
func (c *Client) Releases(ctx context.Context) ([]berth.ReleaseView, error) {
	out := berth.Releases{Releases: []berth.ReleaseView{}}
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/releases", out: &out})
	return out.Releases, err
}

// Release reads one release.
func (c *Client) Release(ctx context.Context, id string) (berth.ReleaseView, error) {
	var out berth.ReleaseView
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/releases/" + url.PathEscape(id), out: &out})
	return out, err
}

// AddRelease adds a release document; added = false where it was there already.
// CodeReleaseInvalid; CodeConflict where its id is there with other content.
func (c *Client) AddRelease(ctx context.Context, document []byte) (v berth.ReleaseView, added bool, err error) {
	if !json.Valid(document) {
		return v, false, berth.Errorf(berth.CodeReleaseInvalid, "the release document is not JSON")
	}
	return c.addRelease(ctx, berth.AddRelease{Document: document})
}

// AddReleaseFrom makes the daemon get a release document from an https URL.
func (c *Client) AddReleaseFrom(ctx context.Context, url string) (v berth.ReleaseView, added bool, err error) {
	return c.addRelease(ctx, berth.AddRelease{URL: url})
}

func (c *Client) addRelease(ctx context.Context, body berth.AddRelease) (v berth.ReleaseView, added bool, err error) {
	status, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/releases", body: body, out: &v, timeout: max(c.timeout, probeTimeout)})
	return v, status == http.StatusCreated, err
}

func (c *Client) operation(ctx context.Context, q call) (berth.Operation, error) {
	var out berth.Operation
	q.out = &out
	_, err := c.do(ctx, q)
	return out, err
}

func operationPath(id, rest string) string { return "/v1/operations/" + url.PathEscape(id) + rest }
