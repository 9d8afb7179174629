package lab

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path"
	"sync"
	"testing"
)

// Image is an image that can be pushed to a Registry.
type Image struct {
	Digest   string // of the manifest: "sha256:…"
	Manifest []byte
	Blobs    map[string][]byte // by digest: the configuration and the layers
	Layers   []int64           // compressed sizes
}

const (
	typeManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeConfig   = "application/vnd.docker.container.image.v1+json"
	typeLayer    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// imageConfig is what an image is started with.
type imageConfig struct {
	Entrypoint   []string            `json:",omitempty"`
	Cmd          []string            `json:",omitempty"`
	Env          []string            `json:",omitempty"`
	ExposedPorts map[string]struct{} `json:",omitempty"`
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Size      int64  `json:"size"`
	Digest    string `json:"digest"`
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// build makes an image of layers, each an uncompressed tar.
func build(t testing.TB, conf imageConfig, layers ...[]byte) Image {
	t.Helper()
	img := Image{Blobs: map[string][]byte{}}
	put := func(mediaType string, b []byte) descriptor {
		d := descriptor{mediaType, int64(len(b)), digestOf(b)}
		img.Blobs[d.Digest] = b
		return d
	}
	marshal := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var descs []descriptor
	var diffs []string
	for _, l := range layers {
		var buf bytes.Buffer
		w, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(l); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		descs = append(descs, put(typeLayer, buf.Bytes()))
		diffs = append(diffs, digestOf(l))
		img.Layers = append(img.Layers, int64(buf.Len()))
	}
	config := put(typeConfig, marshal(map[string]any{"architecture": "amd64", "os": "linux", "config": conf,
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs}}))
	img.Manifest = marshal(struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Config        descriptor   `json:"config"`
		Layers        []descriptor `json:"layers"`
	}{2, typeManifest, config, descs})
	img.Digest = digestOf(img.Manifest)
	return img
}

// made are the images that are the same for all tests of a process.
var made struct {
	sync.Mutex
	check, engine *Image
}

func once(kept **Image, build func() Image) Image {
	made.Lock()
	defer made.Unlock()
	if *kept == nil {
		img := build()
		*kept = &img
	}
	return **kept
}

// CheckImage is an image with /usr/bin/nvidia-smi, which prints the UUIDs of the
// cards that the container was given, and ends with 6 without any; and with
// /bin/probe: no argument = what it sees of itself as JSON; "exit N", "sleep",
// "stubborn" (hears no TERM), "flood BYTES".
func CheckImage(t testing.TB) Image {
	t.Helper()
	return once(&made.check, func() Image {
		return build(t, imageConfig{Cmd: []string{"/usr/bin/nvidia-smi", "-L"}, Env: []string{"PATH=/usr/bin:/bin"}},
			program(t, "usr/bin/nvidia-smi", "bin/probe"))
	})
}

// EngineImage is an image with a small server of the OpenAI API on port 8000
// that says "w0 w1 … wN". Its environment sets how it behaves: LAB_START_MS
// until it is healthy, LAB_TOKEN_MS between tokens, LAB_WORDS, LAB_MODEL,
// LAB_CRASH_MS, LAB_CRASH_CODE and LAB_CRASH_TEXT. It has /bin/probe too.
func EngineImage(t testing.TB) Image {
	t.Helper()
	return once(&made.engine, func() Image {
		return build(t, imageConfig{Entrypoint: []string{"/bin/engine"}, ExposedPorts: map[string]struct{}{"8000/tcp": {}}},
			program(t, "bin/engine", "bin/probe"))
	})
}

// RandomImage is an image with a layer of each size, of bytes that nothing
// compresses and that no other image has.
func RandomImage(t testing.TB, sizes ...int) Image {
	t.Helper()
	return build(t, imageConfig{Cmd: []string{"/blob"}}, randomLayers(t, sizes)...)
}

// RandomImagePair is two such images, of which the second has the first's layers
// and more.
func RandomImagePair(t testing.TB, both, second []int) (base, grown Image) {
	t.Helper()
	layers := randomLayers(t, both)
	conf := imageConfig{Cmd: []string{"/blob"}}
	return build(t, conf, layers...), build(t, conf, append(layers, randomLayers(t, second)...)...)
}

func randomLayers(t testing.TB, sizes []int) [][]byte {
	t.Helper()
	layers := make([][]byte, len(sizes))
	for i, size := range sizes {
		b := make([]byte, size)
		_, _ = rand.Read(b) // never fails
		layers[i] = tarOf(t, file{name: "blob", mode: 0o644, data: b})
	}
	return layers
}

type file struct {
	name string
	mode int64
	data []byte
	link string // hard link to that; "" = a file of its own
}

// program is a layer with the stand-in under the first name and links to it.
func program(t testing.TB, name string, links ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(Standin(t))
	if err != nil {
		t.Fatal(err)
	}
	files := []file{{name: name, mode: 0o755, data: b}}
	for _, l := range links {
		files = append(files, file{name: l, mode: 0o755, link: name})
	}
	return tarOf(t, files...)
}

// tarOf is a tar of the files and their directories, none of them twice.
func tarOf(t testing.TB, files ...file) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	dirs := map[string]bool{".": true}
	for _, f := range files {
		if dir := path.Dir(f.name); !dirs[dir] {
			dirs[dir] = true
			put(t, w, &tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
		}
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}
		if f.link != "" {
			h = &tar.Header{Name: f.name, Typeflag: tar.TypeLink, Linkname: f.link, Mode: f.mode}
		}
		put(t, w, h, f.data)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func put(t testing.TB, w *tar.Writer, h *tar.Header, data []byte) {
	t.Helper()
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
}
