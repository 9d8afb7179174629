package client

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"berth"
)

// dialOwn opens a socket of this user, and speaks to nobody else there: what a
// daemon says is believed, and a command that it hands out may be run as root.
func dialOwn(ctx context.Context, d *net.Dialer, socket string) (net.Conn, error) {
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := own(conn, socket); err != nil {
		_ = conn.Close() // it was only asked who is there
		return nil, err
	}
	return conn, nil
}

// own refuses a peer that is neither this user nor root.
func own(conn net.Conn, socket string) error {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return err
	}
	if uid := int(cred.Uid); uid != os.Geteuid() && uid != 0 {
		return berth.Errorf(berth.CodeForeignSocket, "user %d answers at %s, and not you", uid, socket).WithFact("path", socket)
	}
	return nil
}
