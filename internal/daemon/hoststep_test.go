package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth"
	"berth/environment"
	"berth/guestapi"
)

// diskGuest looks at this machine's files, below root where they are a test's.
type diskGuest struct {
	environment.Guest
	passwd, group string
}

func (d diskGuest) ReadFile(_ context.Context, path string, _ int64) ([]byte, guestapi.FileInfo, error) {
	return []byte(map[string]string{"/etc/passwd": d.passwd, "/etc/group": d.group}[path]), guestapi.FileInfo{}, nil
}

func (diskGuest) Stat(_ context.Context, path string, _ bool) (guestapi.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return guestapi.FileInfo{}, berth.Errorf(berth.CodeNotFound, "%w", err)
	}
	st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // Linux
	out := guestapi.FileInfo{Path: path, Type: guestapi.FileRegular, Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid)}
	if info.Mode()&fs.ModeSymlink != 0 {
		out.Type = guestapi.FileSymlink
		out.Target, err = os.Readlink(path)
	}
	return out, err
}

// What sudo starts must be what it was when the person agreed: a program that
// another account can change, or a way to it, is refused before that.
func TestTrustHelper(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes files of other users")
	}
	const ada, eve = 1234, 4321
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(bin, helper string) string // gives the program
		ok     bool
	}{
		"as it is built": {func(_, h string) string { return h }, true},
		"through a link of the user's": {func(bin, h string) string {
			must(os.Symlink(filepath.Base(bin), bin+"-link"))
			must(os.Lchown(bin+"-link", ada, ada))
			return filepath.Join(bin+"-link", filepath.Base(h))
		}, true},
		"the user's own group": {func(bin, h string) string { must(os.Chmod(bin, 0o775)); return h }, true},
		"the system's":         {func(string, string) string { return "/bin/false" }, true},
		"everybody's folder":   {func(bin, h string) string { must(os.Chmod(bin, 0o777)); return h }, false},
		"everybody's program":  {func(_, h string) string { must(os.Chmod(h, 0o757)); return h }, false},
		"another's program":    {func(_, h string) string { must(os.Chown(h, eve, eve)); return h }, false},
		"another group's":      {func(_, h string) string { must(os.Chown(h, ada, eve)); must(os.Chmod(h, 0o775)); return h }, false},
		"through a link of another's": {func(bin, h string) string {
			must(os.Symlink(h, bin+"-link"))
			must(os.Lchown(bin+"-link", eve, eve))
			return bin + "-link"
		}, false},
		"a circle":     {func(bin, _ string) string { must(os.Symlink(bin+"-link", bin+"-link")); return bin + "-link" }, false},
		"not there":    {func(_, h string) string { return h + "-2" }, false},
		"above it all": {func(bin, h string) string { must(os.Chown(filepath.Dir(bin), eve, eve)); return h }, false},
	} {
		t.Run(name, func(t *testing.T) {
			home := filepath.Join(t.TempDir(), "home")
			bin := filepath.Join(home, "bin")
			helper := filepath.Join(bin, "berth-hoststep")
			must(os.MkdirAll(bin, 0o755))
			must(os.WriteFile(helper, []byte("x"), 0o755)) //nolint:gosec // a program
			for _, p := range []string{home, bin, helper} {
				must(os.Chown(p, ada, ada))
			}
			g := diskGuest{passwd: "ada:x:1234:1234::/home/ada:/bin/sh\n", group: "ada:x:1234:\n"}
			err := hostSteps{}.TrustHelper(t.Context(), g, c.change(bin, helper), ada)
			if c.ok != (err == nil) || err != nil && (!errors.Is(err, berth.CodeHostStepInvalid) || !strings.Contains(err.Error(), "/")) {
				t.Errorf("%v", err)
			}
		})
	}
}
