package holder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/process"
)

// remainsMax bounds KillRemains: SIGKILL takes effect at once unless the kernel
// itself hangs.
const remainsMax = 5 * time.Second

// KillRemains kills what is left of a program whose holder is gone: its cgroup,
// where it has one, and the program itself. Everything is checked against the
// record in the directory: of another boot nothing is left, and a process that
// merely has the number is not touched. A missing record is an error that
// satisfies errors.Is(err, fs.ErrNotExist); while a holder lives it is
// CodeSessionLive.
func KillRemains(dir string) (KillResult, error) {
	alive, err := Alive(dir)
	if err != nil {
		return KillResult{}, err
	}
	if alive {
		return KillResult{}, berth.Errorf(berth.CodeSessionLive, "a holder keeps %s", dir)
	}
	r, err := ReadRunning(dir)
	if err != nil {
		return KillResult{}, err
	}
	var res KillResult
	if exit, err := ReadExit(dir); err == nil {
		res.Exit = &exit
	}
	boot, err := process.BootID()
	if err != nil {
		return KillResult{}, err
	}
	if boot != r.Program.BootID {
		return res, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), remainsMax)
	defer cancel()
	if err := killProgram(ctx, r.Program); err != nil {
		return res, err
	}
	cg := process.OpenCgroup(r.Cgroup)
	// The record was written by us, but it is a file: a directory that does not
	// have the name of a session's cgroup is not emptied on its word.
	named, _ := filepath.Match("berth-*-*", filepath.Base(r.Cgroup))
	if r.Cgroup == "" || !named {
		return res, nil
	}
	// Of a cgroup that is gone nothing is left: its holder removes an empty one.
	if res.Contained = true; !cg.Exists() {
		return res, nil
	}
	err = cg.Kill()
	if rerr := cg.Remove(ctx); rerr != nil {
		left, lerr := cg.Procs()
		res.Survivors = left
		return res, errors.Join(err, lerr)
	}
	return res, nil
}

// killProgram kills the process that the record names, and waits.
func killProgram(ctx context.Context, id berth.Identity) error {
	h, err := process.Open(id)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	defer h.Close() //nolint:errcheck // the process is not touched
	if err := h.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := h.Wait(ctx); err != nil {
		return berth.Errorf(berth.CodeKillIncomplete, "process %d is still there after SIGKILL", id.PID)
	}
	return nil
}
