package berth

import (
	"encoding/base32"
	"fmt"
	"io"
	"strings"
	"time"
)

// IDPrefix says what kind of record an identifier names.
type IDPrefix string

// The prefixes in use. They are part of the wire format and never change.
const (
	SessionID   IDPrefix = "s"
	HostID      IDPrefix = "h"
	LeaseID     IDPrefix = "l"
	ViewerID    IDPrefix = "v"
	OperationID IDPrefix = "op"
	StepID      IDPrefix = "st"
)

// idAlphabet is Crockford's base 32 in lower case: its order is the order of
// the bytes, so identifiers sort by the time at which they were made.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// idBytes is 6 bytes of milliseconds and 4 random bytes: 16 characters, short
// enough for a socket path, and a clash needs two records of one kind in the
// same millisecond to draw the same 32 bits (creation refuses a clash anyway).
const idBytes = 10

var idEncoding = base32.NewEncoding(idAlphabet).WithPadding(base32.NoPadding)

// NewID makes an identifier like "s-06ewr3mvd8x1k2ab" from a time and a source
// of randomness. It fails only when the source does.
func NewID(prefix IDPrefix, now time.Time, random io.Reader) (string, error) {
	var b [idBytes]byte
	ms := uint64(now.UnixMilli()) //nolint:gosec // a time before 1970 is a broken clock, and the id stays unique
	for i := range 6 {
		b[i] = byte(ms >> (8 * (5 - i)))
	}
	if _, err := io.ReadFull(random, b[6:]); err != nil {
		return "", fmt.Errorf("make an identifier: %w", err)
	}
	return string(prefix) + "-" + idEncoding.EncodeToString(b[:]), nil
}

// ValidID reports whether s is an identifier of the given kind. It is the check
// that stands between a caller's text and a path on disk.
func ValidID(prefix IDPrefix, s string) bool {
	rest, ok := strings.CutPrefix(s, string(prefix)+"-")
	if !ok || len(rest) != idEncoding.EncodedLen(idBytes) {
		return false
	}
	return strings.Trim(rest, idAlphabet) == ""
}
