package hoststep

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the fingerprint of a v4 key is defined as SHA-1
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
)

// MaxKey is the largest key file in bytes.
const MaxKey = 256 << 10

var errKey = errors.New("not a file of OpenPGP public keys")

const (
	armorBegin = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	armorEnd   = "-----END PGP PUBLIC KEY BLOCK-----"
)

// keyFile is a parsed file of public keys.
type keyFile struct {
	binary       []byte
	armored      bool
	fingerprints []string // of every primary key, upper-case hex, in order
}

// parseKeys reads a file of OpenPGP keys, binary or in one ASCII armour (RFC
// 4880, sections 4.2, 6.2 and 12.2). Only public keys and what belongs to them
// may be in it; whatever is not plainly that is refused.
func parseKeys(data []byte) (keyFile, error) {
	if len(data) == 0 || len(data) > MaxKey {
		return keyFile{}, errKey
	}
	k := keyFile{binary: data}
	if data[0]&0x80 == 0 {
		var err error
		if k.binary, err = dearmor(string(data)); err != nil {
			return keyFile{}, err
		}
		k.armored = true
	}
	for rest := k.binary; len(rest) > 0; {
		tag, body, after, err := packet(rest)
		if err != nil {
			return keyFile{}, err
		}
		rest = after
		switch tag {
		case 6: // primary key
			if len(body) < 6 || body[0] != 4 || len(body) > 0xffff {
				return keyFile{}, errKey
			}
			h := sha1.New() //nolint:gosec // see above
			h.Write([]byte{0x99, byte(len(body) >> 8), byte(len(body))})
			h.Write(body)
			k.fingerprints = append(k.fingerprints, strings.ToUpper(hex.EncodeToString(h.Sum(nil))))
		case 2, 13, 14, 17: // signature, user id, subkey, user attribute: of a primary key before them
			if len(k.fingerprints) == 0 {
				return keyFile{}, errKey
			}
		default:
			return keyFile{}, errKey
		}
	}
	if len(k.fingerprints) == 0 {
		return keyFile{}, errKey
	}
	return k, nil
}

// only reports whether every primary key is one of those pinned.
func (k keyFile) only(pinned []string) bool {
	return !slices.ContainsFunc(k.fingerprints, func(f string) bool { return !slices.Contains(pinned, f) })
}

// packet splits the first packet off. Lengths that are not known from the start
// (partial, indeterminate) are refused: keys have none.
func packet(data []byte) (tag byte, body, rest []byte, err error) {
	head, data := data[0], data[1:]
	if head&0x80 == 0 {
		return 0, nil, nil, errKey
	}
	var size, used int
	number := func(n int) bool { // a length of n bytes, big-endian
		if len(data) < n {
			return false
		}
		for _, b := range data[:n] {
			size = size<<8 | int(b)
		}
		used = n
		return n < 4 || size <= MaxKey // before it could overflow an int of 32 bits
	}
	ok := false
	if head&0x40 == 0 { // old form
		tag = head >> 2 & 0x0f
		if kind := head & 3; kind < 3 {
			ok = number(1 << kind)
		}
	} else if tag = head & 0x3f; len(data) > 0 {
		switch first := data[0]; {
		case first < 192:
			ok = number(1)
		case first < 224 && len(data) > 1:
			size, used, ok = (int(first)-192)<<8+int(data[1])+192, 2, true
		case first == 255 && len(data) > 4 && data[1] == 0: // no key needs more than 24 bits
			data = data[1:]
			ok = number(4)
		}
	}
	if !ok || size < 0 || size > len(data)-used {
		return 0, nil, nil, errKey
	}
	data = data[used:]
	return tag, data[:size], data[size:], nil
}

// dearmor reads exactly one armoured block and nothing beside it.
func dearmor(text string) ([]byte, error) {
	lines := strings.Split(strings.ReplaceAll(strings.TrimSpace(text), "\r\n", "\n"), "\n")
	if len(lines) < 4 || strings.TrimSpace(lines[0]) != armorBegin || strings.TrimSpace(lines[len(lines)-1]) != armorEnd {
		return nil, errKey
	}
	lines = lines[1 : len(lines)-1]
	blank := slices.IndexFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "" })
	if blank < 0 {
		return nil, errKey
	}
	for _, header := range lines[:blank] {
		if !strings.Contains(header, ": ") {
			return nil, errKey
		}
	}
	if lines = lines[blank+1:]; len(lines) == 0 {
		return nil, errKey
	}
	var sum []byte
	if last := strings.TrimSpace(lines[len(lines)-1]); strings.HasPrefix(last, "=") && len(last) == 5 {
		var err error
		if sum, err = base64.StdEncoding.DecodeString(last[1:]); err != nil {
			return nil, errKey
		}
		lines = lines[:len(lines)-1]
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t")
	}
	data, err := base64.StdEncoding.Strict().DecodeString(strings.Join(lines, ""))
	if err != nil || len(data) == 0 || sum != nil && !bytes.Equal(sum, crc24(data)) {
		return nil, errKey
	}
	return data, nil
}

// crc24 is the checksum of RFC 4880, section 6.1.
func crc24(data []byte) []byte {
	crc := uint32(0xb704ce)
	for _, b := range data {
		crc ^= uint32(b) << 16
		for range 8 {
			if crc <<= 1; crc&0x1000000 != 0 {
				crc ^= 0x1864cfb
			}
		}
	}
	return []byte{byte(crc >> 16), byte(crc >> 8), byte(crc)}
}
