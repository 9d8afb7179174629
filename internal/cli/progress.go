package cli

import (
	"time"
)

// progressAfter is how long a command may take before it says what it does.
const progressAfter = time.Second

// progress tells on standard error what the command waits for, once it waits
// longer than progressAfter: a line that counts the seconds and goes again on a
// terminal, one plain line elsewhere. The returned function ends it and must be
// called before anything else is written there.
func (a *app) progress(what string) (stop func()) {
	if a.flags.quiet || a.flags.json {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		a.runProgress(what, quit)
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (a *app) runProgress(what string, quit <-chan struct{}) {
	start := a.env.Now()
	first := time.NewTimer(progressAfter)
	defer first.Stop()
	select {
	case <-quit:
		return
	case <-first.C:
	}
	if !isTerminal(a.env.Stderr) {
		a.tell("%s…\n", what)
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		a.tell("\r\x1b[K%s… %ds", what, int(a.env.Now().Sub(start).Seconds()))
		select {
		case <-quit:
			a.tell("\r\x1b[K")
			return
		case <-tick.C:
		}
	}
}
