// Package berth is the vocabulary of the program: one file for each noun, with
// its type, its states, its rules and its filter. These are the wire types too,
// so a record reads the same in the store, on the API and in a script.
//
// It stands on floor 0: it imports the standard library alone, and every other
// room may import it. Nothing in it reads a clock or a random source on its
// own; what needs either takes it as an argument.
package berth
