package holder

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"time"

	"berth"
)

// maxRecord bounds running.json and exit.json.
const maxRecord = 64 << 10

// ReadRunning reads the record in a session's directory, ReadExit the exit
// record, ReadSnapshot the deposited screen. A missing file satisfies
// errors.Is(err, fs.ErrNotExist); a damaged one is CodeRecordUnreadable.
func ReadRunning(dir string) (Running, error) {
	var r Running
	if err := readRecord(filepath.Join(dir, berth.FileIdentity), &r); err != nil {
		return Running{}, err
	}
	if r.Program.PID <= 0 || r.Program.BootID == "" || r.Holder.PID <= 0 || r.Generation < 1 || r.LogBytes < 0 {
		return Running{}, unreadable(filepath.Join(dir, berth.FileIdentity), "it names no process")
	}
	return r, nil
}

// ReadExit reads the exit record.
func ReadExit(dir string) (berth.Exit, error) {
	var e berth.Exit
	path := filepath.Join(dir, berth.FileExit)
	if err := readRecord(path, &e); err != nil {
		return berth.Exit{}, err
	}
	switch e.Reason {
	case berth.ExitExited, berth.ExitSuspended, berth.ExitEnded:
		return e, nil
	}
	return berth.Exit{}, unreadable(path, "the reason "+strconv.Quote(string(e.Reason))+" is not known")
}

func readRecord(path string, into any) error {
	b, err := berth.ReadFile(path, maxRecord)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return unreadable(path, err.Error())
	}
	return nil
}

func unreadable(path, why string) error {
	return berth.Errorf(berth.CodeRecordUnreadable, "%s cannot be read: %s", path, why).WithFact("path", path)
}

// The records are written by hand: encoding/json would keep 50 KB of type
// tables alive in every holder, for two small objects in its whole life.

func (r Running) appendJSON(b []byte) []byte {
	b = append(b, `{"holder":`...)
	b = appendIdentity(b, r.Holder)
	b = append(b, `,"program":`...)
	b = appendIdentity(b, r.Program)
	b = append(b, `,"generation":`...)
	b = strconv.AppendInt(b, int64(r.Generation), 10)
	b = append(b, `,"started_at":"`...)
	b = r.StartedAt.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	if r.Cgroup != "" {
		b = append(b, `,"cgroup":`...)
		b = appendString(b, r.Cgroup)
	}
	b = append(b, `,"log_bytes":`...)
	b = strconv.AppendInt(b, r.LogBytes, 10)
	return append(b, "}\n"...)
}

func appendIdentity(b []byte, id berth.Identity) []byte {
	b = append(b, `{"boot_id":`...)
	b = appendString(b, id.BootID)
	b = append(b, `,"pid":`...)
	b = strconv.AppendInt(b, int64(id.PID), 10)
	b = append(b, `,"start_time":`...)
	b = strconv.AppendUint(b, id.StartTime, 10)
	if id.PidfdInode != 0 {
		b = append(b, `,"pidfd_inode":`...)
		b = strconv.AppendUint(b, id.PidfdInode, 10)
	}
	return append(b, '}')
}

func appendExit(b []byte, e berth.Exit) []byte {
	b = append(b, `{"code":`...)
	b = strconv.AppendInt(b, int64(e.Code), 10)
	if e.Signal != "" {
		b = append(b, `,"signal":`...)
		b = appendString(b, e.Signal)
	}
	b = append(b, `,"reason":`...)
	b = appendString(b, string(e.Reason))
	if e.Detail != "" {
		b = append(b, `,"detail":`...)
		b = appendString(b, e.Detail)
	}
	b = append(b, `,"offset":`...)
	b = strconv.AppendUint(b, e.Offset, 10)
	b = append(b, `,"at":"`...)
	b = e.At.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	if e.Survivors != 0 {
		b = append(b, `,"survivors":`...)
		b = strconv.AppendInt(b, int64(e.Survivors), 10)
	}
	return append(b, "}\n"...)
}

// appendString writes a JSON string. Bytes that are not UTF-8 (a path may have
// them) become U+FFFD, as encoding/json does it.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20 || r == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = append(b, string(r)...)
		}
	}
	return append(b, '"')
}

// A snapshot file is this header, then the screen:
//
//	"BSN1" | u32 generation | u64 offset | u32 CRC-32 of the screen | u32 its length
//
// It is written without fsync, so the checksum tells a torn one.
const (
	snapshotMagic  = "BSN1"
	snapshotHeader = 24
)

func encodeSnapshot(s Snapshot) []byte {
	b := make([]byte, 0, snapshotHeader+len(s.Screen))
	return append(appendSnapshotHeader(b, s), s.Screen...)
}

func appendSnapshotHeader(b []byte, s Snapshot) []byte {
	b = append(b, snapshotMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(s.Generation))
	b = binary.BigEndian.AppendUint64(b, s.Offset)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(s.Screen))
	return binary.BigEndian.AppendUint32(b, uint32(len(s.Screen)))
}

func decodeSnapshot(b []byte) (Snapshot, bool) {
	if len(b) < snapshotHeader || string(b[:4]) != snapshotMagic {
		return Snapshot{}, false
	}
	screen := b[snapshotHeader:]
	if uint64(binary.BigEndian.Uint32(b[20:])) != uint64(len(screen)) || binary.BigEndian.Uint32(b[16:]) != crc32.ChecksumIEEE(screen) {
		return Snapshot{}, false
	}
	return Snapshot{
		Generation: int(binary.BigEndian.Uint32(b[4:])),
		Offset:     binary.BigEndian.Uint64(b[8:]),
		Screen:     screen,
	}, true
}

// ReadSnapshot reads the deposited screen.
func ReadSnapshot(dir string) (Snapshot, error) {
	path := filepath.Join(dir, berth.FileSnapshot)
	b, err := berth.ReadFile(path, maxSnapshot+snapshotHeader)
	if err != nil {
		return Snapshot{}, fmt.Errorf("read the deposited screen: %w", err)
	}
	s, ok := decodeSnapshot(b)
	if !ok {
		return Snapshot{}, unreadable(path, "it is torn or is no snapshot")
	}
	return s, nil
}
