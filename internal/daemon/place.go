package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"berth"
)

// place is this daemon's hold on its directories: while it lives, no other
// daemon serves them.
type place struct {
	paths berth.Paths
	lock  *flock.Flock
}

// takePlace makes the directories and locks the state directory. The lock, not
// the socket and not a PID file, says who serves: it goes with the process
// whatever ends it.
func takePlace(paths berth.Paths) (*place, error) {
	for _, dir := range []string{paths.State, paths.Sessions(), paths.State + "/" + berth.DirLogs} {
		if err := privateDir(dir, berth.CodeStateDir); err != nil {
			return nil, err
		}
	}
	if err := privateDir(paths.Runtime, berth.CodeRuntimeDir); err != nil {
		return nil, err
	}
	for _, socket := range []string{paths.DaemonSocket(), longestSocket(paths)} {
		if len(socket) > berth.SocketPathMax {
			return nil, berth.Errorf(berth.CodeSocketPathTooLong, "%s has %d bytes; %d are allowed", socket, len(socket), berth.SocketPathMax)
		}
	}
	lock := flock.New(paths.DaemonLock(), flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, berth.Errorf(berth.CodeStateDir, "lock %s: %w", paths.DaemonLock(), err)
	}
	if !ok {
		e := berth.Errorf(berth.CodeAlreadyRunning, "another daemon serves %s", paths.State)
		if d, err := readDaemonJSON(paths); err == nil {
			e = e.WithFact("pid", fmt.Sprint(d.PID)).WithFact("socket", d.Socket)
		}
		return nil, e
	}
	return &place{paths: paths, lock: lock}, nil
}

// longestSocket is the path of a session's socket: all ids have one length.
func longestSocket(p berth.Paths) string {
	return p.Runtime + "/" + berth.DirHolders + "/" + "s-0123456789abcdef" + ".sock"
}

// leave gives the place up. The lock file stays: unlinking it would let two
// daemons lock two files of one name.
func (p *place) leave() error { return p.lock.Unlock() }

// privateDir makes a directory that only this user can enter, and refuses one
// that others can: whoever can replace a socket reads every key.
func privateDir(dir string, code berth.Code) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return berth.Errorf(code, "%w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return berth.Errorf(code, "%w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir(): // a link could be turned to another place later
		return berth.Errorf(code, "%s is not a directory", dir)
	case ok && int(st.Uid) != os.Geteuid():
		return berth.Errorf(code, "%s belongs to user %d, not to %d", dir, st.Uid, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return berth.Errorf(code, "%s is open to others (mode %04o)", dir, info.Mode().Perm()).
			WithHint("chmod 700 " + dir)
	}
	if f, err := os.CreateTemp(dir, ".probe-*"); err != nil {
		return berth.Errorf(code, "%s cannot be written to: %w", dir, err)
	} else {
		return errors.Join(f.Close(), os.Remove(f.Name()))
	}
}

// listenSocket listens on the daemon's socket. Whoever holds the place may
// remove a socket that nobody answers on; anything else at that path is not
// berth's to remove. A connection that hangs is an owner, not a corpse.
func (p *place) listenSocket(ctx context.Context) (*net.UnixListener, error) {
	path := p.paths.DaemonSocket()
	if err := clearStaleSocket(ctx, path); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, berth.Errorf(berth.CodeRuntimeDir, "listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(berth.Errorf(berth.CodeRuntimeDir, "%w", err), l.Close())
	}
	return l.(*net.UnixListener), nil
}

func clearStaleSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return berth.Errorf(berth.CodeRuntimeDir, "%w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeSocket == 0 || !ok || int(st.Uid) != os.Geteuid() {
		return berth.Errorf(berth.CodeForeignSocket, "%s is not a socket that berth made", path).WithFact("path", path)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(
			berth.Errorf(berth.CodeForeignSocket, "something answers on %s, and it is not a daemon of %s", path, "this state directory").WithFact("path", path),
			c.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return berth.Errorf(berth.CodeForeignSocket, "%s is not known to be abandoned: %w", path, err).WithFact("path", path)
	}
	if err := os.Remove(path); err != nil {
		return berth.Errorf(berth.CodeRuntimeDir, "remove the abandoned socket: %w", err)
	}
	return nil
}

// maxDaemonJSON bounds daemon.json.
const maxDaemonJSON = 64 << 10

func readDaemonJSON(p berth.Paths) (berth.Daemon, error) {
	data, err := berth.ReadFile(p.DaemonJSON(), maxDaemonJSON)
	if err != nil {
		return berth.Daemon{}, err
	}
	var d berth.Daemon
	if err := json.Unmarshal(data, &d); err != nil {
		return berth.Daemon{}, berth.Errorf(berth.CodeRecordUnreadable, "%s: %w", p.DaemonJSON(), err)
	}
	return d, nil
}

func writeDaemonJSON(p berth.Paths, d berth.Daemon) error {
	data, err := json.Marshal(struct {
		V int `json:"v"`
		berth.Daemon
	}{1, d})
	if err != nil {
		return fmt.Errorf("encode daemon.json: %w", err)
	}
	return berth.WriteFile(p.DaemonJSON(), append(data, '\n'), 0o600)
}
