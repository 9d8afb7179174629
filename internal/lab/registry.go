package lab

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"berth"
)

// Fault is a way in which a repository of a Registry fails. The zero Fault is
// none.
type Fault struct {
	// Times is how many answers fail before the repository is well again; 0 = all.
	Times int
	// Status answers every request with it.
	Status int
	// AtByte is where a layer's answer breaks: Stall = it sends no more, Cut = the
	// connection ends, neither = a byte is changed.
	AtByte     int64
	Stall, Cut bool
	Corrupt    bool
	// LieManifest answers another manifest than the digest says.
	LieManifest bool
	// MinBlob leaves smaller blobs (configurations) alone. 0 = 4 KiB.
	MinBlob int64
	// BytesPerSecond slows layers down; it never heals. 0 = as fast as it goes.
	BytesPerSecond int64
}

// Registry is a registry in this process, on 127.0.0.1.
type Registry struct {
	Host  string // "127.0.0.1:port"
	srv   *httptest.Server
	store http.Handler // a registry without faults
	mu    sync.Mutex
	bad   map[string]*Fault
	hits  map[string]int
	over  chan struct{} // closed when the test ends, so that no stalled answer outlives it
}

// NewRegistry starts one; it ends with the test.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	r := &Registry{bad: map[string]*Fault{}, hits: map[string]int{}, over: make(chan struct{})}
	r.store = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.srv = httptest.NewServer(http.HandlerFunc(r.serve))
	r.Host = r.srv.Listener.Addr().String()
	t.Cleanup(func() {
		close(r.over)
		r.srv.CloseClientConnections()
		r.srv.Close()
	})
	return r
}

// Close ends the registry before the test does: it cannot be reached any more.
func (r *Registry) Close() { r.srv.CloseClientConnections(); r.srv.Close() }

// Push stores an image in a repository and names it by its digest.
func (r *Registry) Push(t testing.TB, repository string, img Image) berth.Image {
	t.Helper()
	put := func(path, mediaType string, body []byte) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPut, path, bytes.NewReader(body))
		if mediaType == "" { // a blob, in one piece
			req.Method = http.MethodPost
		}
		req.Header.Set("Content-Type", mediaType)
		answer := httptest.NewRecorder()
		r.store.ServeHTTP(answer, req)
		if answer.Code != http.StatusCreated {
			t.Fatalf("lab: push to %s: %d %s", path, answer.Code, answer.Body)
		}
	}
	for digest, b := range img.Blobs {
		put("/v2/"+repository+"/blobs/uploads/?digest="+digest, "", b)
	}
	put("/v2/"+repository+"/manifests/"+img.Digest, typeManifest, img.Manifest)
	image := berth.Image{Repository: r.Host + "/" + repository, Digest: img.Digest}
	for _, n := range img.Layers {
		image.DownloadBytes += n
	}
	return image
}

// Break makes a repository fail from now on.
func (r *Registry) Break(repository string, f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad[repository] = &f
}

// Requests counts the reads of manifests and blobs of a repository so far.
func (r *Registry) Requests(repository string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hits[repository]
}

// repositoryOf reads /v2/REPOSITORY/blobs/… and /v2/REPOSITORY/manifests/….
func repositoryOf(path string) (repository, kind string) {
	path = strings.TrimPrefix(path, "/v2/")
	for _, kind := range []string{"blobs", "manifests"} {
		if i := strings.LastIndex(path, "/"+kind+"/"); i > 0 {
			return path[:i], kind
		}
	}
	return "", ""
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	repository, kind := repositoryOf(req.URL.Path)
	if repository == "" || (req.Method != http.MethodGet && req.Method != http.MethodHead) {
		r.store.ServeHTTP(w, req)
		return
	}
	f := r.fault(repository)
	if f.Status != 0 && r.spend(repository) {
		refuse(w, f.Status)
		return
	}
	from := rangeOf(req) // the store knows no range without an end
	req.Header.Del("Range")
	answer := httptest.NewRecorder()
	r.store.ServeHTTP(answer, req)
	body := answer.Body.Bytes()
	if size := int64(len(body)); from > 0 && from < size && answer.Code == http.StatusOK && req.Method == http.MethodGet {
		body, answer.Code = body[from:], http.StatusPartialContent
		answer.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
		answer.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	if f.LieManifest && kind == "manifests" && answer.Code == http.StatusOK && r.spend(repository) {
		body = bytes.Replace(body, []byte(`"schemaVersion":2`), []byte(`"schemaVersion" :2`), 1)
		answer.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.Code)
	if req.Method == http.MethodHead {
		return
	}
	if kind != "blobs" || int64(len(body)) < max(f.MinBlob, 4<<10) {
		_, _ = w.Write(body) // the client's end is the client's matter
		return
	}
	r.layer(w, req, f, repository, body)
}

// rangeOf is where "bytes=N-" begins; 0 = there is no such range.
func rangeOf(req *http.Request) int64 {
	var from int64
	if _, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-", &from); err != nil {
		return 0
	}
	return from
}

// layer writes a layer, broken where the fault says.
func (r *Registry) layer(w http.ResponseWriter, req *http.Request, f Fault, repository string, body []byte) {
	broken := (f.Stall || f.Cut || f.Corrupt) && r.spend(repository)
	if broken && f.Corrupt {
		body = bytes.Clone(body)
		body[min(f.AtByte, int64(len(body)-1))] ^= 0xff
	}
	part := body
	if broken && !f.Corrupt {
		part = body[:min(f.AtByte, int64(len(body)))]
	}
	if !r.send(w, req, part, f.BytesPerSecond) || len(part) == len(body) {
		return
	}
	if f.Stall {
		select {
		case <-req.Context().Done():
		case <-r.over:
		}
	}
	panic(http.ErrAbortHandler) // cuts the connection
}

// send writes at most so many bytes a second.
func (r *Registry) send(w http.ResponseWriter, req *http.Request, b []byte, rate int64) bool {
	step := int64(len(b))
	if rate > 0 {
		step = max(1, rate/50)
	}
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	for len(b) > 0 {
		n := min(step, int64(len(b)))
		if _, err := w.Write(b[:n]); err != nil {
			return false
		}
		if b = b[n:]; len(b) == 0 {
			break
		}
		_ = http.NewResponseController(w).Flush() // a client that is gone shows at the next write
		select {
		case <-tick.C:
		case <-req.Context().Done():
			return false
		case <-r.over:
			return false
		}
	}
	_ = http.NewResponseController(w).Flush() // as above
	return true
}

func (r *Registry) fault(repository string) Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits[repository]++
	if f := r.bad[repository]; f != nil {
		return *f
	}
	return Fault{}
}

// spend uses up one failure; false = it is well again.
func (r *Registry) spend(repository string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.bad[repository]
	if f == nil {
		return false
	}
	if f.Times == 0 {
		return true
	}
	if f.Times < 0 {
		return false
	}
	if f.Times--; f.Times == 0 {
		f.Times = -1 // spent: this one was the last
	}
	return true
}

func refuse(w http.ResponseWriter, status int) {
	code := map[int]string{404: "MANIFEST_UNKNOWN", 401: "UNAUTHORIZED", 403: "DENIED", 429: "TOOMANYREQUESTS"}[status]
	if code == "" {
		code = "UNKNOWN"
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"errors":[{"code":"`+code+`","message":"`+strings.ToLower(code)+`"}]}`) // as in serve
}
