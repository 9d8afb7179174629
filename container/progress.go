package container

import (
	"strings"

	"berth"
)

// message is one line of a pull's stream.
type message struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Progress struct {
		Current int64  `json:"current"`
		Total   int64  `json:"total"`
		Units   string `json:"units"` // "" = bytes; "s" = seconds, which say nothing of how far it is
	} `json:"progressDetail"`
	ErrorDetail *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"errorDetail"`
	Error string `json:"error"`
}

// tally adds the messages of a pull up, over all its tries. It is pure.
//
// A layer is first downloaded and then unpacked, and Docker counts both in
// compressed bytes under the same id: they are told apart by the status. A layer
// that Docker has already is not counted, unless it was counted before (in an
// earlier try). A try that begins a layer again takes nothing back.
type tally struct {
	layers map[string]*layer
	best   berth.Progress // the last one shown
}

type layer struct {
	down, unpacked, total int64
}

// maxLayers is more than any image has; what is beyond is not counted.
const maxLayers = 1000

// maxBytes bounds a size that the daemon names, so that no sum overflows.
const maxBytes = int64(1) << 50

func newTally() *tally { return &tally{layers: map[string]*layer{}} }

// take reads a message and reports whether the progress changed.
func (t *tally) take(m message) bool {
	if m.ID == "" {
		return false
	}
	l := t.layers[m.ID]
	switch {
	case strings.HasPrefix(m.Status, "Already exists"):
		if l != nil {
			l.finish()
		}
	case strings.HasPrefix(m.Status, "Downloading"):
		if l = t.layer(m.ID); l != nil && m.Progress.Units == "" {
			l.total = max(l.total, sane(m.Progress.Total))
			l.down = max(l.down, sane(m.Progress.Current))
			l.total = max(l.total, l.down)
		}
	case strings.HasPrefix(m.Status, "Download complete"), strings.HasPrefix(m.Status, "Verifying Checksum"):
		if l != nil {
			l.down = l.total
		}
	case strings.HasPrefix(m.Status, "Extracting"):
		if l = t.layer(m.ID); l != nil && m.Progress.Units == "" {
			l.total = max(l.total, sane(m.Progress.Total))
			l.down = l.total
			l.unpacked = max(l.unpacked, min(sane(m.Progress.Current), l.total))
		}
	case strings.HasPrefix(m.Status, "Pull complete"):
		if l != nil {
			l.finish()
		}
	}
	return t.sum()
}

func (l *layer) finish() { l.down, l.unpacked = l.total, l.total }

func sane(n int64) int64 { return min(max(n, 0), maxBytes) }

func (t *tally) layer(id string) *layer {
	l := t.layers[id]
	if l == nil && len(t.layers) < maxLayers {
		l = &layer{}
		t.layers[id] = l
	}
	return l
}

// sum works the progress out; no part of it ever goes back.
func (t *tally) sum() bool {
	p := berth.Progress{Stage: "download", Unit: "bytes"}
	for _, l := range t.layers {
		p.Done += l.down
		p.DoneUnpack += l.unpacked
		p.Total += l.total
	}
	p.Done = max(p.Done, t.best.Done)
	p.DoneUnpack = max(p.DoneUnpack, t.best.DoneUnpack)
	p.Total = max(p.Total, t.best.Total)
	// Between two layers everything that is known of may be there, and more to
	// come: "unpack" is only said once unpacking has begun.
	if p.Total > 0 && p.Done == p.Total && p.DoneUnpack > 0 || t.best.Stage == "unpack" && p.Done == t.best.Done {
		p.Stage = "unpack"
	}
	if p == t.best {
		return false
	}
	t.best = p
	return true
}

// finish says that all of it is there.
func (t *tally) finish() berth.Progress {
	t.best.Stage, t.best.Unit = "unpack", "bytes"
	t.best.Done, t.best.DoneUnpack = t.best.Total, t.best.Total
	return t.best
}
