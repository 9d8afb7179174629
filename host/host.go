// Package host is the machines that berth runs things on, each behind a driver.
package host

import (
	"context"
	"net"

	"berth"
)

// Driver reaches one host. Everything else goes through the host's guest.
type Driver interface {
	// Kind says what kind of host it is.
	Kind() berth.DriverKind
	// Name is the host's name.
	Name() string
	// Ensure makes sure that a guest runs there, and starts one where none does.
	Ensure(ctx context.Context) error
	// Dial opens a byte stream to the guest. It starts nothing.
	Dial(ctx context.Context) (net.Conn, error)
}
