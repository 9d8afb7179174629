package scope

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"go.uber.org/goleak"

	"berth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manager is a systemd manager of our making behind a real socket: it speaks
// the bus protocol, notes what is asked of it, and answers as it is told.
type manager struct {
	t      *testing.T
	result string // of the job; "" = it never ends
	refuse string // error name for StartTransientUnit; "" = none

	mu         sync.Mutex
	calls      []string
	name       string
	properties map[string]any
	wg         sync.WaitGroup
}

func (m *manager) serve() string {
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "bus")
	l, err := net.Listen("unix", path)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = l.Close()
		m.wg.Wait()
	})
	m.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			m.wg.Go(func() { m.talk(c) })
		}
	})
	return path
}

func (m *manager) talk(c net.Conn) {
	defer c.Close() //nolint:errcheck // a test's socket
	r := bufio.NewReader(c)
	if b, err := r.ReadByte(); err != nil || b != 0 {
		return
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		answer := "ERROR\r\n"
		switch {
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		case strings.HasPrefix(line, "AUTH"):
			answer = "REJECTED EXTERNAL\r\n"
		case strings.HasPrefix(line, "BEGIN"):
			answer = ""
		}
		if answer == "" {
			break
		}
		if _, err := c.Write([]byte(answer)); err != nil {
			return
		}
	}
	for {
		msg, err := dbus.DecodeMessage(r)
		if err != nil {
			return
		}
		m.answer(c, msg)
	}
}

func (m *manager) answer(c net.Conn, msg *dbus.Message) {
	member := msg.Headers[dbus.FieldMember].Value().(string)
	m.mu.Lock()
	m.calls = append(m.calls, member)
	m.mu.Unlock()
	switch member {
	case "Hello":
		m.reply(c, msg, ":1.1")
	case "AddMatch", "Subscribe":
		m.reply(c, msg)
	case "StartTransientUnit":
		if m.refuse != "" {
			m.send(c, dbus.TypeError, map[dbus.HeaderField]any{dbus.FieldReplySerial: msg.Serial(), dbus.FieldErrorName: m.refuse}, "no")
			return
		}
		m.note(msg)
		job := dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
		m.reply(c, msg, job)
		signal := func(path dbus.ObjectPath, result string) {
			m.send(c, dbus.TypeSignal, map[dbus.HeaderField]any{
				dbus.FieldPath: systemdPath, dbus.FieldInterface: managerIface, dbus.FieldMember: "JobRemoved", dbus.FieldSender: ":1.0",
			}, uint32(7), path, m.name, result)
		}
		signal("/org/freedesktop/systemd1/job/6", "failed") // somebody else's
		if m.result != "" {
			signal(job, m.result)
		}
	}
}

func (m *manager) note(msg *dbus.Message) {
	var mode string
	var props []property
	var aux []auxiliary
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := dbus.Store(msg.Body, &m.name, &mode, &props, &aux); err != nil {
		m.t.Errorf("StartTransientUnit: %v", err)
	}
	m.properties = map[string]any{}
	for _, p := range props {
		m.properties[p.Name] = p.Value.Value()
	}
	if mode != "fail" || len(aux) != 0 {
		m.t.Errorf("mode %s, aux %v", mode, aux)
	}
}

func (m *manager) reply(c net.Conn, msg *dbus.Message, body ...any) {
	m.send(c, dbus.TypeMethodReply, map[dbus.HeaderField]any{dbus.FieldReplySerial: msg.Serial()}, body...)
}

func (m *manager) send(c net.Conn, typ dbus.Type, headers map[dbus.HeaderField]any, body ...any) {
	msg := &dbus.Message{Type: typ, Headers: map[dbus.HeaderField]dbus.Variant{}, Body: body}
	for k, v := range headers {
		msg.Headers[k] = dbus.MakeVariant(v)
	}
	if len(body) > 0 {
		msg.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	// EncodeTo leaves the serial at zero, which a peer refuses; it stands at
	// bytes 8 to 11 of the message.
	var b strings.Builder
	if err := msg.EncodeTo(&b, binary.LittleEndian); err != nil {
		m.t.Errorf("encode: %v", err)
		return
	}
	raw := []byte(b.String())
	binary.LittleEndian.PutUint32(raw[8:], 1)
	_, _ = c.Write(raw) // the client may have gone
}

func TestStartMovesProcesses(t *testing.T) {
	for _, bus := range []bool{true, false} {
		m := &manager{t: t, result: "done"}
		path := m.serve()
		where := Manager{Private: path}
		if bus {
			where = Manager{Bus: "unix:path=" + path}
		}
		if err := Start(t.Context(), where, Unit{Name: "berth-x.scope", Description: "a session", PIDs: []int{42, 43}}); err != nil {
			t.Fatal(err)
		}
		m.mu.Lock()
		if m.name != "berth-x.scope" || m.properties["Delegate"] != true || m.properties["Description"] != "a session" {
			t.Errorf("unit %s with %v", m.name, m.properties)
		}
		if pids, ok := m.properties["PIDs"].([]uint32); !ok || len(pids) != 2 || pids[0] != 42 {
			t.Errorf("PIDs %v", m.properties["PIDs"])
		}
		calls := strings.Join(m.calls, " ")
		m.mu.Unlock()
		if want := map[bool]string{true: "Hello AddMatch Subscribe StartTransientUnit", false: "Subscribe StartTransientUnit"}[bus]; calls != want {
			t.Errorf("calls %s, want %s", calls, want)
		}
	}
}

func TestStartFails(t *testing.T) {
	refusing := &manager{t: t, refuse: "org.freedesktop.systemd1.UnitExists"}
	failing := &manager{t: t, result: "failed"}
	silent := &manager{t: t}
	for name, where := range map[string]Manager{
		"nowhere":       {},
		"no socket":     {Bus: "unix:path=/nonexistent/bus"},
		"refused":       {Bus: "unix:path=" + refusing.serve()},
		"job failed":    {Bus: "unix:path=" + failing.serve()},
		"odd address":   {Bus: "carrier-pigeon:"},
		"never answers": {Private: silent.serve()},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := Start(ctx, where, Unit{Name: "berth-x.scope", PIDs: []int{1}})
		cancel()
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if name == "never answers" && !errors.Is(err, berth.CodeTimeout) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestABusWithoutSystemdFallsBackToThePrivateSocket(t *testing.T) {
	m := &manager{t: t, result: "done"}
	if err := Start(t.Context(), Manager{Bus: "unix:path=/nonexistent/bus", Private: m.serve()}, Unit{Name: "berth-x.scope", PIDs: []int{1}}); err != nil {
		t.Error(err)
	}
}

func TestFind(t *testing.T) {
	runtime, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(runtime) //nolint:errcheck // a test's directory
	env := map[string]string{"XDG_RUNTIME_DIR": runtime}
	getenv := func(name string) string { return env[name] }
	if m := Find(getenv); m.There() {
		t.Errorf("found %+v in an empty directory", m)
	}
	if m := Find(func(string) string { return "" }); m.There() {
		t.Errorf("found %+v without a directory", m)
	}
	l, err := net.Listen("unix", filepath.Join(runtime, "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a test's socket
	if m := Find(getenv); m.Bus != "unix:path="+runtime+"/bus" {
		t.Errorf("found %+v", m)
	}
	env["DBUS_SESSION_BUS_ADDRESS"] = "unix:abstract=x"
	if m := Find(getenv); m.Bus != "unix:abstract=x" {
		t.Errorf("found %+v", m)
	}
}
