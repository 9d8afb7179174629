package cli

import (
	"errors"
	"io/fs"

	"github.com/pelletier/go-toml/v2"

	"berth"
)

// maxConfig bounds the config file, as the daemon does.
const maxConfig = 1 << 20

// settings is the part of config.toml that is about this side. The daemon reads
// the whole of it, and refuses what it does not know.
type settings struct {
	Sessions struct {
		DetachKey string `toml:"detach_key"`
	} `toml:"sessions"`
}

// detachKeyText is the detach key of the config file, else the usual one. A file
// that cannot be read must not keep anybody from a session: it is a note.
func (a *app) detachKeyText() string {
	paths, err := a.paths()
	if err != nil || paths.Config == "" {
		return defaultDetachKey
	}
	data, err := berth.ReadFile(paths.Config, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return defaultDetachKey
	}
	var s settings
	if err == nil {
		err = toml.Unmarshal(data, &s)
	}
	if err == nil && s.Sessions.DetachKey != "" {
		if _, err = parseDetachKeys(s.Sessions.DetachKey); err == nil {
			return s.Sessions.DetachKey
		}
	}
	if err != nil {
		a.note("note: the detach key of %s is not used: %s", paths.Config, oneLine(err.Error(), 0))
	}
	return defaultDetachKey
}
