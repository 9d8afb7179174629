package durable

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gowebpki/jcs"

	"berth"
)

// Fingerprint is the SHA-256, in hex, of the canonical JSON (RFC 8785) of v: two
// requests have the same one exactly if they say the same, whatever the order
// of their members and the writing of their numbers.
//
// An integer beyond ±2^53 is CodeInvalidArgument. Canonical JSON would round
// it, and two different requests would pass for one.
func Fingerprint(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", berth.Errorf(berth.CodeInvalidArgument, "fingerprint: %w", err)
	}
	if err := exactNumbers(text); err != nil {
		return "", err
	}
	canonical, err := jcs.Transform(text)
	if err != nil {
		return "", berth.Errorf(berth.CodeInvalidArgument, "fingerprint: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

// exactNumbers refuses an integer that a double cannot hold exactly.
func exactNumbers(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("fingerprint: %w", err)
		}
		n, ok := token.(json.Number)
		if !ok || strings.ContainsAny(n.String(), ".eE") {
			continue // a fraction is a double on both sides already
		}
		const exact = 1 << 53
		if i, err := n.Int64(); err != nil || i > exact || i < -exact {
			return berth.Errorf(berth.CodeInvalidArgument, "fingerprint: the number %s is larger than JSON holds exactly; give it as text", n)
		}
	}
}
