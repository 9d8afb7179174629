package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// The schema's version is read from the bytes of the files, before SQLite sees
// them: opening a database in WAL mode, also read-only, recovers the log and
// leaves files behind, and a store that a newer berth wrote must not be touched.
//
// Formats: sqlite.org/fileformat2.html, sections 1.3 (header) and 4 (WAL).

const (
	headerMagic       = "SQLite format 3\x00"
	headerSize        = 100
	headerPageSize    = 16 // offset of the page size, 2 bytes, big-endian; 1 = 65536
	headerUserVersion = 60 // offset of user_version, 4 bytes
	headerApplication = 68 // offset of application_id, 4 bytes

	// applicationID is "brth".
	applicationID = 1651668072

	walHeaderSize   = 32
	frameHeaderSize = 24
	walMagic        = 0x377f0682 // the lowest bit says that checksums are big-endian
	minPageSize     = 512
	maxPageSize     = 65536
)

// schemaVersion gives the user_version of the database at path, 0 for one that
// is not there or empty. It writes nothing.
func schemaVersion(path string) (version int64, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	header := make([]byte, headerSize)
	n, err := io.ReadFull(f, header)
	switch {
	case errors.Is(err, io.EOF): // empty: as if it were not there
		return 0, nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return 0, fmt.Errorf("read %s: %w", path, err)
	case n < headerSize || string(header[:len(headerMagic)]) != headerMagic:
		return 0, errNotDatabase
	}
	// The newest header may be in the log alone, after a kill or a power cut.
	if page, err := newestFirstPage(path + "-wal"); err != nil {
		return 0, err
	} else if page != nil {
		header = page
	}
	version = int64(binary.BigEndian.Uint32(header[headerUserVersion:]))
	app := binary.BigEndian.Uint32(header[headerApplication:])
	// Without a version nothing of ours was committed yet: a first start that
	// was cut off, or another program's; refuseForeign tells them apart.
	if app != applicationID && (app != 0 || version != 0) {
		return 0, errForeignDatabase
	}
	return version, nil
}

var (
	errNotDatabase     = errors.New("the file is not an SQLite database")
	errForeignDatabase = errors.New("the file is an SQLite database of another program")
)

// newestFirstPage gives the database header from the last committed frame of
// page 1 in a write-ahead log; nil when the log has none. Frames after the first
// one that does not fit are remains of an older log or of a torn write, and
// SQLite ignores them just so.
func newestFirstPage(path string) (header []byte, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	head := make([]byte, walHeaderSize)
	if ok, err := readAll(f, head); !ok {
		return nil, err
	}
	magic := binary.BigEndian.Uint32(head)
	pageSize := binary.BigEndian.Uint32(head[8:])
	if magic&^1 != walMagic || pageSize < minPageSize || pageSize > maxPageSize {
		return nil, nil
	}
	sum := walChecksum{bigEndian: magic&1 == 1}
	sum.add(head[:24])
	if !sum.is(head[24:32]) {
		return nil, nil
	}
	var pending []byte // page 1 of the transaction that is not yet known to be committed
	frame := make([]byte, frameHeaderSize+pageSize)
	for {
		if ok, err := readAll(f, frame); !ok {
			return header, err
		}
		if string(frame[8:16]) != string(head[16:24]) { // the salts of another log
			return header, nil
		}
		sum.add(frame[:8])
		sum.add(frame[frameHeaderSize:])
		if !sum.is(frame[16:24]) {
			return header, nil
		}
		if binary.BigEndian.Uint32(frame) == 1 {
			pending = append([]byte(nil), frame[frameHeaderSize:frameHeaderSize+headerSize]...)
		}
		if binary.BigEndian.Uint32(frame[4:]) != 0 && pending != nil { // a commit
			header, pending = pending, nil
		}
	}
}

// readAll fills p; false when the file ends first.
func readAll(f *os.File, p []byte) (bool, error) {
	_, err := io.ReadFull(f, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return true, nil
}

// walChecksum is the running checksum of a write-ahead log.
type walChecksum struct {
	bigEndian bool
	s0, s1    uint32
}

func (c *walChecksum) add(p []byte) {
	var order binary.ByteOrder = binary.LittleEndian
	if c.bigEndian {
		order = binary.BigEndian
	}
	for ; len(p) >= 8; p = p[8:] {
		c.s0 += order.Uint32(p) + c.s1
		c.s1 += order.Uint32(p[4:]) + c.s0
	}
}

func (c *walChecksum) is(p []byte) bool {
	return binary.BigEndian.Uint32(p) == c.s0 && binary.BigEndian.Uint32(p[4:]) == c.s1
}

// refuseNewer finds the version of the file and refuses a newer one, and what is
// not a store of berth at all.
func (c Config) refuseNewer(known int64) (version int64, err error) {
	version, err = schemaVersion(c.Path)
	if err != nil {
		return 0, c.unusable(err)
	}
	if version > known {
		return 0, newer(c.Path, version, known)
	}
	return version, nil
}
