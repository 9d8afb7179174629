package hoststep

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// packetOf writes a packet in the new form.
func packetOf(tag byte, body []byte) []byte {
	return slices.Concat([]byte{0xc0 | tag, 0xff, 0, 0, byte(len(body) >> 8), byte(len(body))}, body)
}

func keyPackets(name string) []byte {
	return slices.Concat(packetOf(6, []byte("\x04\x00\x00\x00\x00\x16key of "+name)), packetOf(13, []byte(name)), packetOf(2, []byte("signature")), packetOf(14, []byte("\x04subkey")))
}

func armor(data []byte) string {
	text := base64.StdEncoding.EncodeToString(data)
	var b strings.Builder
	b.WriteString(armorBegin + "\nComment: of a test\n\n")
	for len(text) > 64 {
		b.WriteString(text[:64] + "\n")
		text = text[64:]
	}
	return b.String() + text + "\n=" + base64.StdEncoding.EncodeToString(crc24(data)) + "\n" + armorEnd + "\n"
}

func fingerprint(body string) string {
	sum := sha1.Sum(slices.Concat([]byte{0x99, byte(len(body) >> 8), byte(len(body))}, []byte(body)))
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}

func TestParseKeys(t *testing.T) {
	one := "\x04\x00\x00\x00\x00\x16key of docker"
	binary := keyPackets("docker")
	for name, data := range map[string][]byte{
		"binary": binary, "armour": []byte(armor(binary)), "armour of Windows": []byte(strings.ReplaceAll(armor(binary), "\n", "\r\n")),
		"armour without a checksum": []byte(strings.Replace(armor(binary), "="+base64.StdEncoding.EncodeToString(crc24(binary))+"\n", "", 1)),
		"old form, one byte":        slices.Concat([]byte{0x80 | 6<<2, byte(len(one))}, []byte(one)),
		"old form, two bytes":       slices.Concat([]byte{0x80 | 6<<2 | 1, 0, byte(len(one))}, []byte(one)),
		"old form, four bytes":      slices.Concat([]byte{0x80 | 6<<2 | 2, 0, 0, 0, byte(len(one))}, []byte(one)),
		"new form, one byte":        slices.Concat([]byte{0xc0 | 6, byte(len(one))}, []byte(one)),
	} {
		k, err := parseKeys(data)
		if err != nil || !slices.Equal(k.fingerprints, []string{fingerprint(one)}) {
			t.Errorf("%s: %v %v", name, k.fingerprints, err)
		}
	}
	two, err := parseKeys(slices.Concat(binary, keyPackets("another")))
	if err != nil || len(two.fingerprints) != 2 || two.only(two.fingerprints[:1]) || !two.only(two.fingerprints) {
		t.Errorf("a second primary key went unseen: %v %v", two.fingerprints, err)
	}
	long := "\x04" + strings.Repeat("x", 300) // a length of two bytes in the new form
	if k, err := parseKeys(slices.Concat([]byte{0xc0 | 6, 192, byte(301 - 192)}, []byte(long))); err != nil || k.fingerprints[0] != fingerprint(long) {
		t.Errorf("%v %v", k.fingerprints, err)
	}
	for name, data := range map[string][]byte{
		"nothing":              nil,
		"html":                 []byte("<html>"),
		"version 6":            packetOf(6, []byte("\x06xxxxxxxx")),
		"version 3":            packetOf(6, []byte("\x03xxxxxxxx")),
		"secret key":           packetOf(5, []byte("\x04xxxxxxxx")),
		"a message":            slices.Concat(binary, packetOf(11, []byte("text"))),
		"subkey first":         packetOf(14, []byte("\x04xxxxxxxx")),
		"no key":               packetOf(13, []byte("user")),
		"cut off":              binary[:len(binary)-1],
		"partial length":       slices.Concat([]byte{0xc0 | 6, 0xe1}, []byte("xxxx")),
		"indeterminate length": slices.Concat([]byte{0x80 | 6<<2 | 3}, []byte(one)),
		"length beyond":        {0xc0 | 6, 0xff, 0x7f, 0xff, 0xff, 0xff, 4},
		"length of all bits":   {0x80 | 6<<2 | 2, 0xff, 0xff, 0xff, 0xff, 4},
		"garbage after":        append(slices.Clone(binary), 'x'),
		"two blocks":           []byte(armor(binary) + armor(binary)),
		"text before":          []byte("x\n" + armor(binary)),
		"wrong checksum":       []byte(strings.Replace(armor(binary), "\n=", "\n=AAAA\n=", 1)),
		"bad checksum":         []byte(strings.Replace(armor(binary), base64.StdEncoding.EncodeToString(crc24(binary)), "AAAA", 1)),
		"no end":               []byte(strings.Replace(armor(binary), armorEnd, "", 1)),
		"headers only":         []byte(armorBegin + "\nA: b\n\n" + armorEnd),
		"private block":        []byte(strings.ReplaceAll(armor(binary), "PUBLIC", "PRIVATE")),
		"too large":            bytes.Repeat(binary, MaxKey/len(binary)+1),
	} {
		if k, err := parseKeys(data); err == nil {
			t.Errorf("%s was taken: %v", name, k.fingerprints)
		}
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add(keyPackets("a"))
	f.Add([]byte(armor(keyPackets("a"))))
	f.Add([]byte{0x80 | 6<<2 | 2, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte(armorBegin + "\n\n" + armorEnd))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := parseKeys(data)
		if err != nil {
			return
		}
		again, err := parseKeys(k.binary)
		if err != nil || !slices.Equal(again.fingerprints, k.fingerprints) || len(k.fingerprints) == 0 {
			t.Fatalf("%v %v %v", k.fingerprints, again.fingerprints, err)
		}
	})
}
