package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"berth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample is a release that has every member.
func sample() map[string]any {
	return map[string]any{
		"v": 1, "id": "toy-1.0-r1", "engine": "toy", "version": "1.0",
		"images":                 map[string]any{"linux/amd64": image("example.org/toy/server", "a")},
		"check_images":           map[string]any{"linux/amd64": image("example.org/toy/check", "b")},
		"min_compute_capability": "7.5", "min_driver": "525.60.13",
		"required_disk_bytes": 1000, "port": 8000, "health": "/health",
		"args":          map[string]any{"context_length": []any{"--ctx", "{}"}},
		"formats":       []any{map[string]any{"name": "bf16"}, map[string]any{"name": "fp8", "min_compute_capability": "8.9"}},
		"architectures": []any{map[string]any{"name": "Qwen3*", "tool_parser": "hermes", "reasoning_parser": "qwen3"}},
		"models":        []any{map[string]any{"repository": "Toy/Small", "revision": strings.Repeat("0a", 20), "format": "bf16", "bytes": 5}},
		"notices":       []any{"a licence"}, "unknown": []any{"the size"}, "source": "a test",
	}
}

func image(repository, digit string) map[string]any {
	return map[string]any{"repository": repository, "digest": "sha256:" + strings.Repeat(digit, 64), "download_bytes": 10, "uncompressed_bytes": 20}
}

func document(t testing.TB, doc any) []byte {
	t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseReadsEveryMember(t *testing.T) {
	r, err := Parse(document(t, sample()))
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(r)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the sample leaves %s out, or it was not read", v.Type().Field(i).Name)
		}
	}
	again, err := Parse(document(t, r))
	if err != nil || !reflect.DeepEqual(r, again) {
		t.Errorf("written and read again it is another: %v", err)
	}
}

// TestChangedDocumentsAreRefused changes one thing of a good document at a time.
func TestChangedDocumentsAreRefused(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	img := func(doc map[string]any) map[string]any {
		return doc["images"].(map[string]any)["linux/amd64"].(map[string]any)
	}
	for name, change := range map[string]func(doc map[string]any){
		"no version of the format":  func(d map[string]any) { delete(d, "v") },
		"a newer format":            func(d map[string]any) { d["v"] = 2 },
		"v as a text":               func(d map[string]any) { d["v"] = "1" },
		"v as a fraction":           func(d map[string]any) { d["v"] = 1.5 },
		"unknown member":            func(d map[string]any) { d["command"] = "rm" },
		"member in other letters":   func(d map[string]any) { d["Engine"] = "toy" },
		"unknown member of image":   func(d map[string]any) { img(d)["tag"] = "latest" },
		"member that is null":       func(d map[string]any) { d["args"] = nil },
		"element that is null":      func(d map[string]any) { d["formats"] = []any{nil} },
		"no id":                     func(d map[string]any) { delete(d, "id") },
		"id that leaves the folder": func(d map[string]any) { d["id"] = "../x" },
		"id in capitals":            func(d map[string]any) { d["id"] = "Toy" },
		"id too long":               func(d map[string]any) { d["id"] = strings.Repeat("a", 65) },
		"no engine":                 func(d map[string]any) { delete(d, "engine") },
		"no version":                func(d map[string]any) { delete(d, "version") },
		"version with a new line":   func(d map[string]any) { d["version"] = "1\n2" },
		"version too long":          func(d map[string]any) { d["version"] = strings.Repeat("1", 65) },
		"no image":                  func(d map[string]any) { d["images"] = map[string]any{} },
		"unknown platform": func(d map[string]any) {
			d["images"].(map[string]any)["plan9/386"] = image("example.org/toy/server", "c")
		},
		"platform without a check": func(d map[string]any) {
			d["images"].(map[string]any)["linux/arm64"] = image("example.org/toy/server", "c")
		},
		"check without an image": func(d map[string]any) {
			d["check_images"].(map[string]any)["linux/arm64"] = image("example.org/toy/check", "c")
		},
		"digest too short":                  func(d map[string]any) { img(d)["digest"] = "sha256:abc" },
		"digest in capitals":                func(d map[string]any) { img(d)["digest"] = "sha256:" + strings.Repeat("A", 64) },
		"digest of another kind":            func(d map[string]any) { img(d)["digest"] = "sha512:" + strings.Repeat("a", 64) },
		"no digest":                         func(d map[string]any) { delete(img(d), "digest") },
		"repository with a tag":             func(d map[string]any) { img(d)["repository"] = "example.org/toy/server:latest" },
		"repository without a registry":     func(d map[string]any) { img(d)["repository"] = "toy/server" },
		"repository in Docker's short form": func(d map[string]any) { img(d)["repository"] = "docker.io/toy" },
		"repository with a scheme":          func(d map[string]any) { img(d)["repository"] = "https://example.org/toy" },
		"negative size":                     func(d map[string]any) { img(d)["download_bytes"] = -1 },
		"size beyond sense":                 func(d map[string]any) { img(d)["uncompressed_bytes"] = int64(1) << 50 },
		"size beyond the number":            func(d map[string]any) { img(d)["download_bytes"] = json.Number("1e30") },
		"capability as words":               func(d map[string]any) { d["min_compute_capability"] = "ampere" },
		"check without a GPU":               func(d map[string]any) { delete(d, "min_compute_capability"); delete(d, "min_driver") },
		"driver without a GPU":              func(d map[string]any) { delete(d, "min_compute_capability"); delete(d, "check_images") },
		"driver as words":                   func(d map[string]any) { d["min_driver"] = ">=525" },
		"driver beyond sense":               func(d map[string]any) { d["min_driver"] = strings.Repeat("9", 30) },
		"negative disk":                     func(d map[string]any) { d["required_disk_bytes"] = -1 },
		"disk beyond sense":                 func(d map[string]any) { d["required_disk_bytes"] = int64(1) << 60 },
		"port 0":                            func(d map[string]any) { d["port"] = 0 },
		"port too high":                     func(d map[string]any) { d["port"] = 65536 },
		"health is a URL":                   func(d map[string]any) { d["health"] = "http://example.org/" },
		"health with a query":               func(d map[string]any) { d["health"] = "/health?x=1" },
		"args is a list":                    func(d map[string]any) { d["args"] = []any{} },
		"setting with a blank":              func(d map[string]any) { d["args"] = map[string]any{"a b": []any{"x"}} },
		"setting without words":             func(d map[string]any) { d["args"] = map[string]any{"a": []any{}} },
		"setting with many words":           func(d map[string]any) { d["args"] = map[string]any{"a": strings.Split(strings.Repeat("x ", 17), " ")} },
		"argument with a zero":              func(d map[string]any) { d["args"] = map[string]any{"a": []any{"x\x00"}} },
		"two places for one value":          func(d map[string]any) { d["args"] = map[string]any{"a": []any{"{}", "{}"}} },
		"format twice":                      func(d map[string]any) { d["formats"] = append(d["formats"].([]any), map[string]any{"name": "bf16"}) },
		"format with a blank":               func(d map[string]any) { d["formats"].([]any)[1] = map[string]any{"name": "f p"} },
		"format's capability": func(d map[string]any) {
			d["formats"].([]any)[1] = map[string]any{"name": "fp8", "min_compute_capability": "x"}
		},
		"architecture twice": func(d map[string]any) {
			d["architectures"] = append(d["architectures"].([]any), map[string]any{"name": "Qwen3*"})
		},
		"star in the middle": func(d map[string]any) { d["architectures"] = []any{map[string]any{"name": "Q*3"}} },
		"parser is an option": func(d map[string]any) {
			d["architectures"] = []any{map[string]any{"name": "Q", "tool_parser": "--trust-remote-code"}}
		},
		"model of a branch":        func(d map[string]any) { d["models"].([]any)[0].(map[string]any)["revision"] = "main" },
		"model without an owner":   func(d map[string]any) { d["models"].([]any)[0].(map[string]any)["repository"] = "Small" },
		"model that climbs":        func(d map[string]any) { d["models"].([]any)[0].(map[string]any)["repository"] = "../Small" },
		"model of another format":  func(d map[string]any) { d["models"].([]any)[0].(map[string]any)["format"] = "gguf" },
		"model without a size":     func(d map[string]any) { delete(d["models"].([]any)[0].(map[string]any), "bytes") },
		"notice with an escape":    func(d map[string]any) { d["notices"] = []any{"\x1b[2J"} },
		"notice that turns around": func(d map[string]any) { d["notices"] = []any{"a\u202eb"} },
		"notice too long":          func(d map[string]any) { d["notices"] = []any{long} },
		"too many notices":         func(d map[string]any) { d["notices"] = strings.Split(strings.Repeat("x,", 20)+"x", ",") },
		"empty unknown":            func(d map[string]any) { d["unknown"] = []any{""} },
		"no source":                func(d map[string]any) { delete(d, "source") },
		"source too long":          func(d map[string]any) { d["source"] = long },
	} {
		t.Run(name, func(t *testing.T) {
			doc := sample()
			change(doc)
			if r, err := Parse(document(t, doc)); !errors.Is(err, berth.CodeReleaseInvalid) || r.ID != "" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// A registry of one's own, also on this machine, is named like any other.
func TestRegistriesThatAreTaken(t *testing.T) {
	for _, repository := range []string{"127.0.0.1:5000/lab/engine", "localhost:5000/x", "docker.io/vllm/vllm-openai", "registry.example.org/a/b/c_d"} {
		doc := sample()
		doc["images"] = map[string]any{"linux/amd64": image(repository, "a")}
		if _, err := Parse(document(t, doc)); err != nil {
			t.Errorf("%s: %v", repository, err)
		}
	}
}

// The files are documents that are wrong as text, whatever they mean.
func TestInvalidFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/invalid/*.json")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(data); !errors.Is(err, berth.CodeReleaseInvalid) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestDocumentsHaveABound(t *testing.T) {
	padded := append(document(t, sample()), make([]byte, MaxDocument)...)
	for i := range padded[len(padded)-MaxDocument:] {
		padded[len(padded)-MaxDocument+i] = ' '
	}
	if _, err := Parse(padded); !errors.Is(err, berth.CodeReleaseInvalid) {
		t.Errorf("too large: %v", err)
	}
	if _, err := Parse(padded[:MaxDocument]); err != nil {
		t.Errorf("at the bound: %v", err)
	}
}

// FuzzRelease holds that what is accepted keeps every bound, and is the same
// after it was written and read again: the cache is written from what was read.
func FuzzRelease(f *testing.F) {
	f.Add(document(f, sample()))
	files, err := filepath.Glob("releases/*.json")
	if err != nil {
		f.Fatal(err)
	}
	more, err := filepath.Glob("testdata/invalid/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, more...) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Parse(data)
		if err != nil {
			if !errors.Is(err, berth.CodeReleaseInvalid) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		for platform, image := range r.Images {
			if !berth.ValidDigest(image.Digest) || r.NeedsGPU() && r.CheckImages[platform].Digest == "" {
				t.Fatalf("%s: %+v", platform, r)
			}
		}
		again, err := Parse(document(t, r))
		if err != nil || !same(r, again) {
			t.Fatalf("%v\n%+v\n%+v", err, r, again)
		}
	})
}

func TestNatural(t *testing.T) {
	order := []string{"", "0.4.2", "0.31.0", "1.2.1", "1.10", "2026 build, number unknown", "b6999", "b7000"}
	for i, a := range order {
		for j, b := range order {
			if got, want := natural(a, b), compareInts(i, j); got != want {
				t.Errorf("%q to %q: %d, want %d", a, b, got, want)
			}
		}
	}
	if natural("r010", "r9") != 1 {
		t.Error("a leading zero makes a number small")
	}
}

func compareInts(a, b int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// The facts of the releases in the program are those that were published.
func TestEmbeddedReleases(t *testing.T) {
	s := newStore(t)
	want := map[string]string{
		"vllm-0.31.0-r1 linux/amd64":               "docker.io/vllm/vllm-openai@sha256:a4a4c0437bf7240089da5f08aa370c4aee17ae5290f7a3b468825ee26c4c3a6b",
		"vllm-0.31.0-r1 linux/arm64":               "docker.io/vllm/vllm-openai@sha256:3f7dd5b777d34d1724456ce71f87385dca288c3bb23029ab27dee358f5d2b971",
		"vllm-0.31.0-r1 check linux/amd64":         "nvcr.io/nvidia/cuda@sha256:605fb0c8acf8674e164d822da8a8521f3a655056e569f0899e72ae940e1fe7dc",
		"vllm-0.31.0-r1 check linux/arm64":         "nvcr.io/nvidia/cuda@sha256:1ca86773be1716af6cfff3d2eb8cd10d4d9cac181931d1ee9be792d3e33c7322",
		"tensorrt-llm-1.2.1-r1 linux/amd64":        "nvcr.io/nvidia/tensorrt-llm/release@sha256:cb4d8af81c586a90235ae3739b6d4ddc5d8336f2174c8a1c6b573d2e13faf5d7",
		"tensorrt-llm-1.2.1-r1 linux/arm64":        "nvcr.io/nvidia/tensorrt-llm/release@sha256:297c9c04055e142d53976cb8e7e7b314b0df148bbbaeb178494a80eddd885ecf",
		"tensorrt-llm-1.2.1-r1 check linux/amd64":  "nvcr.io/nvidia/cuda@sha256:0f4abb216c6d33bc4932a59d8157f9ad75b818ec17e283a401d9c7ce27efb49f",
		"tensorrt-llm-1.2.1-r1 check linux/arm64":  "nvcr.io/nvidia/cuda@sha256:f9f6d7ce4503015b0a21ff75ee2b2e1fbd28d791d860ede9a5063ecc04cca5fe",
		"llama.cpp-2026-cpu-r1 linux/amd64":        "ghcr.io/ggml-org/llama.cpp@sha256:fcca4dac388066ca93db561751e8caf5fc7d46d9df5f00a7422026db68468e31",
		"llama.cpp-2026-cuda-r1 linux/amd64":       "ghcr.io/ggml-org/llama.cpp@sha256:8557e3d273aa6010d46f355e826348b691ba3ddffccae8eaf0150596bbc3ec42",
		"llama.cpp-2026-cuda-r1 check linux/amd64": "nvcr.io/nvidia/cuda@sha256:605fb0c8acf8674e164d822da8a8521f3a655056e569f0899e72ae940e1fe7dc",
	}
	got := map[string]string{}
	for _, v := range s.List() {
		if !v.Embedded || v.Source == "" || len(v.Unknown) == 0 {
			t.Errorf("%s: embedded %v, source %q, unknown %v", v.ID, v.Embedded, v.Source, v.Unknown)
		}
		for platform, image := range v.Images {
			got[v.ID+" "+platform] = image.Reference()
		}
		for platform, image := range v.CheckImages {
			got[v.ID+" check "+platform] = image.Reference()
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if fmt.Sprint(s.Engines()) != "[llama.cpp tensorrt-llm vllm]" {
		t.Errorf("engines %v", s.Engines())
	}
}
