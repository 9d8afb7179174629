// Package scope moves processes into a transient scope of the user's systemd
// manager, so that the end of the service or the terminal that started them
// does not take them along. systemd kills what is in a unit's cgroup when the
// unit stops; a process in a scope of its own is not in it.
//
// It speaks to the manager itself, over the session bus or the manager's own
// socket, and starts no bus where none runs. One connection serves one call.
package scope

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/godbus/dbus/v5"

	"berth"
)

// Manager is where the user's systemd manager can be reached. The zero value
// is no manager.
type Manager struct {
	Bus     string // address of the session bus, "unix:path=…"; "" = none
	Private string // path of the manager's own socket, for users without a bus; "" = none
}

// Find looks where a manager would be reached, from the environment. It only
// looks at the file system: whether something answers shows at Start.
func Find(getenv func(string) string) Manager {
	var m Manager
	runtime := getenv("XDG_RUNTIME_DIR")
	if addr := getenv("DBUS_SESSION_BUS_ADDRESS"); addr != "" && addr != "autolaunch:" {
		m.Bus = addr
	} else if bus := filepath.Join(runtime, "bus"); filepath.IsAbs(bus) && isSocket(bus) {
		m.Bus = "unix:path=" + dbus.EscapeBusAddressValue(bus)
	}
	if private := filepath.Join(runtime, "systemd", "private"); filepath.IsAbs(private) && isSocket(private) {
		m.Private = private
	}
	return m
}

// There reports whether there is a manager to ask. A session bus alone is
// none: it may be that of a desktop without systemd, and then Start fails.
func (m Manager) There() bool { return m.Bus != "" || m.Private != "" }

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeSocket != 0
}

// Unit is a scope to be.
type Unit struct {
	Name        string // with its suffix: "berth-guest-4711.scope"; unique while it lives
	Description string
	PIDs        []int // moved into it; at least one
}

// Holders gives the function that moves a holder into a scope of its own, and
// nil where there is no manager to ask.
func Holders(getenv func(string) string) func(ctx context.Context, pid int) error {
	m := Find(getenv)
	if !m.There() {
		return nil
	}
	return func(ctx context.Context, pid int) error {
		return Start(ctx, m, Unit{
			Name:        "berth-session-" + strconv.Itoa(pid) + ".scope",
			Description: "berth session",
			PIDs:        []int{pid},
		})
	}
}

// Names on the bus.
const (
	systemdName   = "org.freedesktop.systemd1"
	systemdPath   = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerIface  = "org.freedesktop.systemd1.Manager"
	startTimeout  = 3 * time.Second // the manager does this in milliseconds; who waits is starting a program
	signalBacklog = 16              // jobs of others that end while ours runs
)

// property is one setting of a unit, as the bus writes it: (sv).
type property struct {
	Name  string
	Value dbus.Variant
}

// auxiliary is another unit to start along, (sa(sv)); we have none.
type auxiliary struct {
	Name       string
	Properties []property
}

// Start makes the scope and returns when its processes are in it. The scope is
// delegated: what runs in it may make cgroups below. The caller goes on without
// a scope when it fails; the error says what could not be had.
func Start(ctx context.Context, m Manager, u Unit) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, bus, err := m.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is sent after the answer
	signals := make(chan *dbus.Signal, signalBacklog)
	conn.Signal(signals)
	manager := conn.Object(systemdName, systemdPath)
	if bus {
		err = conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(managerIface), dbus.WithMatchMember("JobRemoved"))
	}
	if err == nil { // the manager sends its signals only to who asked
		err = manager.CallWithContext(ctx, managerIface+".Subscribe", 0).Err
	}
	if err != nil {
		return fmt.Errorf("ask the systemd manager for its signals: %w", err)
	}
	var job dbus.ObjectPath
	err = manager.CallWithContext(ctx, managerIface+".StartTransientUnit", 0,
		u.Name, "fail", u.properties(), []auxiliary{}).Store(&job)
	if err != nil {
		return fmt.Errorf("start the scope %s: %w", u.Name, err)
	}
	return waitJob(ctx, signals, job, u.Name)
}

func (u Unit) properties() []property {
	pids := make([]uint32, 0, len(u.PIDs))
	for _, pid := range u.PIDs {
		pids = append(pids, uint32(pid)) //nolint:gosec // a PID is positive
	}
	return []property{
		{"Description", dbus.MakeVariant(u.Description)},
		{"PIDs", dbus.MakeVariant(pids)},
		{"Delegate", dbus.MakeVariant(true)},
		// A scope that failed would keep its name for ever otherwise.
		{"CollectMode", dbus.MakeVariant("inactive-or-failed")},
	}
}

func waitJob(ctx context.Context, signals <-chan *dbus.Signal, job dbus.ObjectPath, unit string) error {
	for {
		select {
		case s, ok := <-signals:
			if !ok {
				return fmt.Errorf("start the scope %s: the manager closed the connection", unit)
			}
			var id uint32
			var path dbus.ObjectPath
			var name, result string
			if s.Name != managerIface+".JobRemoved" || dbus.Store(s.Body, &id, &path, &name, &result) != nil || path != job {
				continue
			}
			if result != "done" {
				return fmt.Errorf("start the scope %s: the job ended with %q", unit, result)
			}
			return nil
		case <-ctx.Done():
			return berth.Errorf(berth.CodeTimeout, "start the scope %s: %w", unit, ctx.Err())
		}
	}
}

// connect reaches the manager: over the bus, else over its own socket.
func (m Manager) connect(ctx context.Context) (conn *dbus.Conn, bus bool, err error) {
	err = berth.Errorf(berth.CodeNotFound, "no systemd user manager was found")
	if m.Bus != "" {
		if conn, err = dial(ctx, m.Bus); err == nil {
			if err = conn.Hello(); err == nil {
				return conn, true, nil
			}
			_ = conn.Close() // the failure of Hello is the one to report
		}
	}
	if m.Private != "" {
		if conn, err = dial(ctx, "unix:path="+dbus.EscapeBusAddressValue(m.Private)); err == nil {
			return conn, false, nil
		}
	}
	return nil, false, fmt.Errorf("reach the systemd user manager: %w", err)
}

// dial authenticates by uid, not by name: a look-up of the name needs files
// that a minimal system does not have.
func dial(ctx context.Context, address string) (*dbus.Conn, error) {
	conn, err := dbus.Dial(address, dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))}); err != nil {
		_ = conn.Close() // the failure of Auth is the one to report
		return nil, err
	}
	return conn, nil
}
