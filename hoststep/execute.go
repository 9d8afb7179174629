package hoststep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// outcome is what a program answered.
type outcome struct {
	code   int // -1: it did not end by itself
	stdout string
	stderr string
}

// runner starts the program of a filled command. An error says that it could
// not be started or did not end in time; an exit code is not an error.
type runner func(ctx context.Context, c command) (outcome, error)

// Where programs are looked for: nowhere that a user could write.
var systemDirs = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// environment is all that a program gets to see. needrestart must neither ask
// nor restart what it finds.
var environment = []string{
	"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C", "LC_ALL=C", "HOME=/root",
	"DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=l", "NEEDRESTART_SUSPEND=1",
}

var errAbsent = errors.New("is not installed")

// find is the absolute path of a program of the system.
func find(name string) (string, error) {
	for _, dir := range systemDirs {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 || info.Mode().Perm()&0o022 != 0 {
			return "", fmt.Errorf("%s can be written by others than root", path)
		}
		return path, nil
	}
	return "", fmt.Errorf("%s %w", name, errAbsent)
}

const (
	keptOutput = 4 << 20 // bytes of stdout: a list of all packages fits
	keptErrors = 64 << 10
	grace      = 20 * time.Second // between TERM and KILL
)

// execute is the runner of the real helper.
func execute(ctx context.Context, c command) (outcome, error) {
	path, err := find(c.Argv[0])
	if err != nil {
		return outcome{code: -1}, err
	}
	if c.Finish {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.Seconds)*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, c.Argv[1:]...)
	cmd.Env, cmd.Dir = environment, "/"
	// A group of its own: the terminal's Ctrl-C is for the helper to judge, and
	// what a program leaves behind is ended with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	out, errs := &tail{limit: keptOutput}, &tail{limit: keptErrors}
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		return outcome{code: -1}, fmt.Errorf("start %s: %w", path, err)
	}
	err = cmd.Wait()
	o := outcome{code: cmd.ProcessState.ExitCode(), stdout: string(out.data), stderr: string(errs.data)}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what did not heed TERM; mostly nothing
		return o, fmt.Errorf("%s was ended: %w", c.Argv[0], context.Cause(ctx))
	case errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay), err == nil:
		return o, nil
	}
	return o, fmt.Errorf("wait for %s: %w", path, err)
}

// tail keeps the last limit bytes that are written to it.
type tail struct {
	limit int
	data  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - t.limit; over > t.limit/2 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

// plainTail is the end of a program's words for a person: at most n bytes, no
// control characters but line feeds, and nothing that nobody sees.
func plainTail(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r != '\t' && !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r) {
			return r
		}
		if r == '\t' {
			return ' '
		}
		return -1
	}, s)
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = strings.ToValidUTF8(s[len(s)-n:], "")
	}
	return s
}
