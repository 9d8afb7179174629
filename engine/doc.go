// Package engine knows engines: for now their releases, the pinned documents
// that say what is pulled and what a machine must have.
//
// A release is immutable by its id: the same id with other content is refused,
// wherever it comes from. Some are part of the program; others are added and
// kept in a directory that all daemons of a user share.
package engine
