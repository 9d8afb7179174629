// Package e2e drives the real binaries: real daemons, guests and holders, real
// programs in real terminals, real kills. One topic a file.
package e2e
