package durabletest

import (
	"sync"
	"time"
)

// Clock is a wall clock and a boot-time clock that a test puts forward. It is
// safe for concurrent use.
type Clock struct {
	mu   sync.Mutex
	wall time.Time
	boot time.Duration
}

// NewClock gives a clock that stands at about now, an hour after a boot.
func NewClock() *Clock { return &Clock{wall: time.Now(), boot: time.Hour} }

// Now reads the wall clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

// Boottime reads the boot-time clock.
func (c *Clock) Boottime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

// Pass puts both forward; a negative d puts the wall clock back and leaves the
// boot-time clock, which cannot go back.
func (c *Clock) Pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
	c.boot += max(d, 0)
}

// SetWall changes the wall clock alone, as a person or a time server does.
func (c *Clock) SetWall(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = t
}
