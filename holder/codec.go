package holder

import (
	"time"

	"berth"
)

func addRunning(b []byte, r Running) []byte {
	b = addString(b, tagBootID, r.Program.BootID)
	b = addInt(b, tagHolderPID, uint64(r.Holder.PID))
	b = addInt(b, tagHolderStart, r.Holder.StartTime)
	b = addInt(b, tagHolderInode, r.Holder.PidfdInode)
	b = addInt(b, tagProgramPID, uint64(r.Program.PID))
	b = addInt(b, tagProgramStart, r.Program.StartTime)
	b = addInt(b, tagProgramInode, r.Program.PidfdInode)
	b = addInt(b, tagGeneration, uint64(r.Generation))
	b = addInt(b, tagStartedAt, uint64(r.StartedAt.UnixNano()))
	b = addString(b, tagCgroup, r.Cgroup)
	return addInt(b, tagLogBytes, uint64(r.LogBytes))
}

func runningField(r *Running, f field) bool {
	switch f.tag {
	case tagBootID:
		r.Program.BootID, r.Holder.BootID = f.str(), f.str()
	case tagHolderPID:
		r.Holder.PID = int(f.int())
	case tagHolderStart:
		r.Holder.StartTime = f.int()
	case tagHolderInode:
		r.Holder.PidfdInode = f.int()
	case tagProgramPID:
		r.Program.PID = int(f.int())
	case tagProgramStart:
		r.Program.StartTime = f.int()
	case tagProgramInode:
		r.Program.PidfdInode = f.int()
	case tagGeneration:
		r.Generation = int(f.int())
	case tagStartedAt:
		r.StartedAt = time.Unix(0, int64(f.int())).UTC()
	case tagCgroup:
		r.Cgroup = f.str()
	case tagLogBytes:
		r.LogBytes = int64(f.int())
	default:
		return false
	}
	return true
}

func addInfo(b []byte, i Info) []byte {
	b = addRunning(b, i.Running)
	b = addInt(b, tagCols, uint64(i.Size.Cols))
	b = addInt(b, tagRows, uint64(i.Size.Rows))
	b = addInt(b, tagStart, i.Start)
	b = addInt(b, tagEnd, i.End)
	b = addInt(b, tagLogFrom, i.LogFrom)
	b = addInt(b, tagLogSize, uint64(i.LogSize))
	b = addString(b, tagLogGap, i.LogGap)
	if i.Exit != nil {
		b = addExit(b, *i.Exit)
	}
	return b
}

func decodeInfo(body []byte) (Info, error) {
	var i Info
	var exit berth.Exit
	err := eachField(body, func(f field) {
		switch f.tag {
		case tagCols:
			i.Size.Cols = int(f.int())
		case tagRows:
			i.Size.Rows = int(f.int())
		case tagStart:
			i.Start = f.int()
		case tagEnd:
			i.End = f.int()
		case tagLogFrom:
			i.LogFrom = f.int()
		case tagLogSize:
			i.LogSize = int64(f.int())
		case tagLogGap:
			i.LogGap = f.str()
		default:
			if !runningField(&i.Running, f) && exitField(&exit, f) {
				i.Exit = &exit
			}
		}
	})
	return i, err
}

func addKill(b []byte, k KillResult) []byte {
	if k.Exit != nil {
		b = addExit(b, *k.Exit)
	}
	if k.Contained {
		b = addInt(b, tagContained, 1)
	}
	for _, pid := range k.Survivors {
		b = addInt(b, tagSurvivor, uint64(pid))
	}
	return b
}

func decodeKill(body []byte) (KillResult, error) {
	var k KillResult
	var exit berth.Exit
	err := eachField(body, func(f field) {
		switch f.tag {
		case tagContained:
			k.Contained = f.int() == 1
		case tagSurvivor:
			k.Survivors = append(k.Survivors, int(f.int()))
		default:
			if exitField(&exit, f) {
				k.Exit = &exit
			}
		}
	})
	return k, err
}

func addSnapshot(b []byte, s Snapshot) []byte {
	b = addInt(b, tagGeneration, uint64(s.Generation))
	b = addInt(b, tagOffset, s.Offset)
	return addBytes(b, tagData, s.Screen)
}

// snapshotFields decodes a snapshot; its screen is a part of body.
func snapshotFields(body []byte) (Snapshot, error) {
	var s Snapshot
	err := eachField(body, func(f field) {
		switch f.tag {
		case tagGeneration:
			s.Generation = int(f.int())
		case tagOffset:
			s.Offset = f.int()
		case tagData:
			s.Screen = f.val
		}
	})
	return s, err
}

func encodeSpec(s Spec) []byte {
	b := addString(nil, tagID, s.ID)
	b = addInt(b, tagGeneration, uint64(s.Generation))
	for _, a := range s.Argv {
		b = addBytes(b, tagArg, []byte(a))
	}
	for _, e := range s.Env {
		b = addBytes(b, tagEnv, []byte(e))
	}
	b = addString(b, tagCwd, s.Cwd)
	b = addInt(b, tagCols, uint64(s.Size.Cols))
	b = addInt(b, tagRows, uint64(s.Size.Rows))
	b = addInt(b, tagLogBytes, uint64(s.LogBytes))
	b = addInt(b, tagRingBytes, uint64(s.RingBytes))
	b = addInt(b, tagKillGrace, uint64(s.KillGrace))
	return addInt(b, tagDrainQuiet, uint64(s.DrainQuiet))
}

func decodeSpec(body []byte) (Spec, error) {
	var s Spec
	err := eachField(body, func(f field) {
		switch f.tag {
		case tagID:
			s.ID = f.str()
		case tagGeneration:
			s.Generation = int(f.int())
		case tagArg:
			s.Argv = append(s.Argv, f.str())
		case tagEnv:
			s.Env = append(s.Env, f.str())
		case tagCwd:
			s.Cwd = f.str()
		case tagCols:
			s.Size.Cols = int(f.int())
		case tagRows:
			s.Size.Rows = int(f.int())
		case tagLogBytes:
			s.LogBytes = int64(f.int())
		case tagRingBytes:
			s.RingBytes = int64(f.int())
		case tagKillGrace:
			s.KillGrace = time.Duration(f.int())
		case tagDrainQuiet:
			s.DrainQuiet = time.Duration(f.int())
		}
	})
	return s, err
}
