package container

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"
	moby "github.com/moby/moby/client"

	"berth"
)

// What Docker says when a pull fails is only words: the same status stands for
// most of them. These are the words of its sources (registry client,
// distribution, containerd) in the versions from 20.10 on; the tests hold them
// against real daemons. What fits none is CodePullFailed.
var pullWords = []struct {
	words []string // any of them, in lower case
	// code and reason name it; again = another try may end otherwise.
	code   berth.Code
	reason string
	again  bool
	hint   string
}{
	{words: []string{"no space left on device", "disk quota exceeded"}, code: berth.CodeDiskFull,
		hint: "free space at Docker's root directory, then: berth op resume"},
	{words: []string{"verification failed for digest", "unexpected commit digest", "does not match digest", "failed size validation"},
		code: berth.CodeDigestMismatch},
	{words: []string{"x509:", "certificate signed by unknown", "tls: failed to verify"}, code: berth.CodeRegistryUnreachable, reason: "certificate",
		hint: "the registry's certificate is not trusted: a proxy may stand between; add its authority to this host"},
	{words: []string{"toomanyrequests", "too many requests", "rate limit"}, code: berth.CodePullFailed, reason: "rate_limited",
		hint: "the registry limits pulls: wait, or log in on that host with docker login"},
	{words: []string{"no matching manifest for", "no match for platform"}, code: berth.CodeImageNotFound, reason: "platform"},
	{words: []string{"unauthorized", "authentication required", "no basic auth credentials", "incorrect username or password", "pull access denied", "denied:", "403 forbidden", "401 unauthorized"},
		code: berth.CodePullFailed, reason: "auth_refused",
		hint: "the registry refuses this host: check the repository's name, accept its licence, or log in there with docker login"},
	{words: []string{"manifest unknown", "manifest_unknown", "name unknown", "name_unknown", "not found", "repository does not exist"},
		code: berth.CodeImageNotFound},
	{words: []string{"no such host", "connection refused", "network is unreachable", "no route to host", "server misbehaving",
		"client.timeout exceeded", "i/o timeout", "tls handshake timeout", "request canceled while waiting for connection", "temporary failure in name resolution",
		"proxyconnect", "bad gateway", "service unavailable", "gateway timeout", "received unexpected http status: 5"},
		code: berth.CodeRegistryUnreachable, again: true},
	{words: []string{"unexpected eof", "connection reset by peer", "broken pipe", ": eof", "context canceled", "stream error", "httpreadseeker", "use of closed network connection"},
		code: berth.CodePullFailed, reason: "lost", again: true},
}

// diskFull reports whether the daemon's words say so.
func diskFull(words string) bool {
	return strings.Contains(words, "no space left on device") || strings.Contains(words, "disk quota exceeded")
}

// judgePull names why a try failed, and says whether another may end otherwise.
// It is pure.
func judgePull(err error, ref string) (again bool, named *berth.Error) {
	const format = "pull %s: %w"
	var said *streamError
	switch {
	case errors.Is(err, errStalled):
		return true, berth.Errorf(berth.CodePullFailed, format, ref, err).WithFact("reason", "stalled")
	case errors.Is(err, errLost):
		return true, berth.Errorf(berth.CodePullFailed, format, ref, err).WithFact("reason", "lost")
	case errors.As(err, &said), !connection(err):
		return judgeWords(err, said, ref)
	}
	named = berth.AsError(failed(err, "pull "+ref))
	return named.Code == berth.CodeDockerUnreachable || named.Code == berth.CodeTimeout, named
}

// connection reports whether err is about reaching the daemon, not of its making.
func connection(err error) bool {
	var dial *dialError
	var coded *berth.Error
	return errors.As(err, &dial) || errors.As(err, &coded) || moby.IsErrConnectionFailed(err) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func judgeWords(err error, said *streamError, ref string) (again bool, named *berth.Error) {
	words := strings.ToLower(err.Error())
	for _, w := range pullWords {
		for _, text := range w.words {
			if strings.Contains(words, text) {
				named = berth.Errorf(w.code, "pull %s: %w", ref, err)
				if w.reason != "" {
					named = named.WithFact("reason", w.reason)
				}
				if w.hint != "" {
					named = named.WithHint(w.hint)
				}
				return w.again, named
			}
		}
	}
	named = berth.Errorf(berth.CodePullFailed, "pull %s: %w", ref, err)
	switch {
	case said != nil && said.code == http.StatusUnauthorized, errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err):
		return false, named.WithFact("reason", "auth_refused")
	case errdefs.IsNotFound(err):
		return false, berth.Errorf(berth.CodeImageNotFound, "pull %s: %w", ref, err)
	}
	return false, named.WithFact("reason", "other")
}
