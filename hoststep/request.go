package hoststep

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"
)

// Schema is the version of the request and of the result.
const Schema = 1

// MaxRequest is the largest request in bytes.
const MaxRequest = 64 << 10

// Suffixes of the two files of a step.
const (
	RequestSuffix = ".request.json"
	ResultSuffix  = ".result.json"
)

// Action is what a request asks for.
type Action string

// The actions.
const (
	Apply Action = "apply"
	Undo  Action = "undo"
)

// Valid reports whether the action is one of the above.
func (a Action) Valid() bool { return a == Apply || a == Undo }

// Recipe names a closed list of steps: the id and the digest of one build's.
type Recipe struct {
	ID     string `json:"id"`
	Digest string `json:"digest"` // "sha256:" and 64 hex digits
}

// Parameters is all that the helper is told: who, where, and which components.
type Parameters struct {
	User       string      `json:"user"`       // login name of who runs it
	Arch       string      `json:"arch"`       // x86_64 or aarch64
	Family     string      `json:"family"`     // apt or dnf
	Distro     string      `json:"distro"`     // ID of /etc/os-release
	Version    string      `json:"version"`    // VERSION_ID of it
	Components []Component `json:"components"` // in the order of Components, each at most once
	// Stops is how many running containers a restart or a removal of Docker may
	// stop, as the plan said; -1 = it was not known, and that was agreed to.
	Stops int `json:"stops"`
	// Changes are the numbers of the lines of the record that an undo may take
	// back, ascending; empty for an apply.
	Changes []int64 `json:"changes"`
}

// maxAgreed bounds Changes.
const maxAgreed = 4096

// Request is the content of a request file.
type Request struct {
	Schema           int        `json:"schema"`
	StepID           string     `json:"step_id"`
	OperationID      string     `json:"operation_id"`
	Action           Action     `json:"action"`
	Recipe           Recipe     `json:"recipe"`
	Parameters       Parameters `json:"parameters"`
	ParametersDigest string     `json:"parameters_digest"`
	Nonce            string     `json:"nonce"`
	Revision         int64      `json:"revision"`     // of the operation when the step was issued
	RequestedAt      time.Time  `json:"requested_at"` // informational
}

// ErrInvalid is matched by every refusal of a request. Its text never quotes
// the request: the answer is readable by whoever pointed root at the file.
var ErrInvalid = errors.New("the request is not valid")

type invalid string

func (i invalid) Error() string      { return string(i) }
func (invalid) Is(target error) bool { return target == ErrInvalid }

var (
	identifier = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	userForm   = regexp.MustCompile(`^[a-z_][a-z0-9_.-]{0,31}$`)
)

// ParseRequest reads a request strictly: every key once and none that is not
// known, exact spelling, nothing after it. It does not judge whether this build
// accepts it. A refusal is ErrInvalid.
func ParseRequest(data []byte) (Request, error) {
	var r Request
	if len(data) > MaxRequest {
		return r, invalid("the request is larger than 64 KiB")
	}
	err := decode(data, fields{
		"schema": &r.Schema, "step_id": &r.StepID, "operation_id": &r.OperationID, "action": &r.Action,
		"parameters_digest": &r.ParametersDigest, "nonce": &r.Nonce, "revision": &r.Revision, "requested_at": &r.RequestedAt,
		"recipe": fields{"id": &r.Recipe.ID, "digest": &r.Recipe.Digest},
		"parameters": fields{"user": &r.Parameters.User, "arch": &r.Parameters.Arch, "family": &r.Parameters.Family,
			"distro": &r.Parameters.Distro, "version": &r.Parameters.Version, "components": &r.Parameters.Components,
			"stops": &r.Parameters.Stops, "changes": &r.Parameters.Changes},
	})
	if err != nil {
		return Request{}, err
	}
	switch {
	case r.Schema != Schema:
		err = invalid("the schema of the request is not known to this build")
	case !identifier.MatchString(r.StepID) || !identifier.MatchString(r.OperationID) || !identifier.MatchString(r.Nonce):
		err = invalid("step_id, operation_id or nonce is not an identifier")
	case !r.Action.Valid():
		err = invalid("the action is neither apply nor undo")
	case !identifier.MatchString(r.Recipe.ID) || !digestForm.MatchString(r.Recipe.Digest):
		err = invalid("the recipe is not named as a recipe is")
	case !digestForm.MatchString(r.ParametersDigest):
		err = invalid("parameters_digest is not a digest")
	case r.Revision < 0:
		err = invalid("the revision is negative")
	case r.Action == Apply && len(r.Parameters.Changes) > 0:
		err = invalid("an apply takes nothing back")
	default:
		err = r.Parameters.check()
	}
	if err != nil {
		return Request{}, err
	}
	return r, nil
}

// check judges the parameters by themselves; whether they are this machine's is
// another question.
func (p Parameters) check() error {
	switch {
	case !userForm.MatchString(p.User):
		return invalid("the user is not a login name of at most 32 characters")
	case !slices.Contains(architectures, p.Arch):
		return invalid("the architecture is not one of the recipe")
	case p.Family != familyAPT && p.Family != familyDNF:
		return invalid("the family is neither apt nor dnf")
	case len(p.Components) == 0:
		return invalid("no component is asked for")
	}
	last := -1
	for _, c := range p.Components {
		i := slices.Index(Components, c)
		switch {
		case i < 0:
			return invalid("a component is not one of the recipe")
		case i <= last:
			return invalid("the components are not in the recipe's order, each once")
		}
		last = i
	}
	if p.Stops < -1 || len(p.Changes) > maxAgreed || slices.ContainsFunc(p.Changes, func(seq int64) bool { return seq < 1 }) {
		return invalid("stops or changes are no numbers of containers and of lines")
	}
	if p.User == "root" && p.has(DockerGroup) {
		return invalid("root needs no group")
	}
	return nil
}

func (p Parameters) has(c Component) bool { return slices.Contains(p.Components, c) }

// ParametersDigest is "sha256:…" over the RFC 8785 form of the parameters.
func ParametersDigest(p Parameters) string {
	if p.Components == nil {
		p.Components = []Component{}
	}
	if p.Changes == nil {
		p.Changes = []int64{}
	}
	return digestOf(p)
}

// digestOf hashes a value in its RFC 8785 form: sorted keys, no white space, no
// HTML escapes. Everything that is hashed here is ASCII and holds no fractions,
// for which encoding/json over maps writes exactly that form.
func digestOf(v any) string {
	sum := sha256.Sum256(canonical(v))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func canonical(v any) []byte {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil // of our own structs only: it does not happen
	}
	var tree any
	d := json.NewDecoder(bytes.NewReader(plain))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(tree); err != nil {
		return nil
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// fields is where the members of an object go: a pointer, or fields of its own.
type fields map[string]any

// decode fills all fields from one JSON object, in which each must be present.
func decode(data []byte, into fields) error {
	if !utf8.Valid(data) {
		return invalid("the request is not UTF-8")
	}
	members, err := parseObject(data)
	if err != nil {
		return invalid("the request is not one JSON object with each key once")
	}
	for _, m := range members {
		if _, known := into[m.key]; !known {
			return invalid("the request has a key that is not known")
		}
	}
	for key, target := range into {
		raw, there := members.get(key)
		if !there || string(raw) == "null" {
			return invalid("the request lacks a key")
		}
		if below, ok := target.(fields); ok {
			if err := decode(raw, below); err != nil {
				return err
			}
			continue
		}
		if err := json.Unmarshal(raw, target); err != nil {
			return invalid("a value of the request has the wrong type")
		}
	}
	return nil
}
