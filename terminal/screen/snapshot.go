package screen

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// A snapshot is: magic, version, fields in a fixed order as varints and counted
// strings, and a CRC-32C of all before it. Rows are runs of one style. A newer
// version is refused: the log rebuilds the screen then.
const (
	snapshotMagic   = "berth screen "
	snapshotVersion = 1
	// maxSnapshot is far over what the largest screen takes.
	maxSnapshot = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot is the whole model as bytes, parser state included, for Restore.
// Answers that nobody took are not in it.
func (s *Screen) Snapshot() []byte {
	e := encoder{dst: append(make([]byte, 0, 4096), snapshotMagic...)}
	e.int(snapshotVersion)
	e.int(s.cols)
	e.int(s.rows)
	e.tables(s)
	e.parser(&s.parser)
	e.state(s)
	e.grid(s, s.main)
	e.bool(s.alt != nil)
	if s.alt != nil {
		e.grid(s, s.alt)
	}
	return binary.LittleEndian.AppendUint32(e.dst, crc32.Checksum(e.dst, castagnoli))
}

type encoder struct{ dst []byte }

func (e *encoder) uint(v uint64) { e.dst = binary.AppendUvarint(e.dst, v) }
func (e *encoder) int(v int)     { e.uint(uint64(v)) }
func (e *encoder) byte(v byte)   { e.dst = append(e.dst, v) }
func (e *encoder) bool(v bool) {
	if v {
		e.byte(1)
	} else {
		e.byte(0)
	}
}

func (e *encoder) bytes(v []byte) {
	e.int(len(v))
	e.dst = append(e.dst, v...)
}

func (e *encoder) str(v string) {
	e.int(len(v))
	e.dst = append(e.dst, v...)
}

func (e *encoder) tables(s *Screen) {
	e.int(len(s.clusters.values))
	for _, v := range s.clusters.values {
		e.str(v)
	}
	e.int(len(s.extras.values))
	for _, v := range s.extras.values {
		e.uint(uint64(v.underline))
		e.str(v.link)
	}
}

func (e *encoder) parser(p *parser) {
	if p.state == inGround { // what the last sequence left means nothing
		p = &parser{partial: p.partial, npartial: p.npartial, pending: p.pending}
	}
	e.byte(byte(p.state))
	e.byte(byte(p.back))
	e.byte(p.prefix)
	e.byte(p.inter)
	e.byte(p.final)
	e.int(p.nparam)
	e.bool(p.digits)
	e.uint(uint64(p.colon))
	n := p.nparam
	if p.digits || p.state == inCSI {
		n = min(n+1, maxParams)
	}
	e.int(n)
	for _, v := range p.params[:n] {
		e.uint(uint64(v))
	}
	e.bytes(p.buf)
	e.bool(p.overflow)
	e.bool(p.c2)
	e.bool(p.bell)
	e.bytes(p.c0[:p.nc0])
	e.bytes(p.partial[:p.npartial])
	e.int(p.pending)
}

func (e *encoder) state(s *Screen) {
	e.int(s.x)
	e.int(s.y)
	e.bool(s.wrap)
	e.style(s.pen)
	e.dst = append(e.dst, s.charsets[:]...)
	e.byte(s.gl)
	e.byte(s.shift)
	e.uint(uint64(s.last))
	e.int(s.top)
	e.int(s.bottom)
	for i := range s.saved {
		c := &s.saved[i]
		e.bool(c.set)
		e.int(c.x)
		e.int(c.y)
		e.bool(c.wrap)
		e.bool(c.origin)
		e.style(c.pen)
		e.dst = append(e.dst, c.charsets[:]...)
		e.byte(c.gl)
		e.int(s.keyboard[i].flags)
		e.bytes(s.keyboard[i].saved)
	}
	for _, w := range s.tabs {
		e.uint(w)
	}
	for _, v := range []uint64{s.modes, s.savedMask, s.savedModes, uint64(s.savedMouse), uint64(s.mouse)} {
		e.uint(v)
	}
	e.bool(s.savedMouseSet)
	e.byte(s.modifyKeys)
	e.byte(s.cursorStyle)
	e.str(s.title)
	e.bool(s.titled)
	e.int(len(s.titles))
	for _, t := range s.titles {
		e.str(t)
	}
	e.str(s.cwd)
	e.str(s.cwdURL)
	keys := make([]uint8, 0, len(s.palette))
	for k := range s.palette {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	e.int(len(keys))
	for _, k := range keys {
		e.byte(k)
		e.str(s.palette[k])
	}
	for _, c := range s.colours {
		e.str(c)
	}
	e.bool(s.reported)
	e.bool(s.busy)
}

func (e *encoder) style(c cell) {
	e.uint(uint64(c.fg))
	e.uint(uint64(c.bg))
	e.uint(uint64(c.attr))
}

// How a cell's character is written: 1 is a tail, from clusterBase a cluster.
const clusterBase = 0x200000

func (e *encoder) grid(s *Screen, g *grid) {
	for y := range s.rows {
		l := g.line(y)
		n := l.visible()
		e.int(n)
		e.bool(l.wrapped)
		for x := 0; x < n; {
			c := l.cells[x]
			end := x + 1
			for end < n && l.cells[end].fg == c.fg && l.cells[end].bg == c.bg && l.cells[end].attr == c.attr {
				end++
			}
			e.int(end - x)
			e.style(c)
			for ; x < end; x++ {
				switch ch := l.cells[x].ch; {
				case ch == tailCh:
					e.byte(1)
				case ch&clusterBit != 0:
					e.uint(uint64(ch&^clusterBit) + clusterBase)
				default:
					e.uint(uint64(ch))
				}
			}
		}
	}
}
