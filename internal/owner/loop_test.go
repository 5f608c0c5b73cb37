package owner

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// recorder is a User that records the loop's calls.
type recorder struct {
	did  []string
	busy bool
	room func(p *Process[int], thread int) bool
}

func (r *recorder) note(format string, args ...any) {
	r.did = append(r.did, fmt.Sprintf(format, args...))
}

func (r *recorder) Ring(p *Process[int], channel int) { r.note("%d rings for %d", p.Slot, channel) }

func (r *recorder) Send(p *Process[int], thread, channel int, m *attach.Message) uint64 {
	of := ""
	if thread != Own {
		of = fmt.Sprintf(" of thread %d", thread)
	}
	r.note("%d sends %d words by %d%s", p.Slot, m.N, channel, of)
	return device.PktzRefused
}

func (r *recorder) Room(p *Process[int], thread int) bool { return r.room(p, thread) }
func (r *recorder) Answers(*Process[int]) bool            { return false }
func (r *recorder) Busy(*Process[int]) bool               { return r.busy }
func (r *recorder) Mutes(p *Process[int])                 { r.note("%d is muted", p.Slot) }
func (r *recorder) Fired(fd int)                          { r.note("descriptor %d", fd) }

// rig is a loop with processes, whose owner is the test. The test sets the time.
type rig struct {
	*Loop[string, int]
	*recorder
	t         testing.TB
	processes []*Process[int]
	memory    []*attach.Memory
	now       int64
}

func newRig(t testing.TB, processes int) *rig {
	r := &rig{recorder: new(recorder), t: t, now: 1}
	var err error
	if r.Loop, err = New[string](User[int](r.recorder)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.ok(r.Close()) })
	for i := range processes {
		m, err := attach.NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		p := &Process[int]{Pages: m.Pages, Wake: m.WakeFD(), UID: uint32(i), Slot: i}
		r.ok(r.Attach(p, r.now))
		r.memory, r.processes = append(r.memory, m), append(r.processes, p)
	}
	return r
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// kick announces what a process has published, as package rdma does.
func (r *rig) kick(i int) {
	if r.memory[i].Kick() {
		one := [8]byte{1}
		_, err := unix.Write(r.memory[i].WakeFD(), one[:])
		r.ok(err)
	}
}

func never() bool { return false }

// pass runs Look some time after the last pass and compares the loop's calls.
func (r *rig) pass(later time.Duration, want ...string) {
	r.t.Helper()
	r.now += int64(later)
	r.did = nil
	r.Look(r.now, never)
	if !slices.Equal(r.did, want) {
		r.t.Errorf("%q, want %q", r.did, want)
	}
}

func TestPublished(t *testing.T) {
	r := newRig(t, 2)
	r.pass(0)
	r.memory[0].Ring(3)
	r.memory[0].Send(1, 0, 2, 7, 8)
	r.kick(0)
	r.pass(0, "0 rings for 3")
	if !r.Rung() {
		t.Error("the message after the doorbell is lost")
	}
	r.pass(0, "0 sends 2 words by 1")
	if r.Rung() || r.memory[0].SendStatus(1) != device.PktzRefused {
		t.Error("a message is not answered")
	}
	r.pass(0)
	// Round robin.
	for _, i := range []int{0, 1} {
		r.memory[i].Ring(1)
		r.kick(i)
	}
	r.did = nil
	for range 2 {
		r.Look(r.now, func() bool { return len(r.did)%2 == 1 })
		r.did = append(r.did, "")
	}
	if r.did[0] == r.did[2] || r.did[0] == "" || r.did[2] == "" {
		t.Errorf("%q: one process was served twice, another not at all", r.did)
	}
}

// TestCold: a quiet process is not polled until its eventfd reports that it has published
// something.
func TestCold(t *testing.T) {
	r := newRig(t, 3)
	r.pass(0)
	r.busy = true
	r.pass(2 * time.Millisecond)
	if len(r.Hot()) != 3 {
		t.Fatalf("%d processes are polled while they have work in flight, want 3", len(r.Hot()))
	}
	r.busy = false
	r.pass(0)
	if len(r.Hot()) != 0 {
		t.Fatalf("%d quiet processes are polled, want 0", len(r.Hot()))
	}
	r.memory[1].Ring(5)
	r.kick(1)
	r.pass(time.Duration(pollTime), "1 rings for 5")
	if len(r.Hot()) != 1 {
		t.Errorf("%d processes are polled, want the one that rang", len(r.Hot()))
	}
	// It is hot: its eventfd need not be written now.
	r.memory[1].Ring(6)
	if r.memory[1].Kick() {
		t.Error("a hot process is told that the owner sleeps")
	}
	r.pass(0, "1 rings for 6")
	// A wake-up without a publication changes nothing.
	r.pass(2 * time.Millisecond)
	one := [8]byte{1}
	_, err := unix.Write(r.memory[2].WakeFD(), one[:])
	r.ok(err)
	r.pass(time.Duration(pollTime))
	if len(r.Hot()) != 0 {
		t.Errorf("%d processes are polled after a wake-up without work, want 0", len(r.Hot()))
	}
	// A process with an unseen kick does not become cold.
	p := r.processes[0]
	r.Heat(p, r.now)
	r.memory[0].Kick()
	if r.cool(0) || r.memory[0].Kick() {
		t.Error("a process with an unseen publication becomes cold")
	}
	// Processes that become hot while the owner dozes still wake it.
	r.Doze()
	r.Heat(r.processes[2], r.now)
	if !r.memory[2].Kick() {
		t.Error("a process is not told that the owner sleeps")
	}
	r.Rouse(r.now)
	if r.memory[2].Kick() {
		t.Error("a process is not told that the owner is awake")
	}
	// One whose eventfd is full waits for another wake-up.
	r.pass(2 * time.Millisecond)
	r.memory[2].Ring(7)
	r.memory[2].Kick()
	r.Doze()
	r.Rouse(r.now)
	if left := r.Timeout(r.now); left < 0 || left > time.Duration(scanTime) {
		t.Errorf("the owner sleeps for %v after another wake-up, want %v at most", left, time.Duration(scanTime))
	}
	r.pass(time.Duration(scanTime), "2 rings for 7")
	if left := r.Timeout(r.now); left >= 0 {
		t.Errorf("the owner sleeps for %v where nothing is due", left)
	}
	r.Detach(r.processes[2])
	r.Detach(r.processes[0])
	if len(r.Hot()) != 0 {
		t.Errorf("%d processes are polled after detaching, want 0", len(r.Hot()))
	}
	r.Heat(p, r.now)
	if len(r.Hot()) != 0 {
		t.Error("a process is looked at after it has been detached: its pages may be unmapped")
	}
}

// TestVainKicks: a process that kicks in vain too often is muted for a while, whether the owner
// is awake or not. Another user's process is not, and a kick with work makes up for some without.
func TestVainKicks(t *testing.T) {
	r := newRig(t, 2)
	r.pass(0)
	vain := func(i int) bool {
		r.kick(i)
		r.did = nil
		if r.Look(r.now, never) {
			t.Fatalf("a kick without work causes %q", r.did)
		}
		return len(r.did) > 0
	}
	for i := range vainKicks - 1 {
		if vain(0) {
			t.Fatalf("muted after %d kicks without work, want %d", i, vainKicks)
		}
	}
	if !vain(0) || !r.processes[0].Muted() || vain(1) {
		t.Fatal("the wrong process is muted")
	}
	r.memory[0].Ring(1)
	r.kick(0)
	r.pass(0)
	if r.Rung() {
		t.Error("the publications of a muted process keep the owner awake")
	}
	if left := r.Timeout(r.now); left <= 0 || left > vainTime {
		t.Errorf("it is unmuted after %v, want %v at most", left, vainTime)
	}
	r.pass(vainTime / 2)
	r.pass(vainTime, "0 rings for 1")
	if left := r.Timeout(r.now); left >= 0 {
		t.Errorf("a process is muted for %v", left)
	}
	for i := range 4 * vainKicks {
		r.memory[1].Ring(0)
		r.kick(1)
		r.pass(time.Duration(pollTime), "1 rings for 0") // it may have become cold
		if vain(1) {
			t.Fatalf("muted at kick %d without work, although every other has work", i)
		}
	}
}

// TestSleeps: every kind of publisher ends the owner's sleep.
func TestSleeps(t *testing.T) {
	r := newRig(t, 2)
	r.pass(0)
	r.Detach(r.processes[1])
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	r.ok(err)
	defer unix.Close(fd)
	r.ok(r.Watch(fd))
	for name, wake := range map[string]func(){
		"a process": func() { r.memory[0].Ring(1); r.kick(0) },
		"a post":    func() { r.Post(func() { r.note("post") }) },
		"a message": func() { r.Loop.Send("message") },
		"nothing":   func() { r.Wake() },
		"descriptor": func() {
			one := [8]byte{1}
			_, err := unix.Write(fd, one[:])
			r.ok(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.did = nil
			r.Doze()
			if r.Posted() || r.Rung() {
				t.Fatal("the inbox or a process has work at the start")
			}
			go wake()
			if !r.Wait(-1) {
				t.Error("it is woken by a signal only")
			}
			r.Rouse(r.now)
			r.Look(r.now, never)
			r.Look(r.now, never) // messages are handled after the doorbell
			r.Take(func(m string) { r.note("%s", m) })
			want := map[string][]string{
				"a process": {"0 rings for 1"}, "a post": {"post"}, "a message": {"message"},
				"descriptor": {fmt.Sprintf("descriptor %d", fd)},
			}[name]
			got := slices.DeleteFunc(r.did, func(s string) bool { return s == fmt.Sprintf("descriptor %d", r.event) })
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	r.Doze()
	if r.Wait(time.Millisecond) {
		t.Error("a descriptor has fired without a cause")
	}
	r.Rouse(r.now)
}

// TestDo: posted functions run in order; an owner that has ended runs none.
func TestDo(t *testing.T) {
	r := newRig(t, 0)
	var ran []int
	over := make(chan struct{})
	go func() {
		defer close(over)
		for i := range 100 {
			if !r.Do(func() { ran = append(ran, i) }) {
				t.Error("the owner has ended")
			}
		}
		r.Post(func() { r.End() })
		if r.Do(func() {}) {
			t.Error("an owner that has ended runs a function")
		}
	}()
	for ended := false; !ended; {
		select {
		case <-r.Done():
			ended = true
		default:
			r.Doze()
			if !r.Posted() {
				r.Wait(-1)
			}
			r.Rouse(r.now)
			r.inbox.Take(func(string) {})
		}
	}
	<-over
	if len(ran) != 100 || !slices.IsSorted(ran) {
		t.Errorf("functions %v have run, want 0 to 99", ran)
	}
}

// TestFullRing: messages for which the process's ring has no room are held, and delivered after
// it has taken some and kicked.
func TestFullRing(t *testing.T) {
	r := newRig(t, 1)
	r.pass(0)
	const messages = 2*attach.MailSlots + 3
	sent := uint64(0)
	next := func(m *attach.Mail) bool {
		if sent == messages {
			return false
		}
		m.Source = sent
		sent++
		return true
	}
	r.room = func(p *Process[int], thread int) bool { return p.Deliver(thread, next) }
	got := uint64(0)
	for r.processes[0].Deliver(Own, next) {
	}
	for passes := 0; got < messages; passes++ {
		if passes > messages {
			t.Fatalf("%d of %d messages come", got, messages)
		}
		var m attach.Mail
		ok, full := r.memory[0].TakeMail(&m)
		if !ok || m.Source != got {
			t.Fatalf("message %d (%v), want %d", m.Source, ok, got)
		}
		got++
		if full {
			r.kick(0)
			r.Look(r.now, never)
		}
	}
}

// TestThreads: the owner takes what threads have published that RUNG names, those that it knows
// alone, and delivers the mail of each to its own ring.
func TestThreads(t *testing.T) {
	r := newRig(t, 0)
	m, err := attach.NewThreadMemory()
	r.ok(err)
	t.Cleanup(func() { _ = m.Close() })
	p := &Process[int]{Pages: m.Pages, Wake: m.WakeFD(), Slot: 9}
	r.ok(r.Attach(p, r.now))
	r.memory = append(r.memory, m)
	r.pass(0)
	publish := func() {
		for _, i := range []int{2, 5} {
			m.Thread(i).Send(i%4, 1, 4, 1, 2, 3)
			m.RingThread(i)
		}
		r.kick(0)
	}
	p.AddThread(5)
	publish()
	r.pass(0, "9 sends 3 words by 1 of thread 5")
	if m.Thread(2).SendStatus(2) != device.PktzBusy || m.Thread(5).SendStatus(1) != device.PktzRefused {
		t.Error("the channels of a thread that does not exist, or of one that does, have the wrong status")
	}
	m.SetPktzStatus(2, 0)
	p.AddThread(2)
	m.Ring(1)
	publish()
	r.pass(0, "9 rings for 1")
	r.pass(0, "9 sends 3 words by 2 of thread 2", "9 sends 3 words by 1 of thread 5")
	r.pass(0)
	p.RemoveThread(5)
	publish()
	r.pass(0, "9 sends 3 words by 2 of thread 2")

	// A full ring of one thread holds nothing back from another.
	p.AddThread(0)
	sent := map[int]uint64{}
	next := func(thread int) func(*attach.Mail) bool {
		return func(out *attach.Mail) bool {
			out.Source = sent[thread]
			sent[thread]++
			return sent[thread] <= attach.MailSlots+1
		}
	}
	p.Deliver(2, next(2))
	if !p.Deliver(0, next(0)) || m.Port.HasMail() {
		t.Error("mail did not reach thread 0, or reached the process's own ring")
	}
	r.room = func(p *Process[int], thread int) bool {
		r.note("room %d", thread)
		return p.Deliver(thread, func(*attach.Mail) bool { return false })
	}
	for i := range uint64(attach.MailSlots + 1) {
		var got attach.Mail
		ok, full := m.Thread(2).TakeMail(&got)
		if !ok || got.Source != i || full != (i < 2) {
			t.Fatalf("message %d: %v, source %d, full %v", i, ok, got.Source, full)
		}
		if i == 0 { // the message that was held makes the ring full again
			m.RingThread(2)
			r.kick(0)
			r.pass(0, "room 2")
		}
	}
}

func BenchmarkPass(b *testing.B) {
	for _, n := range []int{1, 32, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, n)
			r.Look(1, never)
			began := time.Now()
			for b.Loop() {
				r.Look(int64(time.Since(began)), never)
				r.Rung()
			}
		})
	}
}
