package environment

import (
	"context"
	"net"

	"berth/guestapi"
)

// Guest is what this room needs of the guest on a host. Its errors carry codes:
// a path that is not there is CodeNotFound, one that may not be looked at is
// CodeForbidden, a program that is not there CodeCommandNotFound.
// *guestapi.Client is one.
type Guest interface {
	// Exec runs a program to its end. A program that failed is a result, not an error.
	Exec(ctx context.Context, e guestapi.Exec) (guestapi.ExecResult, error)
	// ReadFile reads a file of at most max bytes.
	ReadFile(ctx context.Context, path string, max int64) ([]byte, guestapi.FileInfo, error)
	// Stat looks at a path, or at what a symbolic link there leads to.
	Stat(ctx context.Context, path string, follow bool) (guestapi.FileInfo, error)
	// ReadDir lists a directory; each FileInfo.Path is absolute and not followed.
	ReadDir(ctx context.Context, path string) ([]guestapi.FileInfo, error)
	// Space asks the file system of the nearest ancestor that exists.
	Space(ctx context.Context, path string) (guestapi.Space, error)
	// Dial opens a byte stream to a unix or TCP socket of the host.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// WriteFile replaces a file as a whole.
	WriteFile(ctx context.Context, path string, data []byte, mode uint32) error
	// MkdirAll makes a directory and those above it.
	MkdirAll(ctx context.Context, path string, mode uint32) error
	// RemoveFile removes one file; one that is not there is CodeNotFound.
	RemoveFile(ctx context.Context, path string) error
}
