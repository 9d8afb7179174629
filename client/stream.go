package client

import (
	"fmt"

	"berth"
)

// violationError is a frame that cannot be at this place. The only way on is a
// new connection at the last byte that is certain.
type violationError struct{ text string }

func (e *violationError) Error() string { return e.text }

func violation(format string, args ...any) error {
	return &violationError{fmt.Sprintf(format, args...)}
}

// take turns a frame into an update and moves the position. An update of kind 0
// is nothing to tell. Any error breaks the connection.
func (v *Viewer) take(f berth.Frame) (Update, error) {
	if f.Type == berth.FrameHello {
		return v.takeHello(f)
	}
	if !v.greeted {
		return Update{}, violation("frame %q came before the hello", byte(f.Type))
	}
	painted := v.repaintSeen
	u, err := v.takeBody(f)
	if err == nil && painted && f.Type != berth.FrameRepaint && f.Type != berth.FrameGap {
		v.repaintOwed, v.repaintSeen = false, false // all parts of it are here
	}
	return u, err
}

func (v *Viewer) takeBody(f berth.Frame) (Update, error) {
	switch f.Type {
	case berth.FrameOutput:
		return v.takeOutput(f.Body)
	case berth.FrameRepaint:
		v.repaintSeen = true
		return Update{Kind: UpdateRepaint, Data: f.Body}, nil
	case berth.FrameGap:
		var gap berth.OutputGap
		if f.Decode(&gap) != nil || gap.To < gap.From {
			return Update{}, violation("a gap frame cannot be read")
		}
		return v.takeGap(gap)
	case berth.FrameState:
		u := Update{Kind: UpdateState}
		if f.Decode(&u.State) != nil {
			return Update{}, violation("a state frame cannot be read")
		}
		return u, nil
	case berth.FrameExit:
		u := Update{Kind: UpdateExit}
		if f.Decode(&u.Exit) != nil {
			return Update{}, violation("an exit frame cannot be read")
		}
		v.finish()
		return u, nil
	}
	return Update{}, nil // of a newer daemon; what we did not ask for we may skip
}

// takeHello connects the new connection to what the caller already has.
func (v *Viewer) takeHello(f berth.Frame) (Update, error) {
	u := Update{Kind: UpdateHello}
	h := &u.Hello
	if f.Decode(h) != nil || !h.Resume.Valid() || h.Generation < 1 {
		return Update{}, violation("a hello frame cannot be read")
	}
	switch {
	case h.Resume == berth.ResumeExact:
		if h.Generation != v.generation || h.Offset != v.offset {
			return Update{}, violation("resumed at generation %d offset %d instead of %d, %d", h.Generation, h.Offset, v.generation, v.offset)
		}
		v.repaintSeen = false // parts of another connection's repaint complete nothing
		if v.repaintOwed {
			// The last connection broke before its repaint was here, and an exact
			// continuation brings none.
			_ = v.Focus(berth.ViewerFocus{Refresh: true}) // a break shows at the next read
		}
		v.greeted = true
		return u, nil
	case v.generation == h.Generation && h.Offset > v.offset:
		// Whatever the kind is called, these bytes will not come.
		v.queued = append(v.queued, Update{Kind: UpdateGap, Gap: berth.OutputGap{From: v.offset, To: h.Offset}})
	case v.generation == h.Generation && h.Offset < v.offset:
		return Update{}, violation("resumed at offset %d, before %d", h.Offset, v.offset)
	}
	v.generation, v.offset = h.Generation, h.Offset
	v.repaintOwed, v.repaintSeen, v.greeted = true, false, true
	return u, nil
}

func (v *Viewer) takeOutput(body []byte) (Update, error) {
	offset, covers, data, err := berth.ParseOutput(body)
	if err != nil {
		return Update{}, violation("%s", err)
	}
	if offset != v.offset {
		return Update{}, violation("output at offset %d instead of %d", offset, v.offset)
	}
	v.offset += uint64(covers)
	return Update{Kind: UpdateOutput, Offset: offset, Covers: covers, Data: data}, nil
}

// takeGap moves over output that will not come. The hello of a resume may have
// told of the same gap already.
func (v *Viewer) takeGap(gap berth.OutputGap) (Update, error) {
	v.repaintOwed, v.repaintSeen = true, false
	if gap.To <= v.offset {
		return Update{}, nil
	}
	if gap.From != v.offset {
		return Update{}, violation("a gap from offset %d instead of %d", gap.From, v.offset)
	}
	v.offset = gap.To
	return Update{Kind: UpdateGap, Gap: gap}, nil
}
