package engine

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"berth"
)

// fetchTimeout bounds a fetch as a whole: a document is small.
const fetchTimeout = 30 * time.Second

// maxRedirects is what a download page of a release takes, and two more.
const maxRedirects = 5

// Fetch gets a document from an https URL, or from a file URL of this machine.
// What it gets is not kept: Add does that. A redirect may lead to https only.
// CodeInvalidArgument for another kind of URL, CodeTooLarge, CodeReleaseNotFound
// where there is none, else CodeReleaseInvalid, CodeTimeout or CodeInterrupted.
func (s *Releases) Fetch(ctx context.Context, source string) ([]byte, error) {
	u, err := url.Parse(source)
	switch {
	case err != nil, u.Opaque != "", u.User != nil:
		return nil, berth.Errorf(berth.CodeInvalidArgument, "that is not the URL of a release, or it holds a password")
	case u.Scheme == "file" && (u.Host == "" || u.Host == "localhost"):
		data, err := berth.ReadFile(u.Path, MaxDocument)
		if err != nil {
			return nil, berth.Errorf(berth.CodeReleaseNotFound, "read the release: %w", err).WithHint("check the path")
		}
		return data, nil
	case u.Scheme != "https" || u.Host == "":
		return nil, berth.Errorf(berth.CodeInvalidArgument, "a release comes from an https or a file URL, not from %.80q", u.Redacted()).
			WithHint("download it, then: berth engine releases add FILE")
	}
	return s.fetchHTTPS(ctx, u)
}

var errNotHTTPS = errors.New("the server redirects to something that is not https")

func (s *Releases) fetchHTTPS(ctx context.Context, u *url.URL) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(bounded, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "ask for the release: %w", err)
	}
	req.Header.Set("User-Agent", "berth/"+berth.Version())
	req.Header.Set("Accept", "application/json")
	transport := s.cfg.Transport
	if transport == nil {
		own := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true}
		defer own.CloseIdleConnections()
		transport = own
	}
	c := &http.Client{Transport: transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		switch {
		case next.URL.Scheme != "https":
			return errNotHTTPS
		case len(via) > maxRedirects:
			return errors.New("the server redirects too often")
		}
		return nil
	}}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fetchError(ctx, bounded, err)
	}
	defer func() { _ = resp.Body.Close() }() // it has been read, or has failed
	if resp.StatusCode != http.StatusOK {
		return nil, berth.Errorf(berth.CodeReleaseNotFound, "%s answers %d, not a release", u.Host, resp.StatusCode).WithHint("check the URL")
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, MaxDocument+1))
	if err != nil {
		return nil, fetchError(ctx, bounded, err)
	}
	if len(data) > MaxDocument {
		return nil, berth.Errorf(berth.CodeTooLarge, "what %s sends is larger than %d bytes", u.Host, MaxDocument)
	}
	return data, nil
}

func fetchError(ctx, bounded context.Context, err error) error {
	var call *url.Error // its text has the whole URL, which may hold a key
	if errors.As(err, &call) {
		err = call.Err
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return berth.Errorf(berth.CodeInterrupted, "the fetch of the release was given up: %w", ctx.Err())
	case bounded.Err() != nil:
		return berth.Errorf(berth.CodeTimeout, "the release did not come within %s", fetchTimeout)
	}
	return berth.Errorf(berth.CodeReleaseNotFound, "fetch the release: %w", err).WithHint("check the URL and the network")
}
