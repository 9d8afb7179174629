package holder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth"
	"berth/process"
)

// maxSpec bounds what goes to a holder over its standard input: argv and the
// environment, which the kernel bounds at a quarter of the stack limit.
const maxSpec = 16 << 20

// holderEnv is the whole environment of a holder: settings of its runtime that
// have to be there before main. The program's own goes over the pipe, so that it
// is not to be seen in /proc/PID/environ.
var holderEnv = [...]string{"GOMAXPROCS=1", "GOGC=25", "GOTRACEBACK=single"}

// Start starts a holder and returns when its program runs and the record is on
// disk. Errors: CodeCommandNotFound, CodeCwdUnusable, CodeStartFailed,
// CodeSocketPathTooLong, CodeForeignSocket, CodeDiskFull, and CodeConflict where
// the directory has, or had, a holder already.
func Start(ctx context.Context, cfg StartConfig) (Running, error) {
	if len(cfg.Socket) > berth.SocketPathMax {
		return Running{}, errPathTooLong(cfg.Socket)
	}
	log, err := os.OpenFile(filepath.Join(cfg.Dir, berth.FileHolderErr), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return Running{}, startError(err)
	}
	defer log.Close() //nolint:errcheck // this side writes nothing to it
	child, spec, answer, err := launch(cfg, log)
	if err != nil {
		return Running{}, startError(err)
	}
	defer spec.Close()   //nolint:errcheck // closing again does nothing
	defer answer.Close() //nolint:errcheck // it was only read
	stop := context.AfterFunc(ctx, func() {
		_ = spec.SetDeadline(time.Unix(1, 0))
		_ = answer.SetDeadline(time.Unix(1, 0))
	})
	defer stop()
	if cfg.Scope != nil {
		_ = cfg.Scope(ctx, child.PID) // not fatal: the holder then stays where it was born
	}
	if err := handOver(cfg.Spec, spec, answer); err != nil {
		_ = spec.Close() // before it was whole, this ends the holder
		if ctx.Err() != nil {
			return Running{}, ctx.Err()
		}
		return Running{}, err
	}
	return ReadRunning(cfg.Dir)
}

// launch starts the binary with a pipe on its input and one on its output.
func launch(cfg StartConfig, log *os.File) (child *process.Child, spec, answer *os.File, err error) {
	in, spec, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	defer in.Close() //nolint:errcheck // the holder has its own
	answer, out, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, errors.Join(err, spec.Close())
	}
	defer out.Close() //nolint:errcheck // the holder has its own
	child, err = process.StartDetached(process.Detached{
		Path:  cfg.Binary,
		Args:  []string{filepath.Base(cfg.Binary), cfg.Dir, cfg.Socket},
		Env:   holderEnv[:],
		Stdin: in, Stdout: out, Stderr: log,
	})
	if err != nil {
		return nil, nil, nil, errors.Join(err, spec.Close(), answer.Close())
	}
	return child, spec, answer, nil
}

// handOver gives the holder its spec and waits for its answer.
func handOver(s Spec, spec, answer *os.File) error {
	body := encodeSpec(s)
	if len(body) > maxSpec {
		return berth.Errorf(berth.CodeTooLarge, "the command and its environment have more than %d bytes", maxSpec)
	}
	_, werr := spec.Write(frame(opHello, body))
	werr = errors.Join(werr, spec.Close())
	typ, body, err := readFrame(answer, nil, maxBody)
	switch {
	case err == nil && typ == reOK:
		return nil
	case err == nil && typ == reError:
		return decodeError(body)
	}
	return startError(fmt.Errorf("the holder ended before it answered: %w", errors.Join(err, werr)))
}

func startError(err error) error {
	var e *berth.Error
	if errors.As(err, &e) {
		return err
	}
	return berth.Errorf(berth.CodeStartFailed, "start the holder: %w", err)
}
