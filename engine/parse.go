package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"berth"
)

// MaxDocument is the most bytes that a release document may have.
const MaxDocument = 1 << 20

// Parse reads one release document: JSON of the members of berth.Release and no
// others, each once, spelled as they are, none null, and nothing behind it. Then
// every bound is checked. The error is CodeReleaseInvalid and names the member.
func Parse(data []byte) (berth.Release, error) {
	var r berth.Release
	if len(data) > MaxDocument {
		return r, invalid("it is larger than %d bytes", MaxDocument)
	}
	if !utf8.Valid(data) {
		return r, invalid("it is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := checkValue(dec, reflect.TypeFor[berth.Release](), "the document"); err != nil {
		return r, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return r, invalid("something follows behind the document")
	}
	if err := json.Unmarshal(data, &r); err != nil { // a number that does not fit
		return berth.Release{}, invalid("%w", err)
	}
	if err := validate(r); err != nil {
		return berth.Release{}, err
	}
	return r, nil
}

func invalid(format string, args ...any) *berth.Error {
	return berth.Errorf(berth.CodeReleaseInvalid, "release document: "+format, args...)
}

// checkValue walks one value along the type that it must have. encoding/json
// alone takes members twice, in any case and as null; a document that two
// readers may read in two ways is not one that a person can consent to. The
// depth is that of the type, so it is bounded.
func checkValue(dec *json.Decoder, t reflect.Type, at string) error {
	token, err := dec.Token()
	if err != nil {
		return invalid("%s: %w", at, err)
	}
	want := map[reflect.Kind]string{
		reflect.Struct: "an object", reflect.Map: "an object", reflect.Slice: "a list",
		reflect.String: "a text", reflect.Int: "a number", reflect.Int64: "a number",
	}[t.Kind()]
	ok := false
	switch v := token.(type) {
	case json.Delim:
		switch {
		case v == '{' && t.Kind() == reflect.Struct:
			return checkObject(dec, at, func(key string) (reflect.Type, bool) { return member(t, key) })
		case v == '{' && t.Kind() == reflect.Map:
			return checkObject(dec, at, func(string) (reflect.Type, bool) { return t.Elem(), true })
		case v == '[' && t.Kind() == reflect.Slice:
			return checkList(dec, t.Elem(), at)
		}
	case string:
		ok = t.Kind() == reflect.String
	case json.Number:
		ok = t.Kind() == reflect.Int || t.Kind() == reflect.Int64
	}
	if !ok {
		return invalid("%s is not %s", at, want)
	}
	return nil
}

func checkObject(dec *json.Decoder, at string, typeOf func(key string) (reflect.Type, bool)) error {
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return invalid("%s: %w", at, err)
		}
		key, isText := token.(string)
		if !isText {
			return invalid("%s has a member without a name", at)
		}
		t, known := typeOf(key)
		switch {
		case !known:
			return invalid("%s has the member %.80q, which berth does not know", at, key)
		case seen[key]:
			return invalid("%s has the member %.80q twice", at, key)
		}
		seen[key] = true
		if err := checkValue(dec, t, fmt.Sprintf("%.80q", key)); err != nil {
			return err
		}
	}
	return closeValue(dec, at)
}

func checkList(dec *json.Decoder, elem reflect.Type, at string) error {
	for n := 0; dec.More(); n++ {
		if err := checkValue(dec, elem, fmt.Sprintf("%s[%d]", at, n)); err != nil {
			return err
		}
	}
	return closeValue(dec, at)
}

func closeValue(dec *json.Decoder, at string) error {
	if _, err := dec.Token(); err != nil {
		return invalid("%s: %w", at, err)
	}
	return nil
}

// member is the type of the field that has this very name in JSON.
func member(t reflect.Type, key string) (reflect.Type, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == key {
			return f.Type, true
		}
	}
	return nil, false
}
