package hoststep

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"berth"

	"github.com/gowebpki/jcs"
	"pgregory.net/rapid"
)

func request(action Action, components ...Component) Request {
	p := Parameters{User: "ada", Arch: "x86_64", Family: "dnf", Distro: "fedora", Version: "43", Components: components, Stops: -1, Changes: []int64{}}
	return Request{Schema: 1, StepID: "step-1", OperationID: "op-1", Action: action, Recipe: ThisRecipe(), Parameters: p,
		ParametersDigest: ParametersDigest(p), Nonce: "n-1", Revision: 7, RequestedAt: time.Unix(1, 0).UTC()}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestParseRequest(t *testing.T) {
	want := request(Apply, DockerEngine, DockerGroup)
	good := encode(t, want)
	got, err := ParseRequest([]byte(good))
	if err != nil || encode(t, got) != good {
		t.Fatalf("%v\n%s", err, encode(t, got))
	}
	change := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%s is not in %s", old, good)
		}
		return strings.Replace(good, old, new, 1)
	}
	for name, bad := range map[string]string{
		"empty":                "",
		"not an object":        "[]",
		"two documents":        good + good,
		"trailing bytes":       good + "x",
		"cut off":              good[:len(good)-1],
		"unknown key":          change(`{"schema"`, `{"commands":["SECRET"],"schema"`),
		"unknown key below":    change(`{"user"`, `{"packages":["SECRET"],"user"`),
		"key in other case":    change(`"step_id"`, `"Step_ID"`),
		"key twice":            change(`"nonce":"n-1"`, `"nonce":"n-1","nonce":"SECRET"`),
		"key twice below":      change(`"user":"ada"`, `"user":"ada","user":"SECRET"`),
		"missing key":          change(`"nonce":"n-1",`, ``),
		"null":                 change(`"n-1"`, `null`),
		"other schema":         change(`"schema":1`, `"schema":2`),
		"number for a string":  change(`"n-1"`, `1`),
		"fraction":             change(`"revision":7`, `"revision":7.5`),
		"negative revision":    change(`"revision":7`, `"revision":-7`),
		"action":               change(`"apply"`, `"SECRET"`),
		"step id with a slash": change(`"step-1"`, `"../SECRET"`),
		"long step id":         change(`"step-1"`, `"`+strings.Repeat("a", 129)+`"`),
		"digest form":          change(want.ParametersDigest, "SECRET"),
		"recipe id":            change(`"id":"linux-r2"`, `"id":"SECRET SECRET"`),
		"user option":          change(`"ada"`, `"-SECRET"`),
		"user long":            change(`"ada"`, `"`+strings.Repeat("a", 33)+`"`),
		"root and group":       change(`"ada"`, `"root"`),
		"arch":                 change(`"x86_64"`, `"SECRET"`),
		"family":               change(`"dnf"`, `"SECRET"`),
		"no components":        change(`["docker_engine","docker_group"]`, `[]`),
		"unknown component":    change(`"docker_engine"`, `"SECRET"`),
		"component twice":      change(`["docker_engine",`, `["docker_engine","docker_engine",`),
		"component order":      change(`["docker_engine","docker_group"]`, `["docker_group","docker_engine"]`),
		"not UTF-8":            change(`"ada"`, "\"\xff\""),
		"too large":            good + strings.Repeat(" ", MaxRequest),
	} {
		_, err := ParseRequest([]byte(bad))
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: the refusal quotes the request: %v", name, err)
		}
	}
}

// The daemon's own nouns make a request that this package reads, and codes that it knows.
func TestContractWithTheRoot(t *testing.T) {
	p := berth.HostStepParameters{User: "ada", Arch: "x86_64", Family: "apt", Distro: "debian", Version: "12", Components: []string{"docker_engine"}, Stops: 2, Changes: []int64{7}}
	var ours Parameters
	if err := decode([]byte(encode(t, p)), fields{"user": &ours.User, "arch": &ours.Arch, "family": &ours.Family, "distro": &ours.Distro, "version": &ours.Version, "components": &ours.Components, "stops": &ours.Stops, "changes": &ours.Changes}); err != nil {
		t.Fatal(err)
	}
	if encode(t, ours) != encode(t, p) || ours.check() != nil {
		t.Errorf("%+v is not %+v", ours, p)
	}
	if ErrorInvalid != string(berth.CodeHostStepInvalid) || ErrorFailed != string(berth.CodeHostStepFailed) {
		t.Error("the codes are not those of the catalogue")
	}
	if !berth.ReceiptOutcome(Completed).Valid() || !berth.ReceiptOutcome(OutcomeFailed).Valid() {
		t.Error("the outcomes are not those of a receipt")
	}
}

// The digest is that of RFC 8785, as any other implementation computes it.
func TestCanonicalIsRFC8785(t *testing.T) {
	for _, v := range []any{request(Apply, DockerEngine), frozen(), Parameters{User: "<a&b>"}} {
		want, err := jcs.Transform([]byte(encode(t, v)))
		if err != nil || string(canonical(v)) != string(want) {
			t.Errorf("%v\n%s\n%s", err, canonical(v), want)
		}
	}
}

func TestParametersDigest(t *testing.T) {
	p := request(Apply, DockerEngine).Parameters
	seen := map[string]bool{ParametersDigest(p): true}
	for _, change := range []func(*Parameters){
		func(p *Parameters) { p.User = "bob" }, func(p *Parameters) { p.Arch = "aarch64" }, func(p *Parameters) { p.Family = "apt" },
		func(p *Parameters) { p.Distro = "debian" }, func(p *Parameters) { p.Version = "44" }, func(p *Parameters) { p.Components = nil },
	} {
		other := p
		change(&other)
		if d := ParametersDigest(other); seen[d] {
			t.Errorf("%+v has the digest of another", other)
		} else {
			seen[d] = true
		}
	}
}

// Merging keeps everything that is not ours, in its order.
func TestObjectKeepsWhatItDoesNotKnow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfDistinct(rapid.StringMatching(`[a-z"\\ é]{1,6}`), rapid.ID).Draw(t, "keys")
		o := object{}
		for _, k := range keys {
			o = o.set(k, json.RawMessage(rapid.SampledFrom([]string{`1e3`, `"<&>"`, `{"b":1,"a":[2.0]}`, `null`}).Draw(t, "value")))
		}
		text, err := o.set("ours!", json.RawMessage(`true`)).indented()
		if err != nil {
			t.Fatal(err)
		}
		back, err := parseObject(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := back.without("ours!").indented(); len(keys) > 0 {
			want, _ := o.indented()
			if string(got) != string(want) {
				t.Fatalf("%s\n%s", got, want)
			}
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	good, _ := json.Marshal(request(Apply, DockerEngine))
	f.Add(good)
	f.Add([]byte(`{"schema":1,"schema":1}`))
	f.Add([]byte(`{"a":{"a":{"a":[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRequest(data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			return // a year that RFC 3339 has no form for
		}
		if _, err := ParseRequest(again); err != nil {
			t.Fatalf("%v: %s", err, again)
		}
	})
}

func FuzzDaemonJSON(f *testing.F) {
	f.Add([]byte(`{"features":{"buildkit":true},"x":[1]}`))
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Add([]byte("{\"\\u0000\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := parseObject(data)
		if err != nil {
			return
		}
		text, err := o.set("features", json.RawMessage(`{"cdi":true}`)).indented()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parseObject(text); err != nil || len(back) < len(o) {
			t.Fatalf("%v: %q", err, text)
		}
	})
}
