// Package guest is the program that lives in a host, one for each user: it
// starts holders, reads their output into screen models, answers the terminal
// queries of their programs and serves viewers.
//
// It may die at any instant. Everything that it must not lose is with the
// holders and in the directories of the sessions: the next guest finds both by
// looking. So a guest keeps no file of its own beside a lock and a socket.
//
// # Locks and goroutines
//
// One goroutine for each live session reads its holder; a second one lives only
// while input waits. Timers exist only while something is due, so an idle
// session costs one blocked goroutine. Session.mu guards one session: its
// record, its screen and the queues of its viewers. Guest.mu (the set of
// sessions), hub.mu, relays.mu and inputQueue.mu may be taken under it, never
// the other way round. Nothing is written to a viewer under a lock; the only
// call to a holder under session.mu is Resize, so that the screen model and the
// terminal change together.
package guest
