package durable

import (
	"errors"
	"math"
	"testing"

	"berth"
)

func TestFingerprint(t *testing.T) {
	same := []any{
		map[string]any{"b": 1.0, "a": []string{"x"}},
		struct {
			A []string `json:"a"`
			B int      `json:"b"`
		}{[]string{"x"}, 1},
		map[string]any{"a": []any{"x"}, "b": 1},
	}
	// The canonical text is {"a":["x"],"b":1}.
	const want = "9bfce180614e8aaffe8a52084e7be3ee3b4c2e740cae2793550177f953f11c04"
	for _, v := range same {
		got, err := Fingerprint(v)
		if err != nil || got != want {
			t.Errorf("%v: %s, %v, want %s", v, got, err, want)
		}
	}
	seen := map[string]any{want: same[0]}
	for _, v := range []any{nil, "", 0, []string{}, map[string]any{}, map[string]any{"a": []string{"x"}}, map[string]any{"a": []string{"x"}, "b": 2}, 1.5, "é", "e\u0301"} {
		got, err := Fingerprint(v)
		if err != nil || len(got) != 64 {
			t.Errorf("%v: %s, %v", v, got, err)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%v has the fingerprint of %v", v, other)
		}
		seen[got] = v
	}
}

// Canonical JSON has doubles alone: 2^53 and 2^53+1 would be one number.
func TestFingerprintOfLargeNumbers(t *testing.T) {
	for _, v := range []any{int64(1<<53 + 1), int64(math.MinInt64), uint64(math.MaxUint64), map[string]any{"a": []int64{1, 1 << 60}}, make(chan int), math.NaN()} {
		if got, err := Fingerprint(v); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%v: %s, %v", v, got, err)
		}
	}
	a, errA := Fingerprint(int64(1 << 53))
	b, errB := Fingerprint(int64(1<<53 - 1))
	if err := errors.Join(errA, errB); err != nil || a == b {
		t.Errorf("%s and %s, %v", a, b, err)
	}
}
