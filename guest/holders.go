package guest

import (
	"context"

	"berth"
	"berth/holder"
)

// holders is what the guest needs of the holder room as a whole, and
// holderClient and holderStream of one holder. They are interfaces so that a
// test can show faults that a real holder cannot be made to show.
type holders interface {
	Start(ctx context.Context, cfg holder.StartConfig) (holder.Running, error)
	Client(socket string) holderClient
	Alive(dir string) (bool, error)
	ReadRunning(dir string) (holder.Running, error)
	ReadExit(dir string) (berth.Exit, error)
	ReadSnapshot(dir string) (holder.Snapshot, error)
	KillRemains(dir string) (holder.KillResult, error)
}

type holderClient interface {
	Info(ctx context.Context) (holder.Info, error)
	Resize(ctx context.Context, size berth.Size) error
	Signal(ctx context.Context, signal int) error
	Kill(ctx context.Context) (holder.KillResult, error)
	Deposit(ctx context.Context, s holder.Snapshot) error
	Snapshot(ctx context.Context) (holder.Snapshot, error)
	ReadLog(ctx context.Context, from uint64, p []byte) (int, error)
	Quit(ctx context.Context) error
	Stream(ctx context.Context, from uint64) (holderStream, error)
}

type holderStream interface {
	Next() (holder.Item, error)
	Input(p []byte) error
	Close() error
}

// realHolders are the holders of the holder room.
type realHolders struct{}

func (realHolders) Start(ctx context.Context, cfg holder.StartConfig) (holder.Running, error) {
	return holder.Start(ctx, cfg)
}
func (realHolders) Client(socket string) holderClient {
	return realClient{holder.NewClient(socket)}
}
func (realHolders) Alive(dir string) (bool, error)                 { return holder.Alive(dir) }
func (realHolders) ReadRunning(dir string) (holder.Running, error) { return holder.ReadRunning(dir) }
func (realHolders) ReadExit(dir string) (berth.Exit, error)        { return holder.ReadExit(dir) }
func (realHolders) ReadSnapshot(dir string) (holder.Snapshot, error) {
	return holder.ReadSnapshot(dir)
}

func (realHolders) KillRemains(dir string) (holder.KillResult, error) {
	return holder.KillRemains(dir)
}

type realClient struct{ *holder.Client }

func (c realClient) Stream(ctx context.Context, from uint64) (holderStream, error) {
	s, err := c.Client.Stream(ctx, from)
	if err != nil {
		return nil, err // not a nil *Stream in a non-nil interface
	}
	return s, nil
}
