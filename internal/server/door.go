package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"berth"
)

// door says which way a request came.
type door int

const (
	doorUnix door = iota + 1
	doorTCP
)

type (
	doorKey struct{}
	peerKey struct{}
)

// peer is who is at the other end of a unix socket.
type peer struct {
	uid int
	err error
}

// withPeer asks the kernel once for each connection who opened it. That cannot
// be forged, and it does not change when the process changes its user later.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(c))
}

func peerOf(c net.Conn) peer {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return peer{err: berth.Errorf(berth.CodeInternal, "the connection is no socket")}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED) //nolint:gosec // a descriptor fits an int
	}); err != nil {
		return peer{err: err}
	}
	if credErr != nil {
		return peer{err: credErr}
	}
	return peer{uid: int(cred.Uid)}
}

// unixDoor lets in this user and root. The socket's mode says the same; this
// holds also when somebody made the directory readable.
//
// No browser speaks to a unix socket. What carries a browser's headers came
// through a forwarder that somebody put on a port, where every web page could
// reach it without a token, so it is refused.
func (s *Server) unixDoor(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := r.Context().Value(peerKey{}).(peer)
		switch {
		case !ok || who.err != nil:
			s.refuse(w, r, berth.Errorf(berth.CodeUnauthorized, "it cannot be seen who asks: %v", who.err))
		case who.uid != s.uid && who.uid != 0:
			s.refuse(w, r, berth.Errorf(berth.CodeForbidden, "this socket serves user %d, not user %d", s.uid, who.uid))
		case fromBrowser(r):
			s.refuse(w, r, berth.Errorf(berth.CodeForbidden, "a browser may not use the unix socket").
				WithHint("set [api] listen in the config file and use the token"))
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), doorKey{}, doorUnix)))
		}
	})
}

// fromBrowser reports whether a browser made the request: scripts cannot remove
// these headers, and no other program sends them unasked.
func fromBrowser(r *http.Request) bool {
	if r.Header.Get("Origin") != "" {
		return true
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return false
}

// tcpDoor lets in who has the token. Before that it refuses every request that
// a web page may have caused: any page can make a browser connect to
// 127.0.0.1, under a name of its own too (DNS rebinding), and open WebSockets.
func (s *Server) tcpDoor(next http.Handler, port int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if err := checkSite(r, port); err != nil {
			s.refuse(w, r, err)
			return
		}
		if !s.tokenFits(r) {
			h.Set("WWW-Authenticate", "Bearer")
			s.refuse(w, r, berth.Errorf(berth.CodeUnauthorized, "the token is missing or wrong"))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), doorKey{}, doorTCP)))
	})
}

// checkSite is about the web page, if any, that a request comes from.
func checkSite(r *http.Request, port int) error {
	if !ownHost(r.Host, port) {
		return berth.Errorf(berth.CodeForbidden, "the host %q is not an address of this listener", r.Host).
			WithHint("use 127.0.0.1:" + strconv.Itoa(port))
	}
	// "same-site" is not enough: every port of localhost is one site.
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
	default:
		return berth.Errorf(berth.CodeForbidden, "a %s web page may not use this listener", site)
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		// A browser names the origin of every WebSocket. One with a browser's
		// other headers and no origin hides it.
		if isUpgrade(r) && fromBrowser(r) {
			return berth.Errorf(berth.CodeForbidden, "a browser's WebSocket needs its origin")
		}
		return nil
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" || !strings.EqualFold(u.Host, r.Host) {
		return berth.Errorf(berth.CodeForbidden, "the origin %q may not use this listener", origin)
	}
	return nil
}

// ownHost reports whether a Host header names this listener.
func ownHost(host string, port int) bool {
	name, p, err := net.SplitHostPort(host)
	if err != nil {
		name, p = strings.Trim(host, "[]"), "80" // left out, it is the default one
	}
	if p != strconv.Itoa(port) {
		return false
	}
	return name == "127.0.0.1" || name == "::1" || strings.EqualFold(name, "localhost")
}

// protocolAttach is the WebSocket subprotocol of an attach, and protocolToken
// the prefix of one that carries the token: a browser's WebSocket can set no
// header. The server never selects the latter, so it is not echoed.
const (
	protocolAttach = "berth.v1"
	protocolToken  = "berth.bearer."
)

// tokenFits compares hashes in constant time, so that neither the time nor a
// core file tells the token.
func (s *Server) tokenFits(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok && isUpgrade(r) {
		for _, value := range r.Header.Values("Sec-WebSocket-Protocol") {
			for p := range strings.SplitSeq(value, ",") {
				if t, found := strings.CutPrefix(strings.TrimSpace(p), protocolToken); found {
					token, ok = t, true
				}
			}
		}
	}
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], s.cfg.TokenHash[:]) == 1 && ok && token != ""
}

// isUpgrade reports whether a request asks for a WebSocket.
func isUpgrade(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// refuse answers at the door and counts it.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	s.metrics.refused.Inc()
	s.cfg.Log.Warn("request refused", "method", r.Method, "path", r.URL.Path, "error", err)
	writeProblem(w, r, err)
}
