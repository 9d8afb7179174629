package hoststep

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrUntrusted is matched when the folder or the file of a request could be
// somebody else's than the invoking user's. Nothing is read, nothing written.
var ErrUntrusted = errors.New("the request is not trusted")

type untrusted string

func (u untrusted) Error() string      { return string(u) }
func (untrusted) Is(target error) bool { return target == ErrUntrusted }

// invoker is the user on whose behalf the helper runs as root: pkexec's word,
// then sudo's, then the real user id.
func invoker(getenv func(string) string, real int) (int, error) {
	for _, name := range []string{"PKEXEC_UID", "SUDO_UID"} {
		if s := getenv(name); s != "" {
			uid, err := strconv.ParseUint(s, 10, 31)
			if err != nil {
				return 0, untrusted(name + " is not a user id")
			}
			return int(uid), nil
		}
	}
	return real, nil
}

// folder is an open directory that was found to belong to the invoking user
// alone. All further access is relative to it, so that nobody can put another
// in its place.
type folder struct {
	fd   int
	step string // step id, from the request's name
	uid  int    // of the invoking user
}

func (f *folder) close() { _ = syscall.Close(f.fd) }

// openFolder opens the folder of a request's path component by component and
// follows no link. Each component must be one that nobody else can change (see
// Owned).
func openFolder(path string, uid int) (*folder, error) {
	name := filepath.Base(path)
	step, ok := strings.CutSuffix(name, RequestSuffix)
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || !ok || !identifier.MatchString(step) {
		return nil, untrusted("the argument is not the clean absolute path of a STEP" + RequestSuffix)
	}
	private := privateGroup(uid)
	fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /: %w", err)
	}
	dir, at := filepath.Dir(path), ""
	for part := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if part == "" {
			break // the folder would be / itself: refused below
		}
		next, err := syscall.Openat(fd, part, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
		_ = syscall.Close(fd)
		at += "/" + part
		if err != nil {
			return nil, untrusted(fmt.Sprintf("%q cannot be opened as a folder without following a link", at))
		}
		fd = next
		if err := trustedFolder(fd, uid, private, at == dir); err != nil {
			_ = syscall.Close(fd)
			return nil, untrusted(fmt.Sprintf("%q %s", at, err))
		}
	}
	if at != dir {
		_ = syscall.Close(fd)
		return nil, untrusted("the root folder holds no requests")
	}
	return &folder{fd: fd, step: step, uid: uid}, nil
}

func trustedFolder(fd, uid, private int, last bool) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case last && int(st.Uid) != uid:
		return errors.New("does not belong to the user who runs this")
	case last && st.Mode&0o7777 != 0o700:
		return errors.New("must have mode 0700")
	}
	if hasACL(fd) {
		private = -1 // the group's bits are then the mask of whoever it lists
	}
	return Owned(st.Mode&0o7777, int(st.Uid), int(st.Gid), uid, private)
}

// hasACL reports an access control list beyond the mode; a file system without
// such lists has none.
func hasACL(fd int) bool {
	n, err := syscall.Getxattr("/proc/self/fd/"+strconv.Itoa(fd), "system.posix_acl_access", nil)
	return err == nil && n > 0
}

// Owned says why somebody else than root and the user can change what has this
// mode (12 bits), owner and group; nil = nobody can. It must be root's or the
// user's, and not be writable by others. A folder of root's with the sticky bit
// (/tmp) is as good, since in it nobody replaces what is somebody else's; and so
// is the user's private group (see PrivateGroup; -1 = there is none, or an access
// control list makes its bits mean something else).
func Owned(mode uint32, owner, group, uid, private int) error {
	sticky := owner == 0 && mode&syscall.S_ISVTX != 0
	switch {
	case owner != 0 && owner != uid:
		return errors.New("belongs to another user")
	case mode&0o002 != 0 && !sticky, mode&0o020 != 0 && !sticky && group != private:
		return errors.New("can be written by others: chmod go-w it")
	}
	return nil
}

// PrivateGroup is the user's primary group where nobody else is in it, by
// passwd(5) and group(5): many distributions give each user one, and let it write
// all that the user makes. -1 = there is none, or the files do not tell.
func PrivateGroup(passwd, group []byte, uid int) int {
	name, gid, id := "", -1, strconv.Itoa(uid)
	for line := range strings.Lines(string(passwd)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) == 7 && f[2] == id {
			n, err := strconv.ParseUint(f[3], 10, 31)
			if err != nil || gid >= 0 { // two names for one user: do not guess
				return -1
			}
			name, gid = f[0], int(n)
		}
	}
	primary := strconv.Itoa(gid)
	for line := range strings.Lines(string(passwd)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) == 7 && f[2] != id && f[3] == primary {
			return -1
		}
	}
	found := false
	for line := range strings.Lines(string(group)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 4 || f[2] != primary {
			continue
		}
		if f[3] != "" && f[3] != name {
			return -1
		}
		found = true
	}
	if !found {
		return -1
	}
	return gid
}

func privateGroup(uid int) int {
	sys := system{"/"}
	passwd, _, err := sys.read("/etc/passwd")
	group, _, err2 := sys.read("/etc/group")
	if err != nil || err2 != nil {
		return -1
	}
	return PrivateGroup(passwd, group, uid)
}

// read reads the request: a regular file of the user's, mode 0600, one name, at
// most MaxRequest bytes. It is read once; what is judged is what was read.
func (f *folder) read() ([]byte, error) {
	fd, err := syscall.Openat(f.fd, f.step+RequestSuffix, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, untrusted("the request cannot be opened without following a link")
	}
	file := os.NewFile(uintptr(fd), "request")
	defer file.Close() //nolint:errcheck // it was only read
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("look at the request: %w", err)
	}
	switch {
	case st.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, untrusted("the request is not a regular file")
	case int(st.Uid) != f.uid:
		return nil, untrusted("the request does not belong to the user who runs this")
	case st.Mode&0o7777 != 0o600:
		return nil, untrusted("the request must have mode 0600")
	case st.Nlink != 1:
		return nil, untrusted("the request has more than one name")
	case st.Size > MaxRequest:
		return nil, untrusted("the request is larger than 64 KiB")
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxRequest+1))
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if len(data) > MaxRequest {
		return nil, untrusted("the request is larger than 64 KiB")
	}
	return data, nil
}

// write leaves the result beside the request. What was planted at its name, a
// link for instance, is replaced and never followed.
func (f *folder) write(data []byte) (err error) {
	name := f.step + ResultSuffix
	temp := "." + name + "." + random()
	fd, err := syscall.Openat(f.fd, temp, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create the result: %w", err)
	}
	file := os.NewFile(uintptr(fd), temp)
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = syscall.Unlinkat(f.fd, temp)
			err = fmt.Errorf("write the result: %w", err)
		}
	}()
	if _, err = file.Write(data); err != nil {
		return err
	}
	if err = file.Chmod(0o644); err != nil {
		return err
	}
	if err = file.Sync(); err != nil {
		return err
	}
	if err = file.Close(); err != nil {
		return err
	}
	if err = syscall.Renameat(f.fd, temp, f.fd, name); err != nil {
		return err
	}
	return syscall.Fsync(f.fd)
}

func random() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
