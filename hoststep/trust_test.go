package hoststep

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes files of other users")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const stranger = 4321

// place makes a request of ada's that is trusted, and says its path.
func place(t *testing.T, content string) string {
	t.Helper()
	needRoot(t)
	home := filepath.Join(t.TempDir(), "home")
	dir := filepath.Join(home, "steps")
	must(t, os.MkdirAll(dir, 0o700))
	path := filepath.Join(dir, "step-1"+RequestSuffix)
	must(t, os.WriteFile(path, []byte(content), 0o600))
	for _, p := range []string{home, dir, path} {
		must(t, os.Chown(p, ada, ada))
	}
	return path
}

// giveTo lets another user write in a folder, by an access control list.
func giveTo(t *testing.T, path string, uid uint32) {
	t.Helper()
	list := binary.LittleEndian.AppendUint32(nil, 2) // the version
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, ^uint32(0)}, {2, 7, uid}, {4, 7, ^uint32(0)}, {16, 7, ^uint32(0)}, {32, 0, ^uint32(0)}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	if err := syscall.Setxattr(path, "system.posix_acl_access", list, 0); err != nil {
		t.Skipf("no access control lists here: %v", err)
	}
}

// A list beyond the mode takes the private group its trust.
func TestListsAreSeen(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o770))
	judge := func() error {
		f, err := os.Open(dir)
		must(t, err)
		defer f.Close() //nolint:errcheck // it was only looked at
		return trustedFolder(int(f.Fd()), os.Getuid(), os.Getgid(), false)
	}
	if err := judge(); err != nil {
		t.Errorf("the private group's: %v", err)
	}
	giveTo(t, dir, stranger)
	if err := judge(); err == nil {
		t.Error("a folder that a list opens to another was trusted")
	}
}

func readRequest(path string, uid int) ([]byte, error) {
	f, err := openFolder(path, uid)
	if err != nil {
		return nil, err
	}
	defer f.close()
	return f.read()
}

func TestTrust(t *testing.T) {
	path := place(t, "content")
	if data, err := readRequest(path, ada); err != nil || string(data) != "content" {
		t.Fatal(string(data), err)
	}
	for name, attack := range map[string]func(t *testing.T, path string) string{
		"relative path":      func(_ *testing.T, p string) string { return p[1:] },
		"unclean path":       func(_ *testing.T, p string) string { return filepath.Dir(p) + "/../steps/" + filepath.Base(p) },
		"other name":         func(_ *testing.T, p string) string { return p + ".txt" },
		"in the root folder": func(_ *testing.T, p string) string { return "/" + filepath.Base(p) },
		"not there":          func(t *testing.T, p string) string { must(t, os.Remove(p)); return p },
		"folder of another":  func(t *testing.T, p string) string { must(t, os.Chown(filepath.Dir(p), stranger, ada)); return p },
		"folder of root":     func(t *testing.T, p string) string { must(t, os.Chown(filepath.Dir(p), 0, 0)); return p },
		"open folder":        func(t *testing.T, p string) string { must(t, os.Chmod(filepath.Dir(p), 0o750)); return p },
		"folder is a link": func(t *testing.T, p string) string {
			link := filepath.Join(filepath.Dir(filepath.Dir(p)), "link")
			must(t, os.Symlink(filepath.Dir(p), link))
			return filepath.Join(link, filepath.Base(p))
		},
		"parent is a link": func(t *testing.T, p string) string {
			home := filepath.Dir(filepath.Dir(p))
			must(t, os.Rename(home, home+"-real"))
			must(t, os.Symlink(home+"-real", home))
			return p
		},
		"parent of another": func(t *testing.T, p string) string {
			must(t, os.Chown(filepath.Dir(filepath.Dir(p)), stranger, ada))
			return p
		},
		"parent for everybody": func(t *testing.T, p string) string {
			must(t, os.Chmod(filepath.Dir(filepath.Dir(p)), 0o777))
			return p
		},
		"parent for the group": func(t *testing.T, p string) string {
			must(t, os.Chmod(filepath.Dir(filepath.Dir(p)), 0o770))
			return p
		},
		"parent with a list": func(t *testing.T, p string) string {
			home := filepath.Dir(filepath.Dir(p))
			must(t, os.Chmod(home, 0o770)) // ada's own group, if it were hers alone
			giveTo(t, home, stranger)
			return p
		},
		"sticky parent of the user": func(t *testing.T, p string) string {
			must(t, os.Chmod(filepath.Dir(filepath.Dir(p)), fs.ModeSticky|0o777))
			return p
		},
		"file of another": func(t *testing.T, p string) string { must(t, os.Chown(p, stranger, ada)); return p },
		"file of root":    func(t *testing.T, p string) string { must(t, os.Chown(p, 0, 0)); return p },
		"open file":       func(t *testing.T, p string) string { must(t, os.Chmod(p, 0o644)); return p },
		"setuid file":     func(t *testing.T, p string) string { must(t, os.Chmod(p, fs.ModeSetuid|0o600)); return p },
		"file is a link": func(t *testing.T, p string) string {
			must(t, os.Rename(p, p+"-real"))
			must(t, os.Symlink(p+"-real", p))
			return p
		},
		"second name": func(t *testing.T, p string) string { must(t, os.Link(p, p+"-2")); return p },
		"too large": func(t *testing.T, p string) string {
			must(t, os.Truncate(p, MaxRequest+1))
			return p
		},
		"a pipe": func(t *testing.T, p string) string {
			must(t, os.Remove(p))
			must(t, syscall.Mkfifo(p, 0o600))
			must(t, os.Chown(p, ada, ada))
			return p
		},
		"a folder": func(t *testing.T, p string) string {
			must(t, os.Remove(p))
			must(t, os.Mkdir(p, 0o700))
			must(t, os.Chown(p, ada, ada))
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			if data, err := readRequest(attack(t, place(t, "content")), ada); !errors.Is(err, ErrUntrusted) {
				t.Errorf("%q %v", data, err)
			}
		})
	}
}

// The group of one user is that user; any other member makes it others.
func TestPrivateGroup(t *testing.T) {
	const passwd = "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\nbob:x:1001:100::/home/bob:/bin/sh\neve:x:1002:100::/home/eve:/bin/sh\n"
	const group = "root:x:0:\nusers:x:100:\nada:x:1000:\nteam:x:2000:ada,bob\n"
	for name, c := range map[string]struct {
		passwd, group string
		uid, want     int
	}{
		"alone":                {passwd, group, 1000, 1000},
		"named as its member":  {passwd, strings.Replace(group, "ada:x:1000:", "ada:x:1000:ada", 1), 1000, 1000},
		"another member":       {passwd, strings.Replace(group, "ada:x:1000:", "ada:x:1000:bob", 1), 1000, -1},
		"another name of it":   {passwd, group + "also:x:1000:bob\n", 1000, -1},
		"a group of many":      {passwd, group, 1001, -1},
		"not in the files":     {passwd, group, 1234, -1},
		"group not in file":    {passwd, "root:x:0:\n", 1000, -1},
		"two names of a user":  {passwd + "ada2:x:1000:1000::/:/bin/sh\n", group, 1000, -1},
		"no number":            {"ada:x:1000:x::/:/bin/sh\n", group, 1000, -1},
		"nothing":              {"", "", 1000, -1},
		"lines that are cut":   {"ada:x:1000", "ada:x", 1000, -1},
		"somebody's secondary": {passwd + "dan:x:1003:1000::/:/bin/sh\n", group, 1000, -1},
	} {
		if got := PrivateGroup([]byte(c.passwd), []byte(c.group), c.uid); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		mode         uint32
		owner, group int
		ok           bool
	}{
		"the user's":                {0o755, ada, ada, true},
		"root's":                    {0o755, 0, 0, true},
		"the private group's":       {0o775, ada, ada, true},
		"the private group, root's": {0o775, 0, ada, true},
		"another group's":           {0o775, ada, 100, false},
		"everybody's":               {0o757, ada, ada, false},
		"like /tmp":                 {0o1777, 0, 0, true},
		"the user's, like /tmp":     {0o1777, ada, ada, false},
		"another's":                 {0o755, stranger, ada, false},
	} {
		if err := Owned(c.mode, c.owner, c.group, ada, ada); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzPrivateGroup(f *testing.F) {
	f.Add("ada:x:1000:1000::/home/ada:/bin/sh\n", "ada:x:1000:\n", 1000)
	f.Fuzz(func(t *testing.T, passwd, group string, uid int) {
		if got := PrivateGroup([]byte(passwd), []byte(group), uid); got < -1 {
			t.Errorf("%d", got)
		}
	})
}

// Whoever swaps the name while it is read gets the old file read, or a refusal.
func TestSwappedWhileItIsRead(t *testing.T) {
	path := place(t, "the user's")
	evil := filepath.Join(t.TempDir(), "shadow")
	must(t, os.WriteFile(evil, []byte("root's secret"), 0o600))
	dir := filepath.Dir(path)
	good, link, spare := filepath.Join(dir, "good"), filepath.Join(dir, "link"), filepath.Join(dir, "spare")
	must(t, os.Rename(path, good))
	must(t, os.Symlink(evil, link))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(good, path)
			_ = os.Rename(path, good)
			_ = os.Rename(link, path)
			_ = os.Rename(path, spare)
			_ = os.Rename(spare, link)
		}
	}()
	defer func() { close(stop); <-done }()
	for range 3000 {
		if data, err := readRequest(path, ada); err == nil && string(data) != "the user's" || err != nil && !errors.Is(err, ErrUntrusted) {
			t.Fatalf("%q %v", data, err)
		}
	}
}

// Once the folder is open, another folder in its place changes nothing.
func TestFolderIsHeld(t *testing.T) {
	path := place(t, "the user's")
	f, err := openFolder(path, ada)
	must(t, err)
	defer f.close()
	dir := filepath.Dir(path)
	must(t, os.Rename(dir, dir+"-moved"))
	must(t, os.Symlink("/nowhere", dir))
	data, err := f.read()
	if err != nil || string(data) != "the user's" {
		t.Fatal(string(data), err)
	}
	must(t, f.write([]byte("result")))
	if got, err := os.ReadFile(filepath.Join(dir+"-moved", "step-1"+ResultSuffix)); err != nil || string(got) != "result" {
		t.Error(string(got), err)
	}
}

func TestPlantedResult(t *testing.T) {
	path := place(t, "x")
	result := strings.TrimSuffix(path, RequestSuffix) + ResultSuffix
	victim := filepath.Join(t.TempDir(), "victim")
	must(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	must(t, os.Symlink(victim, result))
	f, err := openFolder(path, ada)
	must(t, err)
	defer f.close()
	must(t, f.write([]byte("result")))
	info, err := os.Lstat(result)
	must(t, err)
	if got, _ := os.ReadFile(victim); string(got) != "untouched" || info.Mode() != 0o644 {
		t.Errorf("%q %v", got, info.Mode())
	}
	must(t, os.Remove(result))
	must(t, os.Mkdir(result, 0o700)) // cannot be replaced: no result, and no litter
	if err := f.write([]byte("result")); err == nil {
		t.Error("a folder was replaced")
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 2 {
		t.Errorf("litter: %v", entries)
	}
}

func TestInvoker(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want int
		ok   bool
	}{
		{nil, 5, true},
		{map[string]string{"SUDO_UID": "1000"}, 1000, true},
		{map[string]string{"SUDO_UID": "1000", "PKEXEC_UID": "1001"}, 1001, true},
		{map[string]string{"SUDO_UID": "x"}, 0, false},
		{map[string]string{"SUDO_UID": "-1"}, 0, false},
		{map[string]string{"PKEXEC_UID": "4294967295"}, 0, false},
	} {
		got, err := invoker(func(name string) string { return c.env[name] }, 5)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%v: %d %v", c.env, got, err)
		}
	}
}

// What is refused is refused before anything runs, with a result that says so.
func TestRefusedRequests(t *testing.T) {
	good := request(Apply, DockerEngine)
	for name, change := range map[string]func(*Request){
		"recipe of another build": func(r *Request) { r.Recipe.Digest = "sha256:" + strings.Repeat("0", 64) },
		"other recipe":            func(r *Request) { r.Recipe.ID = "linux-r0" },
		"wrong digest":            func(r *Request) { r.ParametersDigest = ParametersDigest(Parameters{}) },
		"changed after signing":   func(r *Request) { r.Parameters.Components = []Component{DockerEngine, DockerGroup} },
		"another step's name":     func(r *Request) { r.StepID = "step-2" },
		"unknown distribution":    func(r *Request) { r.Parameters.Version = "42"; r.ParametersDigest = ParametersDigest(r.Parameters) },
		"family of another":       func(r *Request) { r.Parameters.Family = "apt"; r.ParametersDigest = ParametersDigest(r.Parameters) },
		"not this machine":        func(r *Request) { r.Parameters.Version = "44"; r.ParametersDigest = ParametersDigest(r.Parameters) },
		"not this architecture":   func(r *Request) { r.Parameters.Arch = "aarch64"; r.ParametersDigest = ParametersDigest(r.Parameters) },
	} {
		t.Run(name, func(t *testing.T) {
			req := good
			change(&req)
			path := place(t, encode(t, req))
			m := newFake(t)
			var out, errs bytes.Buffer
			code := m.machine().main(context.Background(), []string{"--json", path}, sudo, &out, &errs)
			var result Result
			must(t, json.Unmarshal(out.Bytes(), &result))
			if code != ExitFailed || result.ErrorCode != ErrorInvalid || result.Outcome != OutcomeFailed || len(result.Steps) != 0 {
				t.Errorf("%d %+v", code, result)
			}
			onDisk, err := os.ReadFile(strings.TrimSuffix(path, RequestSuffix) + ResultSuffix)
			must(t, err)
			if parsed, err := ParseResult(onDisk); err != nil || parsed.Error != result.Error {
				t.Errorf("%+v %v", parsed, err)
			}
			for _, call := range m.calls {
				if call != "uname -m" {
					t.Errorf("%s was started", call)
				}
			}
		})
	}
}

func sudo(name string) string { return map[string]string{"SUDO_UID": "1234"}[name] }

func TestNoResult(t *testing.T) {
	path := place(t, "{}")
	must(t, os.Chmod(path, 0o644))
	for name, args := range map[string][]string{
		"untrusted": {path}, "nothing": {}, "option": {"--root=/tmp", path}, "two": {path, path}, "relative": {"step-1" + RequestSuffix},
	} {
		var out, errs bytes.Buffer
		if code := newFake(t).machine().main(context.Background(), args, sudo, &out, &errs); code != ExitNoResult || errs.Len() == 0 || out.Len() != 0 {
			t.Errorf("%s: %d %q %q", name, code, &out, &errs)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("something was written: %v", entries)
	}
}
