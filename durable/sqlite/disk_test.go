package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
)

// disk is an ext4 filesystem of its own in a file.
type disk struct {
	t     *testing.T
	image string
	dir   string // where it is mounted
}

// newDisk makes and mounts a disk. Its cleanup detaches it whatever the test
// left open. It needs root and loop devices; without them the test is skipped,
// in CI it fails.
func newDisk(t *testing.T, megabytes int64) *disk {
	t.Helper()
	missing := ""
	if os.Geteuid() != 0 {
		missing = "it needs root to mount a filesystem"
	} else if _, err := os.Stat("/dev/loop-control"); err != nil {
		missing = "it needs loop devices: " + err.Error()
	} else if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		missing = "it needs mkfs.ext4: " + err.Error()
	}
	if missing != "" {
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	base := t.TempDir()
	d := &disk{t: t, image: filepath.Join(base, "image"), dir: filepath.Join(base, "disk")}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(d.image)
	if err == nil {
		err = errors.Join(f.Truncate(megabytes<<20), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	d.run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", d.image)
	d.keep() // before: its cleanup comes last, and detach sees what is left open
	t.Cleanup(d.detach)
	d.mount()
	return d
}

func (d *disk) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.CommandContext(d.t.Context(), name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// mount attaches a loop device that goes with the mount.
func (d *disk) mount() { d.t.Helper(); d.run("mount", "-o", "loop", d.image, d.dir) }

// unmount also proves that nobody has a file open on it any more.
func (d *disk) unmount() { d.t.Helper(); d.run("umount", d.dir) }

// detach is the cleanup: it runs after a failure at any point, so it asks
// nothing and takes what is there.
func (d *disk) detach() {
	if err := unix.Unmount(d.dir, 0); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it is not mounted
		d.t.Errorf("something is left open on the disk: %v", err)
	}
	if err := giveBack(d.dir, d.image); err != nil {
		d.t.Error(err)
	}
}

// giveBack takes a disk off the machine, mounted or not, used or not.
func giveBack(dir, image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // a test's own context is over by now
	defer cancel()
	_ = unix.Unmount(dir, unix.MNT_DETACH) // as a rule it is not mounted any more
	out, err := exec.CommandContext(ctx, "losetup", "--noheadings", "--output", "NAME", "--associated", image).Output()
	if err != nil {
		return fmt.Errorf("losetup: %w", err)
	}
	for device := range strings.FieldsSeq(string(out)) {
		_ = exec.CommandContext(ctx, "losetup", "--detach", device).Run() // it may be gone since
	}
	return nil
}

// keep starts a process that gives the disk back when the test's own process
// ends without a cleanup: killed, or out of time. The kernel closes its input.
func (d *disk) keep() {
	d.t.Helper()
	self, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	keeper := exec.Command(self)
	keeper.Env = append(os.Environ(), roleVar+"="+roleKeeper, dirVar+"="+d.dir, imageVar+"="+d.image)
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // whoever kills the test's group does not mean it
	end, err := keeper.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := keeper.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := errors.Join(end.Close(), keeper.Wait()); err != nil {
			d.t.Errorf("the keeper of the disk: %v", err)
		}
	})
}

// keepDisk is the role of that process.
func keepDisk(dir, image string) {
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test's process ends
	if err := giveBack(dir, image); err != nil {
		panic(err)
	}
	_ = os.Remove(image) // 64 MB; after a cleanup it is gone with its directory
}

// cut takes the power away: what was not synced is lost, and every access from
// now on fails with EIO. (FS_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH.)
func (d *disk) cut() {
	d.t.Helper()
	const fsIocShutdown, noLogFlush = 0x8004587d, 2
	f, err := os.Open(d.dir)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	if err := unix.IoctlSetPointerInt(int(f.Fd()), fsIocShutdown, noLogFlush); err != nil {
		d.t.Fatalf("shut the filesystem down: %v", err)
	}
}

// integrity asks SQLite whether every page is in order.
func integrity(t *testing.T, s *Store) {
	t.Helper()
	var answer string
	if err := s.conn.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&answer); err != nil || answer != "ok" {
		t.Fatalf("integrity_check: %q, %v", answer, err)
	}
}

// counter is a record whose state counts its own changes, each with an event.
type counter struct {
	id    string
	acked atomic.Int64 // revision of the last change that was acknowledged
	err   error        // why it ended
}

func (c *counter) run(s *Store) {
	ctx := context.Background()
	r, _, err := s.Begin(ctx, durable.Begin{Kind: "counter", ID: c.id, State: []byte(`0`), IdempotencyKey: c.id, Fingerprint: "f"})
	for err == nil {
		c.acked.Store(r.Revision)
		r, err = s.Change(ctx, durable.Change{
			Kind: "counter", ID: c.id, Revision: r.Revision, Epoch: r.Epoch, State: fmt.Append(nil, r.Revision+1),
			Events: []durable.EventDraft{{Kind: "counter.changed"}},
		})
	}
	c.err = err
}

// check wants all that was acknowledged, at most the one change that was
// under way, and the state that belongs to the revision.
func (c *counter) check(t *testing.T, s *Store, acked int64) (revision int64) {
	t.Helper()
	r, err := s.Get(t.Context(), "counter", c.id)
	if errors.Is(err, berth.CodeNotFound) && acked == 0 {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Revision < acked {
		t.Fatalf("%s: %d changes were acknowledged, %d are there", c.id, acked, r.Revision)
	}
	if string(r.State) != fmt.Sprint(r.Revision) {
		t.Fatalf("%s: the state %s is not that of revision %d", c.id, r.State, r.Revision)
	}
	return r.Revision
}

// What was acknowledged is there after the power was cut, 20 times. A kill alone
// would show nothing: the kernel keeps what a dead process wrote.
func TestPowerCut(t *testing.T) {
	const cuts, perStore, writers = 20, 4, 2
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	d := newDisk(t, 64)
	total := int64(0)
	for i := range cuts {
		// A new database at every fourth cut: its first commits have to survive
		// with the file itself.
		dir := filepath.Join(d.dir, fmt.Sprint(i/perStore))
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		if err := berth.SyncDir(d.dir); err != nil { // the directory is the daemon's
			t.Fatal(err)
		}
		path := filepath.Join(dir, berth.FileStore)
		total += cutOnce(t, d, path, writers, random.Int64N(60))
	}
	t.Logf("%d changes acknowledged before %d cuts, none lost", total, cuts)
}

// cutOnce writes until a cut, restarts and checks; it gives what was
// acknowledged.
func cutOnce(t *testing.T, d *disk, path string, writers int, after int64) (total int64) {
	t.Helper()
	s := openStore(t, Config{Path: path})
	counters := make([]*counter, writers)
	start := make([]int64, writers)
	var running sync.WaitGroup
	for i := range counters {
		c := &counter{id: fmt.Sprintf("c%d", i)}
		counters[i] = c
		if r, err := s.Get(t.Context(), "counter", c.id); err == nil {
			start[i] = r.Revision
			c.acked.Store(r.Revision)
		}
		running.Go(func() { c.run(s) })
	}
	waitFor(t, "the changes before the cut", func() bool { return counters[0].acked.Load() >= start[0]+after })
	// Counted before the cut: an acknowledgement that crosses it is no loss.
	acked := make([]int64, writers)
	for i, c := range counters {
		acked[i] = c.acked.Load()
		total += acked[i] - start[i]
	}
	d.cut()
	running.Wait()
	for _, c := range counters {
		if !errors.Is(c.err, berth.CodeStoreFailed) {
			t.Fatalf("the disk is gone, and the writer ended with %v", c.err)
		}
	}
	<-s.Failed()
	durabletest.WantRefused(t, s, berth.CodeStoreFailed)
	_ = s.Close() // it may complain about the disk
	d.unmount()
	d.mount()

	s = openStore(t, Config{Path: path})
	integrity(t, s)
	changes := int64(0)
	for i, c := range counters {
		changes += c.check(t, s, acked[i])
	}
	wantSequence(t, s, changes)
	closeStore(t, s)
	return total
}

// wantSequence wants the events 1 to last, each once, and no more.
func wantSequence(t *testing.T, s *Store, last int64) {
	t.Helper()
	for after := int64(0); ; {
		page, err := s.Events(t.Context(), after, 0)
		if err != nil || page.Last != last || page.Gap != nil {
			t.Fatalf("events after %d: last %d, gap %v, %v, want %d", after, page.Last, page.Gap, err, last)
		}
		for _, e := range page.Events {
			if e.Seq != after+1 {
				t.Fatalf("event %d follows %d", e.Seq, after)
			}
			after = e.Seq
		}
		if len(page.Events) == 0 {
			if after != last {
				t.Fatalf("the events end at %d, want %d", after, last)
			}
			return
		}
	}
}

// A full disk stops the store with a message that says so; nothing that was
// acknowledged is lost, and with some space it goes on.
func TestFullDisk(t *testing.T) {
	d := newDisk(t, 8)
	path := filepath.Join(d.dir, berth.FileStore)
	s := openStore(t, Config{Path: path})
	filler := filepath.Join(d.dir, "filler")
	fill(t, filler, 200<<10)
	state := []byte(`"` + strings.Repeat("x", 4000) + `"`)
	var acked []string
	var err error
	for i := 0; err == nil; i++ {
		id := fmt.Sprint(i)
		if _, _, err = s.Begin(t.Context(), durable.Begin{Kind: "thing", ID: id, State: state, Events: []durable.EventDraft{{Kind: "thing.begun"}}}); err == nil {
			acked = append(acked, id)
		}
		if i > 10_000 {
			t.Fatal("the disk does not fill up")
		}
	}
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != berth.CodeStoreFailed || !errors.Is(err, berth.CodeDiskFull) ||
		e.Facts["cause"] != string(berth.CodeDiskFull) || e.Facts["path"] != path {
		t.Fatalf("a full disk: %v", err)
	}
	<-s.Failed()
	durabletest.WantRefused(t, s, berth.CodeStoreFailed)
	if _, err := s.Get(t.Context(), "thing", "0"); !errors.Is(err, berth.CodeDiskFull) {
		t.Fatalf("later calls do not say why: %v", err)
	}
	_ = s.Close() // the log cannot be folded in without space
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, Config{Path: path})
	integrity(t, s)
	for _, id := range acked {
		if _, err := s.Get(t.Context(), "thing", id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Publish(t.Context(), durable.EventDraft{Kind: "thing.seen", Subject: "x"}); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	t.Logf("%d records before the disk was full", len(acked))
}

// No room for a new database, and none to open an old one: the same message.
func TestOpenOnAFullDisk(t *testing.T) {
	d := newDisk(t, 8)
	fill(t, filepath.Join(d.dir, "filler"), 0)
	_, err := Open(t.Context(), Config{Path: filepath.Join(d.dir, berth.FileStore), Owner: testOwner})
	if !errors.Is(err, berth.CodeStoreFailed) || !errors.Is(err, berth.CodeDiskFull) {
		t.Fatalf("a full disk: %v", err)
	}
}

// fill writes a file until the disk is full, then gives some back.
func fill(t *testing.T, path string, left int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // what it holds is worth nothing
	size := int64(0)
	for block := make([]byte, 64<<10); len(block) > 0; {
		n, err := f.Write(block)
		size += int64(n)
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if err != nil {
			block = block[:len(block)/2]
		}
	}
	if err := errors.Join(f.Truncate(size-left), f.Sync()); err != nil {
		t.Fatal(err)
	}
}

// waitFor asks until done answers true.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// Without synchronous=FULL the same cuts lose what was acknowledged: the proof
// that TestPowerCut can fail. NORMAL syncs only when the log is folded in.
func TestPowerCutSeesALoss(t *testing.T) {
	d := newDisk(t, 64)
	path := filepath.Join(d.dir, berth.FileStore)
	closeStore(t, openStore(t, Config{Path: path}))
	if err := berth.SyncDir(d.dir); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, Config{Path: path})
	for _, weaker := range []string{"PRAGMA synchronous = NORMAL", "PRAGMA wal_autocheckpoint = 0"} {
		if _, err := s.conn.ExecContext(t.Context(), weaker); err != nil {
			t.Fatal(err)
		}
	}
	c := &counter{id: "c"}
	var running sync.WaitGroup
	running.Go(func() { c.run(s) })
	waitFor(t, "the changes before the cut", func() bool { return c.acked.Load() >= 50 })
	acked := c.acked.Load()
	d.cut()
	running.Wait()
	_ = s.Close() // it may complain about the disk
	d.unmount()
	d.mount()
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // a test's
	var revision int64
	err = db.QueryRowContext(t.Context(), "SELECT COALESCE(MAX(revision), 0) FROM records").Scan(&revision)
	if err != nil || revision >= acked {
		t.Fatalf("%d of %d changes are there, %v: the cut takes nothing away", revision, acked, err)
	}
}
