package hoststep

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
)

// object is a JSON object whose members keep their order and their bytes, so
// that a file that is somebody else's comes back as they wrote it.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

var errObject = errors.New("not one JSON object with each key once")

// parseObject reads one object and nothing after it. A key that is there twice
// is an error: which of the two counts is not for us to say.
func parseObject(data []byte) (object, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errObject
	}
	o := object{}
	for d.More() {
		t, err := d.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return nil, errObject
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errObject
		}
		if _, twice := o.get(key); twice {
			return nil, errObject
		}
		o = append(o, member{key, slices.Clone(value)})
	}
	if _, err := d.Token(); err != nil {
		return nil, errObject
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errObject
	}
	return o, nil
}

func (o object) get(key string) (json.RawMessage, bool) {
	for _, m := range o {
		if m.key == key {
			return m.value, true
		}
	}
	return nil, false
}

// set returns the object with the key at its old place, or at the end.
func (o object) set(key string, value json.RawMessage) object {
	o = slices.Clone(o)
	for i := range o {
		if o[i].key == key {
			o[i].value = value
			return o
		}
	}
	return append(o, member{key, value})
}

func (o object) without(key string) object {
	return slices.DeleteFunc(slices.Clone(o), func(m member) bool { return m.key == key })
}

// compact writes the object on one line.
func (o object) compact() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil // a string always marshals
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// indented writes the object for people, and ends with a line feed.
func (o object) indented() ([]byte, error) {
	var b bytes.Buffer
	if err := json.Indent(&b, o.compact(), "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// child is the object below a key; a key that is not there is an empty object
// with made true.
func (o object) child(key string) (below object, made bool, err error) {
	raw, there := o.get(key)
	if !there {
		return object{}, true, nil
	}
	below, err = parseObject(raw)
	return below, false, err
}
