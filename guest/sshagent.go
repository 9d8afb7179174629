package guest

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// agentDial bounds the connection to a viewer's agent.
const agentDial = 5 * time.Second

// serveAgent relays one connection to the SSH agent of the newest viewer that
// lends one. Without such a viewer it is closed at once: a program that finds
// no agent goes on, one that waits for a dead agent hangs for ever.
func (s *session) serveAgent(conn *net.UnixConn) {
	path := s.lentAgent()
	if path == "" {
		return
	}
	dialer := net.Dialer{Timeout: agentDial}
	ctx, cancel := context.WithCancel(s.g.work)
	defer cancel()
	c, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		s.log.Info("a viewer's SSH agent does not answer", "error", err)
		return
	}
	defer c.Close() //nolint:errcheck // both directions are done
	agent, ok := c.(*net.UnixConn)
	if !ok {
		return
	}
	stop := context.AfterFunc(s.g.work, func() { _ = agent.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { relayHalf(agent, conn) })
	relayHalf(conn, agent)
	wg.Wait()
}

// relayHalf copies until from ends, and passes the end on.
func relayHalf(to, from *net.UnixConn) {
	if _, err := io.Copy(to, from); err != nil {
		// Whichever side broke, the other must not wait for it.
		_ = to.Close()
		_ = from.Close()
		return
	}
	_ = to.CloseWrite() // the other side may be gone, and then nobody waits
}

// lentAgent is the socket of the newest viewer that lends an agent, or "".
func (s *session) lentAgent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var newest *viewer
	for v := range s.viewers {
		if v.sshSock != "" && (newest == nil || v.joined > newest.joined) {
			newest = v
		}
	}
	if newest == nil {
		return ""
	}
	return newest.sshSock
}
