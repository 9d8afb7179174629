// Package hoststep is all that berth ever does as root on a host: a closed
// table of small steps that make a machine ready for engines in containers, and
// their undoing. berth-hoststep is its program; a person runs it with sudo or
// pkexec, once, after they agreed to a plan.
//
// It is meant to be read in an hour, in this order:
//
//	request.go   what it may be told, and how strictly that is read
//	trust.go     which files it believes, and where it leaves its answer
//	recipe.go    all data: distributions, addresses, keys, packages
//	commands.go  each program that it may start, as an exact argv
//	execute.go   how such a program is started and ended
//	steps.go     the table of steps, and check → apply → check
//	packages.go  keys, sources and packages; apt.go and dnf.go under it
//	docker.go    daemon.json, restart, service, group; cdi.go
//	ledger.go    the record of everything that was changed
//	undo.go      what of that can be taken back, decided purely; undoing.go
//	main.go      one run from its arguments to its exit code
//
// It takes no command, package name, address or path from whoever runs it: only
// which of the closed set of components to see to. It imports nothing of berth
// and nothing outside the standard library.
//
// Files. The request is FOLDER/STEP.request.json (Request), the answer
// FOLDER/STEP.result.json (Result), the record of changes ChangesPath (one
// Change a line, append-only).
package hoststep
