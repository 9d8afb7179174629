package sqlite

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/durable"
)

// The test binary is also the programs that the tests kill and stop: a server
// of a store, one request a line over a unix socket, and a holder of a lease.
// And it is the keeper that gives a disk back after a killed test.
const (
	roleVar     = "BERTH_TEST_ROLE"
	socketVar   = "BERTH_TEST_SOCKET"
	pathVar     = "BERTH_TEST_STORE"
	roleServer  = "store-server"
	roleHolder  = "lease-holder"
	roleKeeper  = "disk-keeper"
	dirVar      = "BERTH_TEST_DISK"
	imageVar    = "BERTH_TEST_IMAGE"
	holderLease = 2 * time.Second
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case roleServer:
		serve(os.Getenv(pathVar), os.Getenv(socketVar))
	case roleHolder:
		hold(os.Getenv(socketVar))
	case roleWriter:
		writeShared(os.Getenv(pathVar))
	case roleKeeper:
		keepDisk(os.Getenv(dirVar), os.Getenv(imageVar))
	default:
		m.Run()
	}
}

// request is one call. Change, Guarded and TakeOver use Revision and Epoch.
type request struct {
	Op         string // begin get change takeover acquire renew release guarded
	ID         string // of the record, and the name of the lease
	Revision   int64
	Epoch      int64
	Value      int64
	Principal  string
	LeaseEpoch int64
	TTL        time.Duration
}

// reply is what came of it. A refusal with the current record brings it.
type reply struct {
	Code       berth.Code
	Created    bool
	Revision   int64
	Epoch      int64
	Value      int64
	Holder     string
	LeaseEpoch int64
	// Detail is for messages only.
	Detail string
}

// serve serves a store until it is killed. "ready" on its output says that it
// answers.
func serve(path, socket string) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	s, err := Open(ctx, Config{Path: path, Owner: berth.Identity{BootID: strings.TrimSpace(string(boot)), PID: os.Getpid()}})
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			in, out := json.NewDecoder(c), json.NewEncoder(c)
			var q request
			for in.Decode(&q) == nil && out.Encode(answer(ctx, s, q)) == nil {
				q = request{}
			}
		}()
	}
}

func answer(ctx context.Context, s durable.Store, q request) (a reply) {
	var r durable.Record
	var l berth.Lease
	var err error
	change := durable.Change{
		Kind: "register", ID: q.ID, Revision: q.Revision, Epoch: q.Epoch, State: fmt.Append(nil, q.Value),
		Events: []durable.EventDraft{{Kind: "register.changed"}},
	}
	switch q.Op {
	case "begin":
		r, a.Created, err = s.Begin(ctx, durable.Begin{Kind: "register", ID: q.ID, State: fmt.Append(nil, q.Value), IdempotencyKey: q.ID, Fingerprint: "f"})
	case "get":
		r, err = s.Get(ctx, "register", q.ID)
	case "change":
		r, err = s.Change(ctx, change)
	case "takeover":
		r, err = s.TakeOver(ctx, "register", q.ID, q.Revision, q.Epoch)
	case "guarded":
		r, err = s.Guarded(ctx, q.ID, q.LeaseEpoch, change)
	case "acquire":
		l, err = s.Acquire(ctx, durable.LeaseRequest{Name: q.ID, Principal: q.Principal, TTL: q.TTL})
	case "renew":
		l, err = s.Renew(ctx, q.ID, q.Principal, q.LeaseEpoch, q.TTL)
	case "release":
		err = s.Release(ctx, q.ID, q.Principal, q.LeaseEpoch)
	}
	if err != nil {
		var e *berth.Error
		if !errors.As(err, &e) {
			e = berth.Errorf(berth.CodeInternal, "%w", err)
		}
		a.Code, a.Detail, a.Holder = e.Code, e.Detail, e.Facts["principal"]
		var stale *durable.StaleError
		if errors.As(err, &stale) {
			r = stale.Current
		}
	}
	a.Revision, a.Epoch, a.LeaseEpoch = r.Revision, r.Epoch, l.Epoch
	if l.Name != "" {
		a.Holder = l.Principal
	}
	if r.State != nil {
		if err := json.Unmarshal(r.State, &a.Value); err != nil {
			a.Code, a.Detail = berth.CodeInternal, err.Error()
		}
	}
	return a
}

// caller is one connection to a server.
type caller struct {
	conn net.Conn
	in   *json.Decoder
	out  *json.Encoder
}

// dial connects once a server answers, within 30 s.
func dial(socket string) (*caller, error) {
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return &caller{conn: conn, in: json.NewDecoder(conn), out: json.NewEncoder(conn)}, nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return nil, fmt.Errorf("no server within 30 s: %w", err)
		}
	}
}

// call asks. After an error it is not known whether the call took effect.
func (c *caller) call(q request) (a reply, err error) {
	if err := c.out.Encode(q); err != nil {
		return a, err
	}
	return a, c.in.Decode(&a)
}

func (c *caller) close() { _ = c.conn.Close() }

// program is a role of this binary as a process of its own.
type program struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func startProgram(t *testing.T, role string, env ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), append(env, roleVar+"="+role)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{cmd: cmd, out: bufio.NewReader(out)}
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9, and returns when the process is gone.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	_ = p.cmd.Wait()         // it was killed, and says so
}

// line reads one line of its output.
func (p *program) line(t *testing.T) string {
	t.Helper()
	text, err := p.out.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) || text == "" {
		t.Fatalf("the program ended: %v", err)
	}
	return strings.TrimSpace(text)
}

// server is a store that can be killed and started again.
type server struct {
	t            *testing.T
	path, socket string
	p            *program
}

func startServer(t *testing.T) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "b") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &server{t: t, path: filepath.Join(dir, berth.FileStore), socket: filepath.Join(dir, "s")}
	s.start()
	return s
}

func (s *server) start() {
	s.t.Helper()
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	s.p = startProgram(s.t, roleServer, pathVar+"="+s.path, socketVar+"="+s.socket)
	if got := s.p.line(s.t); got != "ready" {
		s.t.Fatalf("the server says %q", got)
	}
}

func (s *server) restart() {
	s.t.Helper()
	s.p.kill()
	s.start()
}
