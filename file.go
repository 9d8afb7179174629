package berth

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces the file at path so that a reader, and a machine that
// loses power at any moment, sees the whole old content or the whole new one:
// temporary file, write, fsync, rename, fsync of the directory. It is the one
// way in which berth writes a file that it reads back.
func WriteFile(path string, data []byte, perm os.FileMode) (err error) {
	return writeFile(path, data, perm, true)
}

// WriteFileNoSync is WriteFile without the two fsyncs, for what is worth
// nothing after the machine went down (a screen snapshot).
func WriteFileNoSync(path string, data []byte, perm os.FileMode) error {
	return writeFile(path, data, perm, false)
}

func writeFile(path string, data []byte, perm os.FileMode, sync bool) (err error) {
	dir, base := filepath.Split(path)
	f, err := os.CreateTemp(dir, "."+base+".tmp-*")
	if err != nil {
		return fileError("write", path, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()           // the first failure is the one to report
			_ = os.Remove(f.Name()) // it was never the file at path
			err = fileError("write", path, err)
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(perm); err != nil {
		return err
	}
	if sync {
		if err = f.Sync(); err != nil {
			return err
		}
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes creations, renames and removals in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fileError("sync", dir, err)
	}
	err = d.Sync()
	return fileError("sync", dir, errors.Join(err, d.Close()))
}

// ReadFile reads a file of at most limit bytes. A larger one is
// CodeRecordUnreadable, a missing one satisfies errors.Is(err, fs.ErrNotExist).
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(data)) > limit {
		return nil, Errorf(CodeRecordUnreadable, "%s is larger than %d bytes", path, limit)
	}
	return data, nil
}

// fileError names the file and gives a full disk its own code.
func fileError(verb, path string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return Errorf(CodeDiskFull, "%s %s: %w", verb, path, err)
	}
	return fmt.Errorf("%s %s: %w", verb, path, err)
}
