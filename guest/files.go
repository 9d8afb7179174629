package guest

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/guestapi"
)

// readFile reads a regular file of at most limit bytes. What its size says is
// not believed: it is 0 in /proc and one page in /sys.
func readFile(path string, limit int64) (guestapi.FileContent, error) {
	// Looked at before it is opened, since opening a device is an act: it may
	// rewind a tape. Once more after, since the name may lead elsewhere by then.
	info, err := statFile(path, true)
	if err == nil {
		err = wantRegular(info)
	}
	if err != nil {
		return guestapi.FileContent{}, err
	}
	fd, err := openFile(path, unix.O_RDONLY)
	if err != nil {
		return guestapi.FileContent{}, pathError("read", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // it was only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return guestapi.FileContent{}, pathError("read", path, err)
	}
	info = fileInfo(path, &st)
	if err := wantRegular(info); err != nil {
		return guestapi.FileContent{}, err
	}
	data, err := readAll(fd, info.Size, limit)
	if err != nil {
		return guestapi.FileContent{}, pathError("read", path, err)
	}
	if int64(len(data)) > limit {
		return guestapi.FileContent{}, berth.Errorf(berth.CodeTooLarge, "%s is larger than %d bytes", path, limit)
	}
	info.Size = int64(len(data))
	return guestapi.FileContent{Info: info, Data: data}, nil
}

func wantRegular(info guestapi.FileInfo) error {
	if info.Type == guestapi.FileRegular {
		return nil
	}
	return berth.Errorf(berth.CodeInvalidArgument, "%s is no regular file", info.Path).WithFact("type", string(info.Type))
}

// openFile never waits: a FIFO without a writer opens at once.
func openFile(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// readAll reads up to the end, or limit and one byte more. It reads the
// descriptor itself: an os.File would wait for more in a file like /proc/kmsg,
// which has no end.
func readAll(fd int, size, limit int64) ([]byte, error) {
	const least = 4 << 10 // holds most of what has no size
	data := make([]byte, 0, min(max(size+1, least), limit+1))
	for {
		n, err := unix.Read(fd, data[len(data):cap(data)])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN): // it has no end, and this is all for now
			return data, nil
		case err != nil:
			return nil, err
		}
		data = data[:len(data)+n]
		if n == 0 || int64(len(data)) > limit {
			return data, nil
		}
		if len(data) == cap(data) {
			data = slices.Grow(data, int(min(int64(len(data)), limit+1-int64(len(data)))))
			data = data[:len(data):min(cap(data), int(limit+1))]
		}
	}
}

func statFile(path string, follow bool) (guestapi.FileInfo, error) {
	if err := checkPath(path); err != nil {
		return guestapi.FileInfo{}, err
	}
	var st unix.Stat_t
	stat := unix.Lstat
	if follow {
		stat = unix.Stat
	}
	if err := stat(path, &st); err != nil {
		return guestapi.FileInfo{}, pathError("look at", path, err)
	}
	info := fileInfo(path, &st)
	info.ACL = hasACL(path, follow)
	if info.Type == guestapi.FileSymlink {
		target, err := os.Readlink(path)
		if err != nil {
			return guestapi.FileInfo{}, pathError("look at", path, err)
		}
		info.Target = target
	}
	return info, nil
}

// hasACL reports an access control list beyond the mode; a file system without
// such lists has none.
func hasACL(path string, follow bool) bool {
	get := unix.Lgetxattr
	if follow {
		get = unix.Getxattr
	}
	n, err := get(path, "system.posix_acl_access", nil)
	return err == nil && n > 0
}

func fileInfo(path string, st *unix.Stat_t) guestapi.FileInfo {
	return guestapi.FileInfo{
		Path: path, Type: fileType(st.Mode), Size: st.Size, Mode: st.Mode & 0o7777,
		UID: int(st.Uid), GID: int(st.Gid), ModTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
}

func fileType(mode uint32) guestapi.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return guestapi.FileRegular
	case unix.S_IFDIR:
		return guestapi.FileDir
	case unix.S_IFLNK:
		return guestapi.FileSymlink
	case unix.S_IFSOCK:
		return guestapi.FileSocket
	}
	return guestapi.FileOther
}

// listDir lists a directory. What disappears while it is listed is left out.
func listDir(path string) (guestapi.DirList, error) {
	if err := checkPath(path); err != nil {
		return guestapi.DirList{}, err
	}
	fd, err := openFile(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) { // of path itself, or of something above it?
		if _, err := statFile(path, true); err != nil {
			return guestapi.DirList{}, err
		}
		return guestapi.DirList{}, berth.Errorf(berth.CodeInvalidArgument, "%s is not a directory", path)
	}
	if err != nil {
		return guestapi.DirList{}, pathError("list", path, err)
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close() //nolint:errcheck // it was only read
	var names []string
	// A piece at a time: the names of a directory without bound must not be read whole.
	for len(names) <= guestapi.MaxDirEntries {
		more, err := dir.Readdirnames(1024)
		names = append(names, more...)
		if len(more) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return guestapi.DirList{}, pathError("list", path, err)
			}
			break
		}
	}
	if len(names) > guestapi.MaxDirEntries {
		return guestapi.DirList{}, berth.Errorf(berth.CodeTooLarge, "%s has more than %d entries", path, guestapi.MaxDirEntries)
	}
	slices.Sort(names)
	out := guestapi.DirList{Entries: make([]guestapi.FileInfo, 0, len(names))}
	for _, name := range names {
		info, err := statFile(strings.TrimSuffix(path, "/")+"/"+name, false)
		if errors.Is(err, berth.CodeNotFound) {
			continue
		}
		if err != nil {
			return guestapi.DirList{}, err
		}
		out.Entries = append(out.Entries, info)
	}
	return out, nil
}

func writeFile(path string, data []byte, mode uint32) error {
	if err := checkChange(path); err != nil {
		return err
	}
	info, err := statFile(path, false)
	switch {
	case err == nil && info.Type != guestapi.FileRegular:
		// The rename would put a file in the place of a link, a socket, a device.
		return berth.Errorf(berth.CodeConflict, "%s is there and is no regular file", path).WithFact("type", string(info.Type))
	case err != nil && !errors.Is(err, berth.CodeNotFound):
		return err
	}
	if err := berth.WriteFile(path, data, fs.FileMode(mode)); err != nil {
		return pathError("write", path, err)
	}
	return nil
}

func makeDir(path string, mode uint32) error {
	if err := checkChange(path); err != nil {
		return err
	}
	info, err := statFile(path, true)
	switch {
	case err == nil && info.Type == guestapi.FileDir:
		return nil
	case err == nil:
		return berth.Errorf(berth.CodeConflict, "%s is there and is no directory", path).WithFact("type", string(info.Type))
	case !errors.Is(err, berth.CodeNotFound):
		return err
	}
	// Without search permission for its owner nothing could be made below it.
	if err := os.MkdirAll(filepath.Dir(path), fs.FileMode(mode)|0o700); err != nil {
		return pathError("make", path, err)
	}
	err = os.Mkdir(path, fs.FileMode(mode))
	if errors.Is(err, fs.ErrExist) { // somebody was faster
		if info, err := statFile(path, true); err == nil && info.Type == guestapi.FileDir {
			return nil
		}
		return berth.Errorf(berth.CodeConflict, "%s is there and is no directory", path)
	}
	if err == nil {
		err = os.Chmod(path, fs.FileMode(mode)) // the umask had its say in Mkdir
	}
	if err != nil {
		return pathError("make", path, err)
	}
	return nil
}

func removeFile(path string) error {
	if err := checkChange(path); err != nil {
		return err
	}
	// Not os.Remove, which removes directories too.
	if err := unix.Unlink(path); err != nil {
		return pathError("remove", path, err)
	}
	return nil
}

// space measures at the nearest ancestor that exists: what is to be made will be
// made there. A link that leads nowhere yet leads the way all the same.
func space(path string) (guestapi.Space, error) {
	if err := checkPath(path); err != nil {
		return guestapi.Space{}, err
	}
	const maxLinks = 40 // as many as the kernel follows
	at := filepath.Clean(path)
	for links := 0; ; {
		_, err := statFile(at, true)
		if err == nil {
			break
		}
		if !errors.Is(err, berth.CodeNotFound) || at == "/" {
			return guestapi.Space{}, err
		}
		if link, err := statFile(at, false); err == nil && link.Type == guestapi.FileSymlink && links < maxLinks {
			links++
			if !filepath.IsAbs(link.Target) {
				link.Target = filepath.Join(filepath.Dir(at), link.Target)
			}
			at = filepath.Clean(link.Target)
			continue
		}
		at = filepath.Dir(at)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return guestapi.Space{}, pathError("measure", at, err)
	}
	return guestapi.Space{Path: at, FreeBytes: blocks(st.Bavail, st.Bsize), TotalBytes: blocks(st.Blocks, st.Bsize)}, nil
}

// blocks gives bytes; some file systems say that they have more than there can be.
func blocks(n uint64, size int64) int64 {
	if size <= 0 || n > uint64(math.MaxInt64/size) {
		return math.MaxInt64
	}
	return int64(n) * size //nolint:gosec // it was checked
}

// checkPath holds for what is only looked at.
func checkPath(path string) error {
	switch {
	case !strings.HasPrefix(path, "/"):
		return berth.Errorf(berth.CodeInvalidArgument, "the path %q is not absolute", path)
	case len(path) > guestapi.MaxPath:
		return berth.Errorf(berth.CodeInvalidArgument, "a path of %d bytes is longer than %d", len(path), guestapi.MaxPath)
	case strings.ContainsRune(path, 0):
		return berth.Errorf(berth.CodeInvalidArgument, "the path %q has a zero byte", path)
	}
	return nil
}

// checkChange holds for what is changed: its name must say where that is.
func checkChange(path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if path != filepath.Clean(path) || path == "/" {
		return berth.Errorf(berth.CodeInvalidArgument, "the path %q is not the plain path of a file", path)
	}
	return nil
}

// pathError gives a failure of the system its code. What is not there and what
// may not be looked at are never one: a plan is made on the difference.
func pathError(verb, path string, err error) error {
	var coded *berth.Error
	if errors.As(err, &coded) {
		return coded // a full disk
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return berth.Errorf(berth.CodeInternal, "%s %s: %w", verb, path, err)
	}
	e := berth.Errorf(fileCode(errno), "%s %s: %w", verb, path, errno).WithFact("errno", errnoName(errno))
	switch e.Code {
	case berth.CodeNotFound:
		return e.WithHint("check the path") // the catalogue speaks of sessions
	case berth.CodeForbidden:
		return e.WithHint("the guest looks as the user with uid " + strconv.Itoa(os.Geteuid()))
	}
	return e
}

func fileCode(errno syscall.Errno) berth.Code {
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.ESRCH: // ESRCH: of a process in /proc that has ended
		return berth.CodeNotFound
	case unix.EACCES, unix.EPERM, unix.EROFS:
		return berth.CodeForbidden
	case unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL, unix.ENXIO:
		return berth.CodeInvalidArgument
	case unix.EEXIST, unix.ENOTEMPTY:
		return berth.CodeConflict
	case unix.ENOSPC, unix.EDQUOT:
		return berth.CodeDiskFull
	}
	return berth.CodeInternal
}

// errnoName gives "ENOENT".
func errnoName(errno syscall.Errno) string {
	if name := unix.ErrnoName(errno); name != "" {
		return name
	}
	return strconv.Itoa(int(errno))
}
