package guestapi

import (
	"context"
	"net"

	"berth"
)

// Client speaks to one guest over connections that dial gives.
type Client struct{}

// NewClient makes a client. dial opens a byte stream to the guest.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) *Client { panic("todo") }

// Close ends its idle connections and refuses further calls.
func (c *Client) Close() error { panic("todo") }

// Info asks who the guest is.
func (c *Client) Info(ctx context.Context) (Info, error) { panic("todo") }

// Create starts a session, or gives the one that has that id.
func (c *Client) Create(ctx context.Context, r CreateSession) (Session, error) { panic("todo") }

// List lists all sessions, and Session gives one.
func (c *Client) List(ctx context.Context) ([]Session, error) { panic("todo") }

// Session gives one.
func (c *Client) Session(ctx context.Context, id string) (Session, error) { panic("todo") }

// Remove removes a session that has ended, with all its files. CodeSessionLive otherwise.
func (c *Client) Remove(ctx context.Context, id string) error { panic("todo") }

// Resize, Signal, Kill, Input act on a session.
func (c *Client) Resize(ctx context.Context, id string, size berth.Size) error { panic("todo") }

// Signal signals the foreground group.
func (c *Client) Signal(ctx context.Context, id, signal string) error { panic("todo") }

// Kill ends the program and returns when it is gone.
func (c *Client) Kill(ctx context.Context, id string) (KillResult, error) { panic("todo") }

// Input writes to the program.
func (c *Client) Input(ctx context.Context, id string, in InputRequest) error { panic("todo") }

// Screen gives the screen; ansi asks for its repaint too.
func (c *Client) Screen(ctx context.Context, id string, ansi bool) (Screen, error) { panic("todo") }

// Log reads output.
func (c *Client) Log(ctx context.Context, id string, r LogRequest) (LogChunk, error) { panic("todo") }

// Attach opens an attach stream. ctx bounds the whole stream.
func (c *Client) Attach(ctx context.Context, id string, r AttachRequest) (*AttachStream, error) {
	panic("todo")
}

// Events follows the guest: see Event. It calls f for each until ctx ends, the
// stream breaks or f fails.
func (c *Client) Events(ctx context.Context, f func(Event) error) error { panic("todo") }

// Retire asks the guest to deposit every screen and exit. Its sessions go on.
func (c *Client) Retire(ctx context.Context) error { panic("todo") }

// AttachStream carries frames. Read is for one goroutine, Write for one other.
type AttachStream struct{}

// Read gives the next frame, valid until the next call; io.EOF at the end.
func (s *AttachStream) Read() (Frame, error) { panic("todo") }

// Buffered reports whether Read would return at once.
func (s *AttachStream) Buffered() bool { panic("todo") }

// Write sends a frame.
func (s *AttachStream) Write(f Frame) error { panic("todo") }

// Close ends it.
func (s *AttachStream) Close() error { panic("todo") }
