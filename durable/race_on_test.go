//go:build race

package durable_test

// slowed says that the race detector makes everything several times as slow.
const slowed = true
