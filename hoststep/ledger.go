package hoststep

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"
)

// ChangeKind is what was changed.
type ChangeKind string

// The kinds.
const (
	ChangeFile    ChangeKind = "file"    // Path was written: Before, After = SHA-256 in hex
	ChangeJSON    ChangeKind = "json"    // Name = "parent.key" of Path got Value; Before, After = SHA-256 of the file
	ChangePackage ChangeKind = "package" // Name; Before, After = version
	ChangeService ChangeKind = "service" // Name = unit, which was enabled
	ChangeGroup   ChangeKind = "group"   // Name = group, Value = the user who was added
)

// Valid reports whether the kind is one of the above.
func (k ChangeKind) Valid() bool {
	switch k {
	case ChangeFile, ChangeJSON, ChangePackage, ChangeService, ChangeGroup:
		return true
	}
	return false
}

// Change is one line of the record at ChangesPath. It is written before the
// change is made, so that a helper that is killed leaves no change without a
// line; a line without a change is found out by looking.
type Change struct {
	V         int        `json:"v"`   // 1
	Seq       int64      `json:"seq"` // from 1, growing
	Operation string     `json:"operation"`
	StepID    string     `json:"step_id"` // of the request
	Component Component  `json:"component"`
	Step      string     `json:"step"`
	Kind      ChangeKind `json:"kind"`
	Path      string     `json:"path,omitempty"`
	Name      string     `json:"name,omitempty"`
	Value     string     `json:"value,omitempty"`
	Old       string     `json:"old,omitempty"`         // json: what the key held before, as JSON; "" = it was not there
	NewParent bool       `json:"new_parent,omitempty"`  // json: the parent object was made for the key
	Before    string     `json:"before,omitempty"`      // "" = it was absent
	After     string     `json:"after,omitempty"`       // "" = not known yet: written before a package was installed
	Backup    string     `json:"backup_path,omitempty"` // of the content before; "" = there was none
	User      string     `json:"user"`                  // who ran the helper
	At        time.Time  `json:"at"`
	Undoes    int64      `json:"undoes,omitempty"` // this line says that the change of that number was taken back
}

// Bounds of the record.
const (
	MaxChanges    = 8 << 20 // bytes
	maxChangeLine = 64 << 10
)

// ErrLedger is matched when the record is not one.
var ErrLedger = errors.New("not a record of changes")

// ParseChanges reads the record and returns what is in force: what was not
// taken back, with the newest line of each thing. Lines that cannot be read (a
// power cut tears one) are counted and skipped: what they named is left alone.
func ParseChanges(data []byte) (inForce []Change, damaged int, err error) {
	all, damaged, err := parseLines(data)
	if err != nil {
		return nil, 0, err
	}
	for _, c := range all {
		i := slices.IndexFunc(inForce, func(o Change) bool {
			return c.Undoes == o.Seq || c.Undoes == 0 && o.same(c)
		})
		if i >= 0 {
			if c.Kind == ChangePackage {
				c.Before = inForce[i].Before // of the line that came before the installation
			}
			inForce = slices.Delete(inForce, i, i+1)
		}
		if c.Undoes == 0 {
			inForce = append(inForce, c)
		}
	}
	return inForce, damaged, nil
}

// same reports whether both changed one thing.
func (c Change) same(o Change) bool {
	return c.Kind == o.Kind && c.Path == o.Path && c.Name == o.Name && (c.Kind != ChangeGroup || c.Value == o.Value)
}

func parseLines(data []byte) (all []Change, damaged int, err error) {
	if len(data) > MaxChanges {
		return nil, 0, fmt.Errorf("%w: larger than %d bytes", ErrLedger, MaxChanges)
	}
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var c Change
		if len(line) > maxChangeLine || json.Unmarshal(line, &c) != nil || c.V != 1 || c.Seq < 1 || !c.Kind.Valid() {
			damaged++
			continue
		}
		all = append(all, c)
	}
	return all, damaged, nil
}

// ledger appends to the record. Only who holds the lock writes.
type ledger struct {
	sys  system
	lock *os.File
	next int64
}

var errBusy = errors.New("another berth-hoststep is at work")

// openLedger takes the lock, which ends with the process, or says errBusy.
func openLedger(sys system) (*ledger, error) {
	if err := os.MkdirAll(sys.path(LedgerDir), 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(sys.path(backupDir), 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(sys.path(lockPath), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errBusy
		}
		return nil, err
	}
	l := &ledger{sys: sys, lock: lock, next: 1}
	data, err := l.load()
	if err == nil {
		var all []Change
		all, _, err = parseLines(data)
		for _, c := range all {
			l.next = max(l.next, c.Seq+1)
		}
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return l, nil
}

func (l *ledger) close() { _ = l.lock.Close() }

func (l *ledger) load() ([]byte, error) {
	f, err := os.OpenFile(l.sys.path(ChangesPath), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > MaxChanges {
		return nil, fmt.Errorf("%w: larger than %d bytes", ErrLedger, MaxChanges)
	}
	data := make([]byte, info.Size())
	if len(data) > 0 {
		if _, err := f.ReadAt(data, 0); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// append writes lines and puts them on disk. Each gets its number.
func (l *ledger) append(changes ...Change) ([]Change, error) {
	f, err := os.OpenFile(l.sys.path(ChangesPath), os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // what matters was synced
	if err := f.Chmod(0o644); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], info.Size()-1); err == nil && last[0] != '\n' {
			b.WriteByte('\n') // the line that a power cut tore stays alone
		}
	}
	for i := range changes {
		changes[i].V, changes[i].Seq = 1, l.next
		l.next++
		line, err := json.Marshal(changes[i])
		if err != nil {
			return nil, err
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	if _, err := f.Write(b.Bytes()); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	return changes, l.sys.sync(LedgerDir)
}
