package guest

import "berth"

// sizeVoter is what the size decision knows of one viewer.
type sizeVoter struct {
	size     berth.Size // zero = it has no terminal
	readOnly bool
	hidden   bool
	active   uint64 // rises each time that the viewer attaches, types or comes to the front
}

func (v sizeVoter) votes() bool { return v.size.Valid() && !v.readOnly && !v.hidden }

// decideSize says what size a session should have. Whoever only looks has no
// say, and where nobody has one the size stays: a viewer that leaves must not
// shrink what a program has drawn.
func decideSize(policy berth.SizePolicy, now berth.Size, voters []sizeVoter) berth.Size {
	size := now
	switch policy {
	case berth.SizeLatest:
		var last uint64
		for _, v := range voters {
			if v.votes() && v.active >= last {
				size, last = v.size, v.active
			}
		}
	case berth.SizeSmallest:
		first := true
		for _, v := range voters {
			if !v.votes() {
				continue
			}
			if first {
				size, first = v.size, false
				continue
			}
			size.Cols = min(size.Cols, v.size.Cols)
			size.Rows = min(size.Rows, v.size.Rows)
		}
	case berth.SizeFixed:
	}
	return size
}
