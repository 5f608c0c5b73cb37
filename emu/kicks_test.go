package emu

import (
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space"
)

// The kicks of a process that kicks spuriously are ignored for a while, and those of other users are
// not; later they are taken again.
func TestVainKicks(t *testing.T) {
	l := newLive(t)
	l.attach(0, 1)
	l.attach(1, 2)
	kick := func(m *attach.Memory) {
		m.Pages.Kick()
		one := [8]byte{1}
		_, _ = unix.Write(m.WakeFD(), one[:])
	}
	// taken reports whether the engine has taken a slot's last kick.
	taken := func(slot int) (yes bool) {
		l.on(func() { s := l.nodes[0].slots[slot]; yes = s.process.Seen() })
		return yes
	}
	until := func(what string, f func() bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); !f(); {
			if time.Now().After(deadline) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	until("a kick is left alone", func() bool {
		kick(l.memory[0])
		muted := false
		l.on(func() {
			if l.nodes[0].slots[1].process.Muted() {
				t.Error("another user's kicks are left alone, too")
			}
			muted = l.nodes[0].slots[0].process.Muted()
		})
		return muted
	})
	kick(l.memory[0])
	kick(l.memory[1])
	until("the other's kick is seen", func() bool { return taken(1) })
	until("its own is seen when the time has passed", func() bool { return taken(0) })
	// A kick with work makes up for spurious ones.
	before := uint64(0)
	l.on(func() { before = l.nodes[0].accesses.Muted })
	for range 256 {
		l.memory[1].Pages.Ring(0)
		kick(l.memory[1])
		until("the doorbell is seen", func() bool { return taken(1) })
		kick(l.memory[1])
		until("the kick is seen", func() bool { return taken(1) })
	}
	l.on(func() {
		if n := l.nodes[0].accesses.Muted; n != before || l.nodes[0].slots[1].process.Muted() {
			t.Errorf("kicks are left alone %d times more though every other brings something", n-before)
		}
	})
}

// BenchmarkIdleProcesses times a pass of 64 nodes without work, with one attached process that is quiet,
// and with the maximum.
func BenchmarkIdleProcesses(b *testing.B) {
	for _, slots := range []int{1, MaxNodes * device.Slots} {
		b.Run(strconv.Itoa(slots), func(b *testing.B) {
			e, err := New(Config{Nodes: MaxNodes})
			if err != nil {
				b.Fatal(err)
			}
			defer e.close()
			for i := range slots {
				m, err := attach.NewMemory()
				if err != nil {
					b.Fatal(err)
				}
				defer m.Close()
				if err := e.Attach(i%MaxNodes, i/MaxNodes, &Attachment{Pages: m.Pages, Wake: m.WakeFD(), Space: space.NewDirect(noMemory{}, nil)}); err != nil {
					b.Fatal(err)
				}
			}
			for began := e.Now(); e.Now()-began < int64(10*time.Millisecond); {
				e.pass() // they are quiet now
			}
			for b.Loop() {
				e.pass()
			}
		})
	}
}
