package environment

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"berth"
	"berth/guestapi"
)

// fixtureGuest is a machine out of testdata/facts/NAME/machine.txtar: files,
// programs with their recorded words, a Docker daemon that answers. What a
// fixture says is in testdata/facts/README.md. It can be changed while it is
// used, so that a test can make a machine ready.
type fixtureGuest struct {
	t testing.TB

	mu       sync.Mutex
	nodes    map[string]*fixtureNode
	denied   []string // these paths and all below them
	programs map[string]fixtureProgram
	answers  map[string]string // of the daemon, by path
	dial     string            // "" = it answers; refused, forbidden, hang, error
	space    map[string]guestapi.Space
	ran      [][]string // what was executed
	dials    int
	broken   error // every call fails with it
	serving  sync.WaitGroup
}

type fixtureNode struct {
	info guestapi.FileInfo
	data []byte
}

type fixtureProgram struct {
	stdout, stderr string
	code           int
	hang           bool
}

// fixtureManifest is machine.json of a fixture.
type fixtureManifest struct {
	Base    string                    `json:"base"` // another fixture, which this one changes
	Note    string                    `json:"note"` // what the machine is for
	Dirs    []string                  `json:"dirs"`
	Touch   []string                  `json:"touch"` // empty files
	Links   map[string]string         `json:"links"`
	Sockets map[string]int            `json:"sockets"` // path → group
	Modes   map[string]string         `json:"modes"`   // path → octal permission bits
	Bytes   map[string]string         `json:"bytes"`   // path → base64
	Absent  []string                  `json:"absent"`  // taken out of the base, with all below
	Denied  []string                  `json:"denied"`
	PCI     []string                  `json:"pci"`  // "VENDOR:DEVICE CLASS [DRIVER]"
	Dial    string                    `json:"dial"` // how the Docker socket behaves
	Space   map[string]guestapi.Space `json:"space"`
}

func newFixtureGuest(t testing.TB, name string) *fixtureGuest {
	t.Helper()
	g := &fixtureGuest{
		t: t, nodes: map[string]*fixtureNode{}, programs: map[string]fixtureProgram{},
		answers: map[string]string{}, space: map[string]guestapi.Space{},
	}
	g.put("/", guestapi.FileDir, nil, 0o755)
	g.load(name)
	t.Cleanup(g.serving.Wait)
	return g
}

func (g *fixtureGuest) load(name string) {
	g.t.Helper()
	a, err := txtar.ParseFile(filepath.Join("testdata", "facts", name, "machine.txtar"))
	if err != nil {
		g.t.Fatal(err)
	}
	if len(a.Files) == 0 || a.Files[0].Name != "machine.json" {
		g.t.Fatalf("fixture %s does not begin with machine.json", name)
	}
	var m fixtureManifest
	dec := json.NewDecoder(strings.NewReader(string(a.Files[0].Data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		g.t.Fatalf("fixture %s: machine.json: %v", name, err)
	}
	if m.Base != "" {
		g.load(m.Base)
	}
	for _, p := range m.Absent {
		g.remove(p)
	}
	for _, p := range m.Dirs {
		g.put(p, guestapi.FileDir, nil, 0o755)
	}
	for p, target := range m.Links {
		g.link(p, target)
	}
	for _, f := range a.Files[1:] {
		switch kind, rest, _ := strings.Cut(f.Name, " "); {
		case kind == "$":
			g.program(rest, string(f.Data))
		case strings.HasPrefix(f.Name, "docker/"):
			g.answers[strings.TrimPrefix(f.Name, "docker")] = string(f.Data)
		case path.IsAbs(f.Name):
			g.setFile(f.Name, string(f.Data))
		default:
			g.t.Fatalf("fixture %s has a part %q", name, f.Name)
		}
	}
	g.apply(m)
}

func (g *fixtureGuest) apply(m fixtureManifest) {
	for _, p := range m.Touch {
		g.setFile(p, "")
	}
	for p, gid := range m.Sockets {
		g.put(p, guestapi.FileSocket, nil, 0o660).info.GID = gid
	}
	for p, b64 := range m.Bytes {
		data, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			g.t.Fatal(err)
		}
		g.setFile(p, string(data))
	}
	for p, mode := range m.Modes {
		bits, err := strconv.ParseUint(mode, 8, 32)
		if err != nil {
			g.t.Fatal(err)
		}
		g.nodes[g.real(p)].info.Mode = uint32(bits)
	}
	for i, dev := range m.PCI {
		f := append(strings.Fields(dev), "")
		text := fmt.Sprintf("PCI_CLASS=%s\nPCI_ID=%s\nPCI_SLOT_NAME=0000:%02x:00.0\n", f[1], f[0], i+1)
		if f[2] != "" {
			text = "DRIVER=" + f[2] + "\n" + text
		}
		g.setFile(fmt.Sprintf("/sys/bus/pci/devices/0000:%02x:00.0/uevent", i+1), text)
	}
	g.denied = append(g.denied, m.Denied...)
	g.dial = cmp.Or(m.Dial, g.dial)
	for p, s := range m.Space {
		g.space[p] = s
	}
}

// program declares what "PATH ARGS…" says: the longest declared beginning of a
// command line counts. Leading lines of the text are "!exit N", "!hang" or
// "!stderr TEXT".
func (g *fixtureGuest) program(command, text string) {
	var p fixtureProgram
	for strings.HasPrefix(text, "!") {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		switch word, value, _ := strings.Cut(line[1:], " "); word {
		case "exit":
			p.code, _ = strconv.Atoi(value)
		case "hang":
			p.hang = true
		case "stderr":
			p.stderr += value + "\n"
		default:
			g.t.Fatalf("program %s: %q", command, line)
		}
	}
	p.stdout = text
	file, _, _ := strings.Cut(command, " ")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.programs[command] = p
	if g.nodes[g.real(file)] == nil {
		g.put(file, guestapi.FileRegular, nil, 0o755)
	}
}

// put makes a node and the directories above it.
func (g *fixtureGuest) put(name string, kind guestapi.FileType, data []byte, mode uint32) *fixtureNode {
	name = g.real(name)
	if name != "/" && g.nodes[path.Dir(name)] == nil {
		g.put(path.Dir(name), guestapi.FileDir, nil, 0o755)
	}
	n := &fixtureNode{info: guestapi.FileInfo{Path: name, Type: kind, Mode: mode, Size: int64(len(data))}, data: data}
	g.nodes[name] = n
	return n
}

func (g *fixtureGuest) link(name, target string) {
	g.put(name, guestapi.FileSymlink, nil, 0o777).info.Target = target
}

func (g *fixtureGuest) setFile(name, data string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.put(name, guestapi.FileRegular, []byte(data), 0o644)
}

// remove takes a path out, with all below it.
func (g *fixtureGuest) remove(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	name = g.real(name)
	for p := range g.nodes {
		if p == name || strings.HasPrefix(p, name+"/") {
			delete(g.nodes, p)
		}
	}
	for c := range g.programs {
		if file, _, _ := strings.Cut(c, " "); file == name {
			delete(g.programs, c)
		}
	}
}

// real follows the links among the directories above a path, not one at its end.
func (g *fixtureGuest) real(name string) string { return g.walk(name, false, 0) }

func (g *fixtureGuest) walk(name string, last bool, depth int) string {
	at := "/"
	parts := strings.Split(strings.Trim(path.Clean(name), "/"), "/")
	for i, part := range parts {
		at = path.Join(at, part)
		n := g.nodes[at]
		if n == nil || n.info.Type != guestapi.FileSymlink || i == len(parts)-1 && !last || depth > 16 {
			continue
		}
		target := n.info.Target
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(at), target)
		}
		at = g.walk(target, true, depth+1)
	}
	return at
}

// look finds a node as the guest would.
func (g *fixtureGuest) look(ctx context.Context, name string, follow bool) (*fixtureNode, error) {
	if err := g.fault(ctx); err != nil {
		return nil, err
	}
	real := g.walk(name, follow, 0)
	for _, d := range g.denied {
		if name == d || real == d || strings.HasPrefix(name, d+"/") || strings.HasPrefix(real, d+"/") {
			return nil, berth.Errorf(berth.CodeForbidden, "open %s: permission denied", name)
		}
	}
	n := g.nodes[real]
	if n == nil {
		return nil, berth.Errorf(berth.CodeNotFound, "open %s: no such file or directory", name)
	}
	return n, nil
}

func (g *fixtureGuest) fault(ctx context.Context) error {
	if g.broken != nil {
		return g.broken
	}
	return ctx.Err()
}

func (g *fixtureGuest) Stat(ctx context.Context, name string, follow bool) (guestapi.FileInfo, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, err := g.look(ctx, name, follow)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	info := n.info
	info.Path = name
	return info, nil
}

func (g *fixtureGuest) ReadFile(ctx context.Context, name string, limit int64) ([]byte, guestapi.FileInfo, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, err := g.look(ctx, name, true)
	switch {
	case err != nil:
		return nil, guestapi.FileInfo{}, err
	case n.info.Type != guestapi.FileRegular:
		return nil, guestapi.FileInfo{}, berth.Errorf(berth.CodeInvalidArgument, "%s is no file", name)
	case int64(len(n.data)) > limit:
		return nil, guestapi.FileInfo{}, berth.Errorf(berth.CodeTooLarge, "%s is larger than %d bytes", name, limit)
	}
	return slices.Clone(n.data), n.info, nil
}

func (g *fixtureGuest) ReadDir(ctx context.Context, name string) ([]guestapi.FileInfo, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n, err := g.look(ctx, name, true); err != nil {
		return nil, err
	} else if n.info.Type != guestapi.FileDir {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "%s is no directory", name)
	}
	var out []guestapi.FileInfo
	real := g.walk(name, true, 0)
	for p, n := range g.nodes {
		if p != "/" && path.Dir(p) == real {
			info := n.info
			info.Path = path.Join(name, path.Base(p))
			out = append(out, info)
		}
	}
	slices.SortFunc(out, func(a, b guestapi.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

func (g *fixtureGuest) Space(ctx context.Context, name string) (guestapi.Space, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.fault(ctx); err != nil {
		return guestapi.Space{}, err
	}
	for p := path.Clean(name); ; p = path.Dir(p) {
		if slices.Contains(g.denied, p) {
			return guestapi.Space{}, berth.Errorf(berth.CodeForbidden, "statfs %s: permission denied", p)
		}
		if s, ok := g.space[p]; ok {
			s.Path = p
			return s, nil
		}
		if p == "/" {
			return guestapi.Space{}, berth.Errorf(berth.CodeNotFound, "the fixture has no space at %s", name)
		}
	}
}

func (g *fixtureGuest) WriteFile(ctx context.Context, name string, data []byte, mode uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n, err := g.look(ctx, path.Dir(name), true); err != nil {
		return err
	} else if n.info.Type != guestapi.FileDir {
		return berth.Errorf(berth.CodeConflict, "%s is no directory", path.Dir(name))
	}
	g.put(name, guestapi.FileRegular, slices.Clone(data), mode)
	return nil
}

func (g *fixtureGuest) MkdirAll(ctx context.Context, name string, mode uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.fault(ctx); err != nil {
		return err
	}
	if n := g.nodes[g.walk(name, true, 0)]; n != nil {
		return nil
	}
	g.put(name, guestapi.FileDir, nil, mode)
	return nil
}

func (g *fixtureGuest) RemoveFile(ctx context.Context, name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := g.look(ctx, name, false); err != nil {
		return err
	}
	delete(g.nodes, g.real(name))
	return nil
}

func (g *fixtureGuest) Exec(ctx context.Context, e guestapi.Exec) (guestapi.ExecResult, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.fault(ctx); err != nil {
		return guestapi.ExecResult{}, err
	}
	g.ran = append(g.ran, slices.Clone(e.Argv))
	command, best, found := strings.Join(e.Argv, " "), "", false
	for c := range g.programs {
		if (command == c || strings.HasPrefix(command, c)) && len(c) >= len(best) {
			best, found = c, true
		}
	}
	if !found {
		g.t.Errorf("the fixture knows no program %q", command)
		return guestapi.ExecResult{}, berth.Errorf(berth.CodeCommandNotFound, "%s: not found", e.Argv[0])
	}
	p := g.programs[best]
	if p.hang {
		g.mu.Unlock()
		defer g.mu.Lock()
		select {
		case <-time.After(time.Duration(e.TimeoutMS) * time.Millisecond):
			return guestapi.ExecResult{Code: -1, Signal: "SIGKILL", TimedOut: true, Path: e.Argv[0]}, nil
		case <-ctx.Done():
			return guestapi.ExecResult{}, ctx.Err()
		}
	}
	return guestapi.ExecResult{Code: p.code, Stdout: []byte(p.stdout), Stderr: []byte(p.stderr), Path: e.Argv[0]}, nil
}

func (g *fixtureGuest) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if network != "unix" {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "the fixture dials no %s", network)
	}
	n, err := g.look(ctx, address, true)
	if err != nil {
		return nil, err
	}
	if n.info.Type != guestapi.FileSocket {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "%s is no socket", address)
	}
	g.dials++
	switch g.dial {
	case "refused":
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: syscall.ECONNREFUSED}
	case "forbidden":
		return nil, berth.Errorf(berth.CodeForbidden, "connect %s: permission denied", address)
	}
	near, far := net.Pipe()
	g.serving.Go(func() { g.serve(far) })
	return near, nil
}

// serve answers one request as the daemon.
func (g *fixtureGuest) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	g.mu.Lock()
	body, ok := g.answers[req.URL.Path]
	how := g.dial
	g.mu.Unlock()
	switch {
	case how == "hang":
		_, _ = io.Copy(io.Discard, conn) // until the other side gives up
		return
	case how == "error":
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 24\r\nConnection: close\r\n\r\n{\"message\":\"it is ill\"}\n")
	case !ok:
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	default: // in pieces, as the daemon sends what is long
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	}
}

// fixtures names all machines that are no base of others only.
func fixtures(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("testdata", "facts"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), "base-") {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		t.Fatal("there are no fixtures")
	}
	return names
}

var _ Guest = (*fixtureGuest)(nil)
