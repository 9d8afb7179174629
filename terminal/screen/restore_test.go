package screen

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"berth"
)

// resum gives data a right checksum, so that a test reaches what is behind it.
func resum(data []byte) []byte {
	if len(data) < 4 {
		return data
	}
	n := len(data) - 4
	out := append([]byte(nil), data[:n]...)
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// TestRestoreRefusesDamage: each single byte changed or missing is an error, and
// with the checksum mended it is an error or a sound model.
func TestRestoreRefusesDamage(t *testing.T) {
	s := New(berth.Size{Cols: 20, Rows: 4}, Options{})
	for _, text := range seeds {
		s.Feed([]byte(text))
	}
	s.Feed([]byte("\x1b]0;partial"))
	good := s.Snapshot()
	if _, err := Restore(good, Options{}); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		for _, bit := range []byte{0x01, 0x80, 0xff} {
			bad := append([]byte(nil), good...)
			bad[i] ^= bit
			if _, err := Restore(bad, Options{}); !errors.Is(err, berth.CodeRecordUnreadable) {
				t.Fatalf("byte %d changed: %v", i, err)
			}
			if r, err := Restore(resum(bad), Options{}); err == nil {
				if what := r.check(); what != "" {
					t.Fatalf("byte %d: %s", i, what)
				}
				r.Feed([]byte(seeds[0]))
				r.Repaint(nil)
			}
		}
		if _, err := Restore(good[:i], Options{}); err == nil {
			t.Fatalf("cut at %d: no error", i)
		}
	}
	if _, err := Restore(nil, Options{}); err == nil {
		t.Fatal("nothing: no error")
	}
}

// TestSnapshotIsSmall: a screen of text costs about its text.
func TestSnapshotIsSmall(t *testing.T) {
	s := New(size120, Options{})
	s.Feed(flood())
	if n := len(s.Snapshot()); n > 8<<10 {
		t.Errorf("%d bytes", n)
	}
}
