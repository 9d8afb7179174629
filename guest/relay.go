package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth"
)

// relays are the sockets that the programs of sessions connect to: hook lines
// at BERTH_SOCKET, the viewer's SSH agent at SSH_AUTH_SOCK. One goroutine
// accepts on all of them through one epoll instance: two idle goroutines for
// each of a thousand sessions would cost more than all their records.
type relays struct {
	g     *Guest
	epoll *os.File // non-blocking, so that the runtime's own poller waits for it
	raw   syscall.RawConn
	done  chan struct{} // closed when the accepting goroutine has returned

	mu    sync.Mutex
	doors map[int32]*door // by listening descriptor
	byID  map[string][2]*door
}

// door is one listening socket.
type door struct {
	fd    int32
	s     *session
	serve func(s *session, conn *net.UnixConn)
	open  int // connections now; relays.mu guards it
}

// doorConns bounds the connections of one socket. One more is closed at once.
const doorConns = 16

func newRelays(g *Guest) (*relays, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an epoll instance: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare an epoll instance: %w", err), unix.Close(fd))
	}
	r := &relays{g: g, epoll: os.NewFile(uintptr(fd), "relays"), done: make(chan struct{}), doors: map[int32]*door{}, byID: map[string][2]*door{}}
	if r.raw, err = r.epoll.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare an epoll instance: %w", err), r.epoll.Close())
	}
	go r.accept()
	return r, nil
}

func (r *relays) hookPath(id string) string {
	return filepath.Join(r.g.cfg.Runtime, berth.DirRelays, id+".sock")
}

func (r *relays) agentPath(id string) string {
	return filepath.Join(r.g.cfg.Runtime, berth.DirAgents, id+".sock")
}

// open makes both sockets of a session. What an earlier guest left is replaced:
// the paths are in the environment of the program and must stay.
func (r *relays) open(s *session) error {
	hook, err := r.listen(r.hookPath(s.id))
	if err != nil {
		return err
	}
	agent, err := r.listen(r.agentPath(s.id))
	if err != nil {
		return errors.Join(err, unix.Close(int(hook)))
	}
	pair := [2]*door{
		{fd: hook, s: s, serve: (*session).serveHooks},
		{fd: agent, s: s, serve: (*session).serveAgent},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[s.id] = pair
	for _, d := range pair {
		r.doors[d.fd] = d
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: d.fd}
		if err := r.control(unix.EPOLL_CTL_ADD, d.fd, &ev); err != nil {
			return fmt.Errorf("watch a socket of the session: %w", err)
		}
	}
	return nil
}

func (r *relays) listen(path string) (int32, error) {
	if err := clearStale(path); err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	if err == nil {
		err = unix.Chmod(path, 0o600)
	}
	if err == nil {
		err = unix.Listen(fd, doorConns)
	}
	if err != nil {
		return -1, errors.Join(berth.Errorf(berth.CodeRuntimeDir, "listen at %s: %w", path, err), unix.Close(fd))
	}
	return int32(fd), nil //nolint:gosec // a descriptor fits
}

// control is called with mu held.
func (r *relays) control(op int, fd int32, ev *unix.EpollEvent) error {
	var err error
	if ctlErr := r.raw.Control(func(epoll uintptr) { err = unix.EpollCtl(int(epoll), op, int(fd), ev) }); ctlErr != nil {
		return ctlErr
	}
	return err
}

// close closes and removes both sockets of a session. Open connections go on
// until their peers end them.
func (r *relays) close(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pair, ok := r.byID[id]
	if !ok {
		return
	}
	delete(r.byID, id)
	for i, path := range []string{r.hookPath(id), r.agentPath(id)} {
		delete(r.doors, pair[i].fd)
		_ = unix.Close(int(pair[i].fd)) // epoll forgets it with that
		_ = os.Remove(path)             // erase removes what is left, and reports it
	}
}

// stop ends the accepting goroutine. The sockets stay in the file system for
// the next guest, which replaces them.
func (r *relays) stop() {
	_ = r.epoll.Close() // wakes accept
	<-r.done
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.doors {
		_ = unix.Close(int(d.fd)) // nothing was written to it
	}
	clear(r.doors)
	clear(r.byID)
}

// accept takes connections of all sockets until the epoll instance is closed.
func (r *relays) accept() {
	defer close(r.done)
	var events [64]unix.EpollEvent
	for {
		n := 0
		err := r.raw.Read(func(epoll uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(epoll), events[:], 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
		if err != nil || n < 0 {
			return // closed
		}
		for _, ev := range events[:n] {
			r.acceptOne(ev.Fd)
		}
	}
}

// acceptOne takes one connection. mu is held over accept, so that a descriptor
// that was closed meanwhile and given to another file is never accepted on.
func (r *relays) acceptOne(fd int32) {
	r.mu.Lock()
	d := r.doors[fd]
	if d == nil {
		r.mu.Unlock()
		return
	}
	nfd, _, err := unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	full := d.open >= doorConns
	if err == nil && !full {
		d.open++
	}
	r.mu.Unlock()
	if err != nil {
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			r.g.log.Warn("a connection of a session's program was not accepted", "session", d.s.id, "error", err)
		}
		return
	}
	if full {
		_ = unix.Close(nfd) // it was never used
		return
	}
	conn, err := unixConn(nfd)
	if err == nil {
		ok := r.g.spawn(func() {
			defer r.release(d)
			defer conn.Close() //nolint:errcheck // what was read is used, what was written is gone
			stop := context.AfterFunc(r.g.work, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
			defer stop()
			d.serve(d.s, conn)
		})
		if ok {
			return
		}
		_ = conn.Close() // the guest stops
	}
	r.release(d)
}

func (r *relays) release(d *door) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d.open--
}

// unixConn makes a connection of a descriptor, which it takes over.
func unixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "relay")
	defer f.Close() //nolint:errcheck // FileConn has its own
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a unix socket"), c.Close())
	}
	return uc, nil
}
