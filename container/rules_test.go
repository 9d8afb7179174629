package container

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	moby "github.com/moby/moby/client"
	"pgregory.net/rapid"

	"berth"
)

func TestShortNames(t *testing.T) {
	image := func(repository string) berth.Image {
		return berth.Image{Repository: repository, Digest: anImage.Digest}
	}
	same := [][]string{
		{"vllm/vllm-openai", "docker.io/vllm/vllm-openai", "index.docker.io/vllm/vllm-openai", "registry-1.docker.io/vllm/vllm-openai"},
		{"busybox", "docker.io/library/busybox", "index.docker.io/library/busybox", "registry-1.docker.io/library/busybox", "library/busybox", "docker.io/busybox"},
		{"nvcr.io/nvidia/cuda"},
		{"localhost:5000/x/y"},
		{"127.0.0.1:5000/library/busybox"}, // library is only Docker's
	}
	for i, group := range same {
		for j, other := range same {
			for _, a := range group {
				for _, b := range other {
					if got := SameImage(a+"@"+anImage.Digest, image(b)); got != (i == j) {
						t.Errorf("%s and %s: %t", a, b, got)
					}
				}
			}
		}
	}
	for ref, want := range map[string]bool{
		"localhost:5000/x/y:v1@" + anImage.Digest:                         true, // with a tag before the digest
		"localhost:5000/x/y":                                              false,
		"localhost:5000/x/y@sha256:" + strings.Repeat("cd", 32):           false,
		"@" + anImage.Digest:                                              false,
		"<none>@<none>":                                                   false,
		"localhost:5000/x/y@" + anImage.Digest + "@" + anImage.Digest:     false,
		"localhost:5000/X/y@" + anImage.Digest:                            false,
		"user@evil.example/localhost:5000/x/y@" + anImage.Digest:          false,
		"localhost:5000/x/y@" + strings.ToUpper(anImage.Digest):           false,
		"localhost:5000/x/y@" + strings.TrimPrefix(anImage.Digest, "sha"): false,
	} {
		if got := SameImage(ref, image("localhost:5000/x/y")); got != want {
			t.Errorf("%s: %t", ref, got)
		}
	}
}

// Words that real daemons have said; the pull tests hear the rest for themselves.
func TestJudgePull(t *testing.T) {
	for words, want := range map[string]struct {
		code   berth.Code
		reason string
		again  bool
	}{
		"Error response from daemon: manifest for busybox@sha256:00 not found: manifest unknown: manifest unknown":                                           {berth.CodeImageNotFound, "", false},
		"pull access denied for x/y, repository does not exist or may require 'docker login': denied: requested access to the resource is denied":            {berth.CodePullFailed, "auth_refused", false},
		"Head \"https://nvcr.io/v2/x/manifests/sha256:00\": unauthorized: authentication required":                                                           {berth.CodePullFailed, "auth_refused", false},
		"toomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating":                                               {berth.CodePullFailed, "rate_limited", false},
		"Get \"https://registry-1.docker.io/v2/\": dial tcp: lookup registry-1.docker.io on 127.0.0.53:53: server misbehaving":                               {berth.CodeRegistryUnreachable, "", true},
		"Get \"https://registry-1.docker.io/v2/\": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)": {berth.CodeRegistryUnreachable, "", true},
		"Get \"https://mirror.corp/v2/\": x509: certificate signed by unknown authority":                                                                     {berth.CodeRegistryUnreachable, "certificate", false},
		"failed to register layer: Error processing tar file(exit status 1): write /opt/x.so: no space left on device":                                       {berth.CodeDiskFull, "", false},
		"write /var/lib/docker/tmp/GetImageBlob123: no space left on device":                                                                                 {berth.CodeDiskFull, "", false},
		"filesystem layer verification failed for digest sha256:00":                                                                                          {berth.CodeDigestMismatch, "", false},
		"failed commit on ref \"layer-sha256:00\": unexpected commit digest sha256:11, expected sha256:00: failed precondition":                              {berth.CodeDigestMismatch, "", false},
		"no matching manifest for linux/arm64/v8 in the manifest list entries":                                                                               {berth.CodeImageNotFound, "platform", false},
		"unexpected EOF": {berth.CodePullFailed, "lost", true},
		"read tcp 10.0.0.2:4431->34.1.1.1:443: read: connection reset by peer":                                                    {berth.CodePullFailed, "lost", true},
		"failed to copy: httpReadSeeker: failed open: failed to do request: Get \"https://x\": dial tcp 1.1.1.1:443: i/o timeout": {berth.CodeRegistryUnreachable, "", true},
		"something that nobody has seen": {berth.CodePullFailed, "other", false},
	} {
		again, err := judgePull(&streamError{message: words}, "x")
		if !errors.Is(err, want.code) || err.Facts["reason"] != want.reason || again != want.again {
			t.Errorf("%s:\n%s %v again=%t", words, err.Code, err.Facts, again)
		}
	}
}

// Whatever Docker says in whatever order, what is shown never goes back and never
// exceeds what there is.
func TestTally(t *testing.T) {
	statuses := []string{"Pulling fs layer", "Waiting", "Downloading", "Verifying Checksum", "Download complete", "Extracting", "Pull complete", "Already exists", "Retrying in 5 seconds", ""}
	rapid.Check(t, func(t *rapid.T) {
		ta := newTally()
		var last berth.Progress
		look := func(p berth.Progress) {
			if p.Done < last.Done || p.Total < last.Total || p.DoneUnpack < last.DoneUnpack {
				t.Fatalf("%+v after %+v", p, last)
			}
			if p.Done < 0 || p.Done > p.Total || p.DoneUnpack > p.Total {
				t.Fatalf("%+v", p)
			}
			last = p
		}
		for range rapid.IntRange(0, 60).Draw(t, "messages") {
			var m message
			m.ID = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "layer")
			m.Status = rapid.SampledFrom(statuses).Draw(t, "status")
			m.Progress.Current = rapid.Int64().Draw(t, "current")
			m.Progress.Total = rapid.Int64().Draw(t, "total")
			m.Progress.Units = rapid.SampledFrom([]string{"", "", "s"}).Draw(t, "units")
			ta.take(m)
			look(ta.best)
		}
		look(ta.finish())
		if last.Done != last.Total {
			t.Fatalf("ended with %+v", last)
		}
	})
}

// A download that begins again is no step back; unpacking is not counted as a
// download; seconds are not bytes.
func TestTallyTellsDownloadAndUnpackApart(t *testing.T) {
	ta := newTally()
	say := func(id, status string, current, total int64, units string) berth.Progress {
		m := message{ID: id, Status: status}
		m.Progress.Current, m.Progress.Total, m.Progress.Units = current, total, units
		ta.take(m)
		return ta.best
	}
	for i, c := range []struct {
		got               berth.Progress
		done, unpack, tot int64
		stage             string
	}{
		{say("old", "Already exists", 0, 0, ""), 0, 0, 0, "download"},
		{say("a", "Downloading", 40, 100, ""), 40, 0, 100, "download"},
		{say("b", "Downloading", 10, 50, ""), 50, 0, 150, "download"},
		{say("a", "Downloading", 5, 100, ""), 50, 0, 150, "download"}, // a second try
		{say("a", "Download complete", 0, 0, ""), 110, 0, 150, "download"},
		{say("a", "Extracting", 30, 100, ""), 110, 30, 150, "download"},
		{say("b", "Extracting", 7, 0, "s"), 110, 30, 150, "download"},
		{say("b", "Download complete", 0, 0, ""), 150, 30, 150, "unpack"},
		{say("a", "Pull complete", 0, 0, ""), 150, 100, 150, "unpack"},
		{say("b", "Already exists", 0, 0, ""), 150, 150, 150, "unpack"}, // of an earlier try
	} {
		if c.got.Done != c.done || c.got.DoneUnpack != c.unpack || c.got.Total != c.tot || c.got.Stage != c.stage {
			t.Errorf("%d: %+v", i, c.got)
		}
	}
}

func TestSpecRefuses(t *testing.T) {
	good := engineSpec(anImage, "good")
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Spec){
		"no digest":          func(s *Spec) { s.Image.Digest = "sha256:1" },
		"a tag":              func(s *Spec) { s.Image.Digest = "latest" },
		"no name":            func(s *Spec) { s.Name = "" },
		"a name with /":      func(s *Spec) { s.Name = "a/b" },
		"no instance":        func(s *Spec) { s.Instance = "" },
		"a negative user":    func(s *Spec) { s.UID = -1 },
		"no port":            func(s *Spec) { s.Ports = []Port{{0, 1}} },
		"a port too high":    func(s *Spec) { s.Ports = []Port{{1, 65536}} },
		"a variable":         func(s *Spec) { s.Env = []string{"NOVALUE"} },
		"a variable's line":  func(s *Spec) { s.Env = []string{"A=b\nC=d"} },
		"an argument's NUL":  func(s *Spec) { s.Argv = []string{"a\x00b"} },
		"too much memory":    func(s *Spec) { s.ShmBytes = maxShm + 1 },
		"a relative tmpfs":   func(s *Spec) { s.Tmpfs = []string{"tmp"} },
		"a tmpfs over all":   func(s *Spec) { s.Tmpfs = []string{"/"} },
		"a GPU without mode": func(s *Spec) { s.GPU.UUID = "GPU-1111" },
	} {
		s := good
		change(&s)
		if err := s.Validate(); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, source := range []string{"", "models", "/", "/run", "/run/docker.sock", "/var/run", "/var/run/docker.sock", "/home/u/docker.sock", "/srv/containerd.sock",
		"/models/../run", "/models/", "//models", "/a:b", "/proc", "/sys/fs", "/dev", "/etc", "/var", "/var/lib/docker/volumes", "/x\ny"} {
		s := good
		s.Mounts = []Mount{{source, "/m", true}}
		if err := s.Validate(); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%q may be mounted: %v", source, err)
		}
	}
	for _, source := range []string{"/home/u/models", "/runs/here", "/var/runtime", "/srv/m", "/devices"} {
		s := good
		s.Mounts = []Mount{{source, "/m", true}}
		if err := s.Validate(); err != nil {
			t.Errorf("%q may not be mounted: %v", source, err)
		}
	}
}

// A secret in a variable must not come back in the complaint about it.
func TestSpecKeepsSecrets(t *testing.T) {
	s := engineSpec(anImage, "secret")
	s.Env = []string{"HF_TOKEN=hf_secret\n"}
	if err := s.Validate(); err == nil || strings.Contains(err.Error(), "hf_secret") {
		t.Errorf("%v", err)
	}
}

func TestConfig(t *testing.T) {
	ok := Config{Dial: stubDial}
	for name, change := range map[string]func(*Config){
		"no dial":          func(c *Config) { c.Dial = nil },
		"nobody's journal": func(c *Config) { c.Journal = &brokenJournal{} },
		"a negative bound": func(c *Config) { c.PullStall = -1 },
	} {
		c := ok
		change(&c)
		if _, err := New(c); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzPullStream(f *testing.F) {
	f.Add([]byte(`{"status":"Downloading","progressDetail":{"current":5,"total":10},"id":"a"}` + "\r\n" + `{"status":"Pull complete","id":"a"}` + "\n"))
	f.Add([]byte(`{"errorDetail":{"code":401,"message":"unauthorized"},"error":"unauthorized"}`))
	f.Add([]byte(`{"status":"Extracting","progressDetail":{"current":9223372036854775807,"total":-1,"units":"s"},"id":"b"}`))
	f.Add([]byte("\n\n{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &pull{c: &Client{cfg: Config{Now: fixedNow}}, ref: "x", tally: newTally()}
		err := p.read(bytes.NewReader(data), func() {})
		if b := p.tally.best; b.Done < 0 || b.Done > b.Total || b.DoneUnpack > b.Total {
			t.Errorf("%+v", b)
		}
		if err != nil {
			if _, named := judgePull(err, "x"); named == nil || named.Code == "" {
				t.Errorf("%v has no name", err)
			}
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add([]byte(`{"ID":"x","ServerVersion":"28.2.0","Runtimes":{"runc":{"path":"runc"}},"DiscoveredDevices":[{"Source":"cdi","ID":"nvidia.com/gpu=GPU-1"}],"CDISpecDirs":["/etc/cdi"]}`))
	f.Add([]byte(`{"ServerErrors":["no"]}`))
	f.Add([]byte(`{"DefaultAddressPools":[{"Base":"10.0.0.0/8","Size":24}],"DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]],"ServerVersion":"1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := parseInfo(data, moby.ServerVersionResult{APIVersion: "1.50"})
		if (err == nil) != info.Reachable || err == nil && info.Version == "" {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

func FuzzSameImage(f *testing.F) {
	f.Add("docker.io/library/busybox@"+anImage.Digest, "busybox")
	f.Add("localhost:5000/x:y@"+anImage.Digest, "localhost:5000/x")
	f.Fuzz(func(t *testing.T, ref, repository string) {
		if SameImage(ref, berth.Image{Repository: repository, Digest: anImage.Digest}) && !strings.HasSuffix(ref, "@"+anImage.Digest) {
			t.Errorf("%q is not %q", ref, repository)
		}
	})
}
