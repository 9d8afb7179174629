// Package local is the driver for the machine that the daemon runs on: its
// guest is a process of the same user, behind a unix socket in the runtime
// directory.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"berth"
	"berth/process"
	"berth/process/scope"
)

// Config is what a Driver is made of. All paths are absolute.
type Config struct {
	Sessions     string // directory of the sessions, for the guest
	Runtime      string // runtime directory: the guest's socket and lock
	GuestBinary  string // berth-guest
	HolderBinary string // berth-holder, for the guest
	GuestLog     string // what the guest writes to its standard streams is appended here
	// Getenv is the daemon's environment. The guest gets the few variables that
	// guestEnv lists, and no other.
	Getenv func(string) string
	Log    *slog.Logger
}

// Driver reaches the guest of this machine.
type Driver struct {
	cfg Config
	mu  sync.Mutex // one Ensure at a time: two would start two guests
}

// New checks the configuration.
func New(cfg Config) (*Driver, error) {
	for _, p := range []string{cfg.Sessions, cfg.Runtime, cfg.GuestBinary, cfg.HolderBinary, cfg.GuestLog} {
		if !filepath.IsAbs(p) {
			return nil, berth.Errorf(berth.CodeInternal, "host/local: %q is not an absolute path", p)
		}
	}
	if cfg.Getenv == nil || cfg.Log == nil {
		return nil, berth.Errorf(berth.CodeInternal, "host/local: environment and log are required")
	}
	if n := len(filepath.Join(cfg.Runtime, berth.SocketGuest)); n > berth.SocketPathMax {
		return nil, berth.Errorf(berth.CodeSocketPathTooLong, "the guest's socket in %s would have a path of %d bytes; %d are allowed", cfg.Runtime, n, berth.SocketPathMax)
	}
	return &Driver{cfg: cfg}, nil
}

// Kind says what kind of host it is.
func (d *Driver) Kind() berth.DriverKind { return berth.DriverLocal }

// Name is the host's name.
func (d *Driver) Name() string { return berth.LocalHost }

func (d *Driver) socket() string { return filepath.Join(d.cfg.Runtime, berth.SocketGuest) }

// Times of starting a guest.
const (
	readyTimeout = 5 * time.Second
	readyPoll    = 5 * time.Millisecond // a guest is ready within tens of them
)

// Dial opens a byte stream to the guest. It starts nothing. Errors:
// CodeHostUnreachable, CodeForeignSocket for a socket of another user.
func (d *Driver) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.socket())
	if err != nil {
		return nil, berth.Errorf(berth.CodeHostUnreachable, "reach the guest: %w", err)
	}
	if err := ours(conn.(*net.UnixConn)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// ours refuses a peer of another user: what is typed in sessions goes there.
func ours(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return berth.Errorf(berth.CodeHostUnreachable, "look at the guest's socket: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return berth.Errorf(berth.CodeHostUnreachable, "ask who answers on the guest's socket: %w", err)
	}
	if int(cred.Uid) != os.Geteuid() {
		return berth.Errorf(berth.CodeForeignSocket, "user %d answers on the guest's socket, not %d", cred.Uid, os.Geteuid())
	}
	return nil
}

// Ensure makes sure that a guest answers, and starts one where none does.
// Errors: CodeRuntimeDir, CodeForeignSocket, CodeGuestFailed with the end of
// the guest's log, CodeHostUnreachable for a guest that is there and does not
// answer.
//
// Only a refused connection, or no socket, means that no guest runs, and only
// when nobody holds the guest's lock. One that is slow to answer is alive: a
// second one beside it would fight for the same holders.
func (d *Driver) Ensure(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := PrivateDir(d.cfg.Runtime); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	absent, err := d.look(ctx)
	if err == nil || !absent {
		return err
	}
	held, err := d.locked()
	if err != nil {
		return err
	}
	if held { // it is starting, or ending: the answer, or the free lock, tells
		if err := d.await(ctx, nil); err == nil || !errors.Is(err, errNobody) {
			return err
		}
	}
	return d.start(ctx)
}

// look asks whether somebody answers. absent means that nobody listens there.
func (d *Driver) look(ctx context.Context) (absent bool, err error) {
	info, err := os.Lstat(d.socket())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, berth.Errorf(berth.CodeHostUnreachable, "no guest runs: %w", err)
	case err != nil:
		return false, berth.Errorf(berth.CodeRuntimeDir, "%w", err)
	case info.Mode()&fs.ModeSocket == 0:
		return false, berth.Errorf(berth.CodeForeignSocket, "%s is not a socket", d.socket()).WithFact("path", d.socket())
	}
	conn, err := d.Dial(ctx)
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT), err
	}
	return false, conn.Close()
}

// locked reports whether a guest holds its lock. The lock is taken for an
// instant to find out, so this is not called while a guest of ours starts.
func (d *Driver) locked() (bool, error) {
	lock := flock.New(filepath.Join(d.cfg.Runtime, berth.FileGuestLock), flock.SetPermissions(0o600))
	got, err := lock.TryLock()
	if err != nil {
		return false, berth.Errorf(berth.CodeRuntimeDir, "look at the guest's lock: %w", err)
	}
	if got {
		if err := lock.Unlock(); err != nil {
			return false, berth.Errorf(berth.CodeRuntimeDir, "look at the guest's lock: %w", err)
		}
	}
	return !got, nil
}

// errNobody is what await answers when no guest is there any more.
var errNobody = errors.New("nobody holds the guest's lock")

// await waits until a guest answers. child is the guest that we started, nil =
// another one is waited for.
func (d *Driver) await(ctx context.Context, child *process.Child) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	var ended <-chan struct{}
	if child != nil {
		ended = child.Done()
	}
	for {
		absent, err := d.look(ctx)
		if err == nil || !absent {
			return err
		}
		select {
		case <-ctx.Done():
			return berth.Errorf(berth.CodeHostUnreachable, "a guest holds its lock but does not answer on %s: %w", d.socket(), ctx.Err())
		case <-ended:
			ended, child = nil, nil // it may have given way to another one: wait for that
		case <-tick.C:
		}
		if child != nil {
			continue
		}
		if held, err := d.locked(); err != nil {
			return err
		} else if !held {
			return errNobody
		}
	}
}

// start starts a guest and waits until it answers.
func (d *Driver) start(ctx context.Context) error {
	log, err := os.OpenFile(d.cfg.GuestLog, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return berth.Errorf(berth.CodeGuestFailed, "open the guest's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the guest has its own descriptor
	info, err := log.Stat()
	if err != nil {
		return berth.Errorf(berth.CodeGuestFailed, "open the guest's log: %w", err)
	}
	child, err := process.StartDetached(process.Detached{
		Path: d.cfg.GuestBinary,
		Args: []string{d.cfg.GuestBinary, "serve", "--sessions", d.cfg.Sessions, "--runtime", d.cfg.Runtime, "--holder", d.cfg.HolderBinary},
		Env:  guestEnv(d.cfg.Getenv), Stdout: log, Stderr: log,
	})
	if err != nil {
		return berth.Errorf(berth.CodeGuestFailed, "%w", err).WithFact("binary", d.cfg.GuestBinary)
	}
	d.scope(ctx, child.PID)
	if err := d.await(ctx, child); err != nil {
		var e *berth.Error
		if errors.As(err, &e) && e.Code == berth.CodeForeignSocket {
			return err
		}
		return d.failed(err, child, info.Size())
	}
	d.cfg.Log.Info("started a guest", "pid", child.PID)
	return nil
}

// failed says what the guest said.
func (d *Driver) failed(err error, child *process.Child, from int64) error {
	how := "does not answer"
	select {
	case <-child.Done():
		how = "ended"
	default:
	}
	detail := fmt.Sprintf("the guest (pid %d) %s: %v", child.PID, how, err)
	if errors.Is(err, errNobody) {
		detail = fmt.Sprintf("the guest (pid %d) ended before it answered", child.PID)
	}
	if tail := logTail(d.cfg.GuestLog, from); tail != "" {
		detail += "; its log ends with: " + tail
	}
	e := berth.Errorf(berth.CodeGuestFailed, "%s", detail).WithFact("log", d.cfg.GuestLog)
	e.Err = err
	return e
}

// maxTail bounds what of the guest's log goes into an error.
const maxTail = 1 << 10

// logTail gives the end of what was written to a log from an offset on, on one line.
func logTail(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	if from > end {
		from = 0 // it was cut meanwhile
	}
	from = max(from, end-maxTail)
	data := make([]byte, end-from)
	n, err := f.ReadAt(data, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(string(data[:n]), ""), func(r rune) bool {
		return r < ' ' || r == 0x7f
	}), " | ")
}

// guestVars are the variables that the guest gets. It outlives the daemon and
// every session reads its memory only through the protocol, but a key in its
// environment would be in /proc for as long as the machine is up; what a
// program needs comes with the request for its session.
var guestVars = [...]string{"PATH", "HOME", "LANG", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"}

func guestEnv(getenv func(string) string) []string {
	env := []string{}
	for _, name := range guestVars {
		if v := getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// scope moves the guest out of the daemon's service. Without it the guest would
// go when the service stops; holders have scopes of their own. It is never
// fatal: most machines without systemd need none.
func (d *Driver) scope(ctx context.Context, pid int) {
	m := scope.Find(d.cfg.Getenv)
	if !m.There() {
		return
	}
	err := scope.Start(ctx, m, scope.Unit{
		Name:        fmt.Sprintf("berth-guest-%d.scope", pid),
		Description: "berth guest",
		PIDs:        []int{pid},
	})
	if err != nil {
		d.cfg.Log.Warn("the guest has no scope of its own; it may end with the daemon's service", "err", err)
	}
}
