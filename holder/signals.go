package holder

import (
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth"
)

// handleSignals: no signal from outside ends a holder. Handlers are used and
// not SIG_IGN, since a handler is reset by exec: what is ignored would be
// ignored by the program too. It comes before the program starts.
func (k *keeper) handleSignals() {
	k.signals = make(chan os.Signal, 4)
	signal.Notify(k.signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT,
		unix.SIGPIPE, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
}

// relaySignals brings signals into the loop. It ends with the loop.
func (k *keeper) relaySignals(end chan struct{}) {
	for {
		select {
		case s := <-k.signals:
			if s == unix.SIGTERM {
				k.terminate.Store(true)
			}
			k.notify()
		case <-end:
			return
		}
	}
}

// defaultSignals gives every signal that is ignored its default again: a
// program inherits what its starter ignored, and a shell under nohup would not
// pass SIGHUP on.
func defaultSignals() error {
	const size = 8 // of the kernel's signal set
	const ignored = 1
	for sig := uintptr(1); sig <= 64; sig++ {
		var act [8]uint64 // struct sigaction of the kernel begins with the handler
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&act[0])), size, 0, 0)
		if errno != 0 || act[0] != ignored {
			continue
		}
		act[0] = 0
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&act[0])), 0, size, 0, 0); errno != 0 {
			return berth.Errorf(berth.CodeStartFailed, "reset signal %d: %w", sig, errno)
		}
	}
	return nil
}
