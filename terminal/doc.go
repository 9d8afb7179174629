// Package terminal is the pseudo-terminal of a session and what is kept of its
// output: bytes with absolute offsets, in a ring in memory and in segments on
// disk, both bounded, never decoded. The screen model is in its package screen.
package terminal
