package daemon

import (
	"errors"
	"strings"
	"testing"

	"berth"
)

func TestSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		code berth.Code // "" = accepted
		says string
	}{
		"empty":             {text: ""},
		"every key":         {text: "[api]\nlisten = \"127.0.0.1:1336\"\n[gateway]\nlisten = \"\"\n[dashboard]\nlisten = \"\"\n[sessions]\nlog_bytes = 65536\nring_bytes = 65536\nsize_policy = \"fixed\"\ndetach_key = \"ctrl-a d\"\n[store]\nurl = \"\"\n[docker]\nsocket = \"/run/user/1000/docker.sock\"\n"},
		"relative socket":   {text: "[docker]\nsocket = \"docker.sock\"\n", code: berth.CodeConfigInvalid, says: "absolute"},
		"no log":            {text: "[sessions]\nlog_bytes = 0\n"},
		"unknown key":       {text: "[sessions]\nlog_bites = 1\n", code: berth.CodeConfigUnknownKey, says: "line 2: unknown key \"sessions.log_bites\""},
		"unknown table":     {text: "\n\n[session]\nlog_bytes = 1\n", code: berth.CodeConfigUnknownKey, says: "line 3"},
		"not TOML":          {text: "[api\n", code: berth.CodeConfigInvalid, says: "line 1"},
		"wrong type":        {text: "[sessions]\nlog_bytes = \"many\"\n", code: berth.CodeConfigInvalid, says: "line 2"},
		"tiny log":          {text: "[sessions]\nlog_bytes = 1\n", code: berth.CodeConfigInvalid, says: "log_bytes 1"},
		"huge ring":         {text: "[sessions]\nring_bytes = 999999999999\n", code: berth.CodeConfigInvalid, says: "ring_bytes"},
		"bad policy":        {text: "[sessions]\nsize_policy = \"biggest\"\n", code: berth.CodeConfigInvalid, says: "biggest"},
		"open to networks":  {text: "[api]\nlisten = \"0.0.0.0:1336\"\n", code: berth.CodeConfigInvalid, says: "loopback"},
		"a name for a host": {text: "[api]\nlisten = \"localhost:1336\"\n", code: berth.CodeConfigInvalid, says: "loopback"},
		"other store":       {text: "[store]\nurl = \"postgres://x\"\n", code: berth.CodeConfigInvalid, says: "only SQLite"},
		"remote host":       {text: "[hosts.gpu]\ndriver = \"ssh\"\naddress = \"me@gpu\"\n", code: berth.CodeConfigInvalid, says: "only the local machine"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseSettings([]byte(tc.text))
			if tc.code == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if !errors.Is(err, tc.code) || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v, want %s with %q", err, tc.code, tc.says)
			}
		})
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("[sessions]\nlog_bytes = 0\n"))
	f.Add([]byte("[hosts.a]\ndriver = \"ssh\"\n"))
	f.Add([]byte("\xff\x00[[["))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseSettings(data)
		if err == nil && s.Validate() != nil {
			t.Fatal("accepted settings that are not valid")
		}
		if err != nil && berth.AsError(err).Code == berth.CodeInternal {
			t.Fatalf("an error without a code: %v", err)
		}
	})
}
