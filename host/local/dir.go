package local

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"berth"
)

// PrivateDir makes the runtime directory, with mode 0700, or checks the one that
// is there: whoever can replace a socket in it reads every key that is typed. A
// symbolic link, a directory of another user and one that others may enter are
// CodeRuntimeDir.
func PrivateDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return berth.Errorf(berth.CodeRuntimeDir, "%w", err)
	}
	// Not MkdirAll: it would be content with a link to a directory.
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return berth.Errorf(berth.CodeRuntimeDir, "%w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return berth.Errorf(berth.CodeRuntimeDir, "%w", err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return berth.Errorf(berth.CodeRuntimeDir, "%s is a symbolic link", dir).WithHint("give the directory itself with --runtime-dir")
	}
	if !info.IsDir() {
		return berth.Errorf(berth.CodeRuntimeDir, "%s is not a directory", dir)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return berth.Errorf(berth.CodeRuntimeDir, "%s belongs to user %d, not to %d", dir, st.Uid, os.Geteuid())
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return berth.Errorf(berth.CodeRuntimeDir, "%s is open to others (mode %04o)", dir, perm).
			WithHint("chmod 700 " + strconv.Quote(dir))
	}
	return nil
}
