package cli

import (
	"context"
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"berth"
)

// logsOptions are the flags of logs.
type logsOptions struct {
	follow bool
	from   uint64
	given  bool // --from was given
	tail   int64
}

func newLogs(a *app) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Write a session's output, byte for byte",
		Long: `Write what a session's program has written, byte for byte: nothing is added,
nothing is changed. The output is kept within a bound, so it begins with the
first byte kept, or with --from OFFSET. Output that is not kept any more is told
of on standard error.

With --json each piece is a document with its offset and the bytes in base64.`,
		Example: `berth logs calm-heron
berth logs -f calm-heron           # until the program ends
berth logs calm-heron --tail 4096  # the last 4096 bytes`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: a.completeSessions(false, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.given = cmd.Flags().Changed("from")
			if o.given && cmd.Flags().Changed("tail") {
				return usage(cmd, "--from and --tail exclude each other")
			}
			if o.tail < 0 {
				return usage(cmd, "--tail takes a number of bytes")
			}
			if !cmd.Flags().Changed("tail") {
				o.tail = -1
			}
			return a.logs(cmd.Context(), args[0], o)
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on until the program ends")
	cmd.Flags().Uint64Var(&o.from, "from", 0, "begin at this `OFFSET`, in bytes from the start of the program")
	cmd.Flags().Int64Var(&o.tail, "tail", 0, "only the last `BYTES`")
	return cmd
}

// logPiece is a piece of output in JSON.
type logPiece struct {
	V          int    `json:"v"`
	Generation int    `json:"generation"`
	Offset     uint64 `json:"offset"` // of the first byte of data
	Data       []byte `json:"data"`   // base64
}

func (a *app) logs(ctx context.Context, ref string, o logsOptions) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	q := berth.LogRequest{From: o.from, FromStart: !o.given}
	if o.tail >= 0 {
		s, err := api.Session(ctx, ref)
		if err != nil {
			return err
		}
		start := s.Offsets.Start
		if n := uint64(o.tail); s.Offsets.End-start > n { //nolint:gosec // checked above
			start = s.Offsets.End - n
		}
		q = berth.LogRequest{Generation: s.Generation, From: start}
	}
	w := &logWriter{app: a, next: q.From, known: !q.FromStart || o.follow}
	if q.FromStart {
		w.known = false
	}
	if o.follow {
		return a.logsFollow(ctx, api, ref, q, w)
	}
	return a.logsKept(ctx, api, ref, q, w)
}

// logsFollow writes until the program ends. A first byte that is not kept any
// more is a gap, not a failure: what is kept follows.
func (a *app) logsFollow(ctx context.Context, api API, ref string, q berth.LogRequest, w *logWriter) error {
	err := api.FollowLog(ctx, ref, q, w.write)
	if keptFrom, gone := offsetGone(err); gone {
		q.From = keptFrom
		err = api.FollowLog(ctx, ref, q, w.write)
	}
	return err
}

// logsKept writes what is there now, up to the end as it was at the first answer.
func (a *app) logsKept(ctx context.Context, api API, ref string, q berth.LogRequest, w *logWriter) error {
	var end uint64
	for first := true; ; first = false {
		chunk, err := api.Log(ctx, ref, q)
		if keptFrom, gone := offsetGone(err); gone {
			q.From, q.FromStart = keptFrom, false
			if chunk, err = api.Log(ctx, ref, q); errors.Is(err, berth.CodeOffsetGone) {
				q.FromStart = true // it went again while we asked: take what there is
				chunk, err = api.Log(ctx, ref, q)
			}
		}
		if err != nil {
			return err
		}
		if first {
			end = chunk.End
		}
		if len(chunk.Data) > 0 {
			if err := w.write(chunk); err != nil {
				return err
			}
		}
		q = berth.LogRequest{Generation: chunk.Generation, From: chunk.Offset + uint64(len(chunk.Data))}
		if q.From >= end || len(chunk.Data) == 0 {
			return nil
		}
	}
}

// offsetGone reads the first offset kept from the error that says so.
func offsetGone(err error) (keptFrom uint64, gone bool) {
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != berth.CodeOffsetGone {
		return 0, false
	}
	n, perr := strconv.ParseUint(e.Facts["kept_from"], 10, 64)
	return n, perr == nil
}

// logWriter writes pieces and tells of what is missing between them.
type logWriter struct {
	app   *app
	next  uint64 // offset of the byte that should come
	known bool   // next is known: a later piece leaves a gap
}

func (w *logWriter) write(chunk berth.LogChunk) error {
	if w.known && chunk.Offset > w.next {
		w.app.note("note: %d bytes are missing here (offset %d to %d): they are no longer kept", chunk.Offset-w.next, w.next, chunk.Offset)
	}
	if !w.known && chunk.Offset > 0 {
		w.app.note("note: the first %d bytes are no longer kept", chunk.Offset)
	}
	w.next, w.known = chunk.Offset+uint64(len(chunk.Data)), true
	if w.app.flags.json {
		return w.app.answer(logPiece{version1, chunk.Generation, chunk.Offset, chunk.Data})
	}
	_, err := w.app.env.Stdout.Write(chunk.Data)
	return err
}
