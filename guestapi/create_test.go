package guestapi

import (
	"encoding/json"
	"testing"
)

func FuzzCreateRequest(f *testing.F) {
	f.Add([]byte(`{"id":"s-0123456789abcdef","name":"a","argv":["sh"],"cwd":"/","env":["A=b"],"size":{"cols":80,"rows":24}}`))
	f.Add([]byte(`{"argv":[""],"size":{"cols":-1}}`))
	f.Add([]byte(`{"log_bytes":1e99}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var r CreateSession
		if json.Unmarshal(body, &r) != nil {
			return
		}
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		var again CreateSession
		if err := json.Unmarshal(data, &again); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}
