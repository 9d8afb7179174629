//go:build !race

package durable_test

const slowed = false
