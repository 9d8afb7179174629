package hoststep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// fetcher gets a key file. It is bounded in time and size by whoever makes it.
type fetcher func(ctx context.Context, url string) ([]byte, error)

var errPlain = errors.New("an address on the way is not https")

// httpsFetch gets an address over HTTPS alone, each redirect included, with the
// machine's own root certificates and no proxy of the environment: the
// environment is the caller's.
func httpsFetch(transport http.RoundTripper) fetcher {
	client := &http.Client{
		Timeout:   60 * time.Second,
		Transport: transport,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= 5 {
				return errors.New("too many redirects")
			}
			if r.URL.Scheme != "https" {
				return errPlain
			}
			return nil
		},
	}
	return func(ctx context.Context, url string) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		if r.URL.Scheme != "https" {
			return nil, errPlain
		}
		answer, err := client.Do(r)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close() //nolint:errcheck // it was only read
		if answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("get %s: %s", url, answer.Status)
		}
		data, err := io.ReadAll(io.LimitReader(answer.Body, MaxKey+1))
		if err != nil {
			return nil, fmt.Errorf("get %s: %w", url, err)
		}
		if len(data) > MaxKey {
			return nil, fmt.Errorf("get %s: more than %d bytes", url, MaxKey)
		}
		return data, nil
	}
}
