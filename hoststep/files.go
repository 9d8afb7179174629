package hoststep

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Paths of the system that the helper knows besides those of its recipe.
const (
	daemonJSON = "/etc/docker/daemon.json"
	cdiSpec    = "/var/run/cdi/nvidia.yaml"
	dockerPID  = "/var/run/docker.pid"
	osRelease  = "/etc/os-release"
	aptList    = "/etc/apt/sources.list"
	aptParts   = "/etc/apt/sources.list.d"

	// LedgerDir is root's folder of the helper.
	LedgerDir = "/var/lib/berth/hoststep"
	// ChangesPath is the record of everything that the helper changed, one
	// Change a line, readable by everybody.
	ChangesPath = LedgerDir + "/changes.jsonl"
	lockPath    = LedgerDir + "/lock"
	backupDir   = LedgerDir + "/backup" // 0700: a daemon.json may hold a proxy's password
)

const maxSystemFile = 1 << 20 // bytes of a file of the system that is read

// system is the tree of files that the helper changes: "/", and for tests a
// folder that stands for it.
type system struct{ root string }

func (s system) path(p string) string { return filepath.Join(s.root, p) }

// read reads a file that is itself, not a link. It is fs.ErrNotExist when the
// file is not there; anything else is not taken for that.
func (s system) read(path string) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(s.path(path), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, nil, fmt.Errorf("%s is a link: something else keeps it", path)
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSystemFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxSystemFile {
		return nil, nil, fmt.Errorf("%s is larger than %d bytes", path, maxSystemFile)
	}
	return data, info, nil
}

// hash is the SHA-256 of a file in hex; "" = it is not there.
func (s system) hash(path string) (string, error) {
	data, _, err := s.read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return sha(data), nil
}

func sha(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// prepare writes a file beside the path, whole and on disk, and says its name.
func (s system) prepare(path, temp string, data []byte, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(s.path(path)), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path(temp), os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(s.path(temp))
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(mode); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// swap puts the prepared file in the path's place.
func (s system) swap(temp, path string) error {
	if err := os.Rename(s.path(temp), s.path(path)); err != nil {
		_ = os.Remove(s.path(temp))
		return err
	}
	return s.sync(filepath.Dir(path))
}

func (s system) sync(dir string) error {
	d, err := os.Open(s.path(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write replaces a file as a whole.
func (s system) write(path string, data []byte, mode fs.FileMode) error {
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".berth-"+random())
	if err := s.prepare(path, temp, data, mode); err != nil {
		return err
	}
	return s.swap(temp, path)
}

// remove removes a file that is there.
func (s system) remove(path string) error {
	if err := os.Remove(s.path(path)); err != nil {
		return err
	}
	return s.sync(filepath.Dir(path))
}
