package guest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/guestapi"
)

func TestFilesAreReadAsTheyAre(t *testing.T) {
	l := newLab(t)
	l.start()
	file := filepath.Join(l.dir, "a file & ünïcode")
	content := bytes.Repeat([]byte{0, 1, 0xff, '\n'}, 300<<10)
	if err := l.client.WriteFile(t.Context(), file, content, 0o640); err != nil {
		t.Fatal(err)
	}
	data, info, err := l.client.ReadFile(t.Context(), file, 0)
	if err != nil || !bytes.Equal(data, content) || info.Size != int64(len(content)) || info.Mode != 0o640 || info.Type != guestapi.FileRegular || info.UID != os.Geteuid() || time.Since(info.ModTime) > patience {
		t.Errorf("read %d bytes, %+v, %v", len(data), info, err)
	}
	if data, _, err := l.client.ReadFile(t.Context(), file, int64(len(content))); err != nil || len(data) != len(content) {
		t.Errorf("a file of just the limit: %v", err)
	}
	if _, _, err := l.client.ReadFile(t.Context(), file, int64(len(content))-1); !errors.Is(err, berth.CodeTooLarge) {
		t.Errorf("a file of a byte more: %v", err)
	}
	// /proc says 0 and /sys says a page, whatever there is.
	status, _, err := l.client.ReadFile(t.Context(), fmt.Sprintf("/proc/%d/status", os.Getpid()), 0)
	if err != nil || !bytes.Contains(status, []byte("VmRSS:")) {
		t.Errorf("/proc: %q, %v", status, err)
	}
	if page, info, err := l.client.ReadFile(t.Context(), "/sys/kernel/mm/transparent_hugepage/enabled", 100); err == nil {
		if len(page) == 0 || info.Size != int64(len(page)) {
			t.Errorf("/sys: %q, %+v", page, info)
		}
	} else if !errors.Is(err, berth.CodeNotFound) {
		t.Errorf("/sys: %v", err)
	}
	// A zero page that never ends, and would be read for ever.
	if _, _, err := l.client.ReadFile(t.Context(), fmt.Sprintf("/proc/%d/environ", os.Getpid()), 1); !errors.Is(err, berth.CodeTooLarge) {
		t.Errorf("more of /proc than the limit: %v", err)
	}
}

func TestWhatIsNoFileIsNotRead(t *testing.T) {
	l := newLab(t)
	l.start()
	fifo, sock, link := filepath.Join(l.dir, "fifo"), filepath.Join(l.dir, "sock"), filepath.Join(l.dir, "link")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nobody connects
	if err := os.Symlink("fifo", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, sock, link, l.dir, "/dev/zero", "/dev/null", "relative", "", "/a\x00b", "/" + strings.Repeat("x", 300), "/" + strings.Repeat("x/", 3000)} {
		if _, _, err := l.client.ReadFile(t.Context(), path, 0); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("read %.20q: %v", path, err)
		}
	}
	// The name may lead to a FIFO between the look and the opening.
	fd, err := openFile(fifo, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]guestapi.FileType{fifo: guestapi.FileOther, sock: guestapi.FileSocket, link: guestapi.FileSymlink, l.dir: guestapi.FileDir} {
		info, err := l.client.Stat(t.Context(), path, false)
		if err != nil || info.Type != want || path == link && info.Target != "fifo" {
			t.Errorf("stat %s: %+v, %v", path, info, err)
		}
	}
	if info, err := l.client.Stat(t.Context(), link, true); err != nil || info.Type != guestapi.FileOther || info.Target != "" {
		t.Errorf("what the link leads to: %+v, %v", info, err)
	}
}

func TestADirectoryIsListed(t *testing.T) {
	l := newLab(t)
	l.start()
	dir := filepath.Join(l.dir, "d")
	if err := l.client.MkdirAll(t.Context(), filepath.Join(dir, "sub"), 0o750); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "file"), "12345", 0o600)
	if err := os.Symlink("/nowhere", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	list, err := l.client.ReadDir(t.Context(), dir)
	var got []string
	for _, f := range list {
		got = append(got, fmt.Sprintf("%s %s %s", strings.TrimPrefix(f.Path, dir+"/"), f.Type, f.Target))
	}
	if want := []string{"dangling symlink /nowhere", "file file ", "sub dir "}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("list = %q, %v", got, err)
	}
	if list, err := l.client.ReadDir(t.Context(), filepath.Join(dir, "sub")); err != nil || len(list) != 0 {
		t.Errorf("an empty directory: %v, %v", list, err)
	}
	for path, want := range map[string]berth.Code{
		dir + "/file": berth.CodeInvalidArgument, dir + "/file/x": berth.CodeNotFound, dir + "/none": berth.CodeNotFound,
		dir + "/dangling": berth.CodeNotFound, "d": berth.CodeInvalidArgument,
	} {
		if _, err := l.client.ReadDir(t.Context(), path); !errors.Is(err, want) {
			t.Errorf("list %s: %v, want %v", path, err, want)
		}
	}
	many := filepath.Join(l.dir, "many")
	if err := os.Mkdir(many, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range guestapi.MaxDirEntries + 1 {
		write(t, filepath.Join(many, fmt.Sprint(i)), "", 0o600)
	}
	if _, err := l.client.ReadDir(t.Context(), many); !errors.Is(err, berth.CodeTooLarge) {
		t.Errorf("a directory that is too large: %v", err)
	}
	if err := os.Remove(filepath.Join(many, "0")); err != nil {
		t.Fatal(err)
	}
	if list, err := l.client.ReadDir(t.Context(), many); err != nil || len(list) != guestapi.MaxDirEntries {
		t.Errorf("the largest directory: %d, %v", len(list), err)
	}
}

func TestChangesTouchNothingElse(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	l := newLab(t)
	l.start()
	ctx := t.Context()
	dir := filepath.Join(l.dir, "a", "b", "c")
	if err := l.client.MkdirAll(ctx, dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if info, err := l.client.Stat(ctx, dir, false); err != nil || info.Mode != 0o755 {
		t.Errorf("the directory: %+v, %v", info, err)
	}
	if err := l.client.MkdirAll(ctx, dir, 0o700); err != nil {
		t.Errorf("a directory that is there: %v", err)
	}
	if info, err := l.client.Stat(ctx, dir, false); err != nil || info.Mode != 0o755 {
		t.Errorf("a directory that was there was changed: %+v, %v", info, err)
	}
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	for _, text := range []string{"old", ""} {
		if err := l.client.WriteFile(ctx, file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if data, info, err := l.client.ReadFile(ctx, file, 0); err != nil || string(data) != text || info.Mode != 0o644 {
			t.Errorf("written %q, read %q, %+v, %v", text, data, info, err)
		}
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		want berth.Code
	}{
		"write over a link":         {l.client.WriteFile(ctx, link, nil, 0o600), berth.CodeConflict},
		"write over a directory":    {l.client.WriteFile(ctx, dir, nil, 0o600), berth.CodeConflict},
		"write where nothing is":    {l.client.WriteFile(ctx, dir+"/none/x", nil, 0o600), berth.CodeNotFound},
		"write below a file":        {l.client.WriteFile(ctx, file+"/x", nil, 0o600), berth.CodeNotFound},
		"write without a mode":      {l.client.WriteFile(ctx, file, nil, 0), berth.CodeInvalidArgument},
		"write a set-uid file":      {l.client.WriteFile(ctx, file, nil, 0o4755), berth.CodeInvalidArgument},
		"write by a winding path":   {l.client.WriteFile(ctx, dir+"/../x", nil, 0o600), berth.CodeInvalidArgument},
		"write too much":            {l.client.WriteFile(ctx, file, make([]byte, guestapi.MaxFileWrite+1), 0o600), berth.CodeTooLarge},
		"make over a file":          {l.client.MkdirAll(ctx, file, 0o700), berth.CodeConflict},
		"make below a file":         {l.client.MkdirAll(ctx, file+"/x", 0o700), berth.CodeNotFound},
		"remove a directory":        {l.client.RemoveFile(ctx, dir), berth.CodeInvalidArgument},
		"remove nothing":            {l.client.RemoveFile(ctx, dir+"/none"), berth.CodeNotFound},
		"remove with a slash":       {l.client.RemoveFile(ctx, dir+"/"), berth.CodeInvalidArgument},
		"remove the root":           {l.client.RemoveFile(ctx, "/"), berth.CodeInvalidArgument},
		"remove what is not named":  {l.client.RemoveFile(ctx, ""), berth.CodeInvalidArgument},
		"write on a read-only disk": {l.client.WriteFile(ctx, "/proc/berth", nil, 0o600), berth.CodeNotFound},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if err := l.client.RemoveFile(ctx, link); err != nil {
		t.Errorf("remove a link: %v", err)
	}
	if list, err := l.client.ReadDir(ctx, dir); err != nil || len(list) != 1 || list[0].Path != file {
		t.Errorf("what is left: %+v, %v", list, err)
	}
	if err := l.client.WriteFile(ctx, file, bytes.Repeat([]byte("x"), guestapi.MaxFileWrite), 0o600); err != nil {
		t.Errorf("the largest file: %v", err)
	}
	if data, _, err := l.client.ReadFile(ctx, file, guestapi.MaxFileRead); err != nil || len(data) != guestapi.MaxFileWrite {
		t.Errorf("the largest file: %d bytes, %v", len(data), err)
	}
}

func TestSpaceIsThatOfTheNearestAncestor(t *testing.T) {
	l := newLab(t)
	l.start()
	here, err := l.client.Space(t.Context(), l.dir)
	if err != nil || here.Path != l.dir || here.TotalBytes <= 0 || here.FreeBytes < 0 || here.FreeBytes > here.TotalBytes {
		t.Errorf("space = %+v, %v", here, err)
	}
	link := filepath.Join(l.dir, "link")
	if err := os.Symlink("/proc/nowhere/deep", link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(l.dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		l.dir + "/no/such/dir": l.dir,
		link + "/x":            "/proc", // where a link that leads nowhere yet would lead
	} {
		if s, err := l.client.Space(t.Context(), path); err != nil || s.Path != want {
			t.Errorf("space of %s: %+v, %v", path, s, err)
		}
	}
	if _, err := l.client.Space(t.Context(), l.dir+"/loop/x"); !errors.Is(err, berth.CodeInvalidArgument) {
		t.Errorf("a loop of links: %v", err)
	}
}

// "Not there" and "may not look" must never be one. Root may look everywhere,
// so a real guest runs as somebody else.
func TestNotThereIsNotMayNotLook(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	const nobody = 65534
	l := newLab(t)
	secret := filepath.Join(l.dir, "secret")
	if err := os.Mkdir(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(secret, "tool"), "#!/bin/sh\n", 0o755)
	write(t, filepath.Join(l.dir, "closed"), "x", 0o600)
	listener, err := net.Listen("unix", filepath.Join(l.dir, "closed.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nobody connects
	for _, dir := range []string{l.sessions(), l.runtime()} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, nobody, nobody)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(l.dir, 0o755), os.Chmod(listener.Addr().String(), 0o600), os.Chmod(binaries, 0o755)); err != nil {
		t.Fatal(err)
	}
	l.spawnAs(nobody)
	ctx := t.Context()
	dial := func(name string) error {
		_, err := l.client.Dial(ctx, "unix", filepath.Join(l.dir, name))
		return err
	}
	second := func(_ any, err error) error { return err }
	_, _, read := l.client.ReadFile(ctx, l.dir+"/closed", 0)
	for name, c := range map[string]struct {
		err  error
		want berth.Code
	}{
		"read":             {read, berth.CodeForbidden},
		"stat":             {second(l.client.Stat(ctx, secret+"/tool", false)), berth.CodeForbidden},
		"stat, not there":  {second(l.client.Stat(ctx, l.dir+"/none", false)), berth.CodeNotFound},
		"list":             {second(l.client.ReadDir(ctx, secret)), berth.CodeForbidden},
		"space":            {second(l.client.Space(ctx, secret+"/none")), berth.CodeForbidden},
		"write":            {l.client.WriteFile(ctx, l.dir+"/x", nil, 0o600), berth.CodeForbidden},
		"make":             {l.client.MkdirAll(ctx, l.dir+"/x", 0o700), berth.CodeForbidden},
		"remove":           {l.client.RemoveFile(ctx, l.dir+"/closed"), berth.CodeForbidden},
		"dial":             {dial("closed.sock"), berth.CodeForbidden},
		"dial, not there":  {dial("none.sock"), berth.CodeNotFound},
		"exec":             {second(l.client.Exec(ctx, guestapi.Exec{Argv: []string{secret + "/tool"}})), berth.CodeForbidden},
		"exec, by PATH":    {second(l.client.Exec(ctx, guestapi.Exec{Argv: []string{"tool"}, Env: []string{"PATH=/bin:" + secret}})), berth.CodeForbidden},
		"exec, not there":  {second(l.client.Exec(ctx, guestapi.Exec{Argv: []string{"tool"}})), berth.CodeCommandNotFound},
		"exec, no program": {second(l.client.Exec(ctx, guestapi.Exec{Argv: []string{l.dir + "/closed"}})), berth.CodeCommandNotFound},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if info, err := l.client.Stat(ctx, l.dir+"/closed", true); err != nil || info.Size != 1 {
		t.Errorf("what may be looked at and not read: %+v, %v", info, err)
	}
	l.stop()
}

// spawnAs starts a real guest as another user.
func (l *lab) spawnAs(uid uint32) {
	l.t.Helper()
	cmd := exec.Command(filepath.Join(binaries, "berth-guest"), "serve",
		"--sessions", l.sessions(), "--runtime", l.runtime(), "--holder", filepath.Join(binaries, "berth-holder"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stderr = l.logs
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.running = &guestRun{stop: func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		// What is done at the end is done as root.
		if err := errors.Join(os.Chown(l.sessions(), 0, 0), os.RemoveAll(l.runtime())); err != nil {
			l.t.Error(err)
		}
	}}
	l.awaitUp()
}
