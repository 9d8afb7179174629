package daemon

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"berth"
)

// Settings is config.toml. Every key is optional; an unknown one is an error
// that names its line, since a key with a typing error that is silently
// ignored is a setting that silently is not in force.
type Settings struct {
	API       Listener             `toml:"api"`
	Gateway   Listener             `toml:"gateway"`
	Dashboard Listener             `toml:"dashboard"`
	Sessions  SessionSettings      `toml:"sessions"`
	Store     StoreSettings        `toml:"store"`
	Docker    DockerSettings       `toml:"docker"`
	Hosts     map[string]HostEntry `toml:"hosts"`
}

// Listener is an address to listen on: "" = off.
type Listener struct {
	Listen *string `toml:"listen"`
}

// SessionSettings are the defaults of new sessions.
type SessionSettings struct {
	LogBytes   int64            `toml:"log_bytes"`   // disk log of a session, in bytes; 0 = none
	RingBytes  int64            `toml:"ring_bytes"`  // memory ring of a session, in bytes
	SizePolicy berth.SizePolicy `toml:"size_policy"` // whose terminal decides
	DetachKey  string           `toml:"detach_key"`  // read by `berth attach`
}

// StoreSettings choose the store.
type StoreSettings struct {
	URL string `toml:"url"` // "" = SQLite in the state directory
}

// DockerSettings say where this machine's Docker answers, where that is not the
// usual place.
type DockerSettings struct {
	Socket string `toml:"socket"` // absolute path; "" = /var/run/docker.sock
}

// HostEntry is one [hosts.NAME]. It is parsed so that the file's shape is
// settled; no driver but local is built yet, and an entry says so.
type HostEntry struct {
	Driver  berth.DriverKind `toml:"driver"`
	Address string           `toml:"address"`
	Idle    string           `toml:"idle"`
}

const (
	maxConfigBytes = 1 << 20
	minRingBytes   = 4 << 10
	maxRingBytes   = 64 << 20
	minLogBytes    = 64 << 10 // a smaller log could not hold one segment
	maxLogBytes    = 16 << 30
)

// DefaultSettings are the settings of an empty file. 16 MiB of log hold some
// hours of an agent's output; 256 KiB of ring let a reader fall a few screens
// behind without touching the disk.
func DefaultSettings() Settings {
	return Settings{Sessions: SessionSettings{
		LogBytes:   16 << 20,
		RingBytes:  256 << 10,
		SizePolicy: berth.SizeLatest,
		DetachKey:  `ctrl-\ d`,
	}}
}

// LoadSettings reads the config file. A file that is not there is an empty one.
func LoadSettings(path string) (Settings, error) {
	data, err := berth.ReadFile(path, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return DefaultSettings(), nil
	}
	if err != nil {
		return Settings{}, berth.Errorf(berth.CodeConfigInvalid, "read the config file: %w", err)
	}
	s, err := ParseSettings(data)
	if e := (*berth.Error)(nil); errors.As(err, &e) {
		e.Detail = path + ": " + e.Detail
		return Settings{}, e.WithFact("path", path)
	}
	return s, err
}

// ParseSettings reads the text of a config file.
func ParseSettings(data []byte) (Settings, error) {
	s := DefaultSettings()
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&s)
	if unknown := (*toml.StrictMissingError)(nil); errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		first := unknown.Errors[0]
		line, _ := first.Position()
		return Settings{}, berth.Errorf(berth.CodeConfigUnknownKey, "line %d: unknown key %q", line, strings.Join(first.Key(), "."))
	}
	if bad := (*toml.DecodeError)(nil); errors.As(err, &bad) {
		line, col := bad.Position()
		return Settings{}, berth.Errorf(berth.CodeConfigInvalid, "line %d, column %d: %s", line, col, strings.TrimPrefix(bad.Error(), "toml: "))
	}
	if err != nil {
		return Settings{}, berth.Errorf(berth.CodeConfigInvalid, "%s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	return s, s.Validate()
}

// Validate checks values against their bounds.
func (s Settings) Validate() error {
	bad := func(format string, args ...any) *berth.Error {
		return berth.Errorf(berth.CodeConfigInvalid, format, args...)
	}
	ss := s.Sessions
	switch {
	case !ss.SizePolicy.Valid():
		return bad("sessions.size_policy %q is not latest, smallest or fixed", ss.SizePolicy)
	case ss.LogBytes != 0 && (ss.LogBytes < minLogBytes || ss.LogBytes > maxLogBytes):
		return bad("sessions.log_bytes %d is neither 0 nor within %d to %d", ss.LogBytes, minLogBytes, int64(maxLogBytes))
	case ss.RingBytes < minRingBytes || ss.RingBytes > maxRingBytes:
		return bad("sessions.ring_bytes %d is not within %d to %d", ss.RingBytes, minRingBytes, maxRingBytes)
	case s.Docker.Socket != "" && !filepath.IsAbs(s.Docker.Socket):
		return bad("docker.socket %q is not an absolute path", s.Docker.Socket)
	case s.Store.URL != "":
		return bad("store.url: only SQLite is built into this version").WithHint("remove store.url")
	}
	for name, h := range s.Hosts {
		if !berth.ValidName(name) || name == berth.LocalHost {
			return bad("hosts.%s is not a name that a host can have", name)
		}
		if !h.Driver.Valid() {
			return bad("hosts.%s.driver %q is not a kind of host", name, h.Driver)
		}
		return bad("hosts.%s: this version reaches only the local machine", name).WithHint("remove the [hosts." + name + "] table")
	}
	return validListen("api.listen", s.API.Listen)
}

// validListen takes loopback addresses alone: the API is for this machine's
// browsers and SDKs, and a port open to a network is not what the token is for.
func validListen(key string, addr *string) error {
	if addr == nil || *addr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(*addr)
	ip := net.ParseIP(host)
	if err != nil || ip == nil || !ip.IsLoopback() {
		return berth.Errorf(berth.CodeConfigInvalid, "%s %q is not a loopback address with a port", key, *addr).
			WithHint("write it like 127.0.0.1:1336")
	}
	return nil
}

func (l Listener) address() string {
	if l.Listen == nil {
		return ""
	}
	return *l.Listen
}
