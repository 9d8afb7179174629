// Package process says who a process is, starts one that outlives its starter,
// and stops one with proof.
//
// A PID is never enough: it is reused, in a container within microseconds. So a
// process is named by boot id, PID and start time (berth.Identity), it is
// signalled through a pidfd that was verified after it was opened, and
// everything that a program started is found in a cgroup of its own where one
// can be made.
package process
