// Package environment makes machines ready for engines in containers: it looks
// (facts), judges, plans, asks for consent, and performs one operation at a
// time, on any host, through the host's guest.
//
// Facts are read by Probe and Prober, without a shell and without changing
// anything; what could not be read is unknown with its reason, never absent and
// never fine. Judgement and plan are pure functions of facts. The operation
// machine is a pure reducer; what it asks for is performed at the edge.
package environment
