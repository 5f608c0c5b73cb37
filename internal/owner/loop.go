// Package owner is the loop of the goroutine that owns the state of a machine's nodes: its
// inbox, to which any goroutine posts; the processes and descriptors that want something
// of it; and how it waits while there is nothing to do. What the owner does with all that
// belongs to its user, whose passes call Take and Look, and whose sleep is
//
//	Doze; where nothing has come meanwhile: Wait; Rouse.
//
// A process is looked at in every pass only while it publishes. One that has been quiet
// for a while is cold: it is told that the owner sleeps, and its eventfd brings it back.
// So a pass costs the same beside a thousand idle processes as beside one.
package owner

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/quota"
)

// Values below are defined by this project.
const (
	// quietTime is for how long a process publishes nothing until it is cold.
	quietTime = int64(time.Millisecond)
	// pollTime is how often the descriptors are looked at beside work: the kick of a cold
	// process waits for that.
	pollTime = int64(20 * time.Microsecond)
	// A kick for which there is nothing costs the owner a wake-up and a look around.
	// vainKicks is how many of these a user may have at once, and vainTime after what
	// time one more; so long a process that has had too many is left alone. A process that
	// publishes much kicks in vain now and then, since the owner sees what it publishes
	// before it sees the kick: each kick that brings something repays vainRepaid.
	vainKicks  = 64
	vainTime   = 10 * time.Millisecond
	vainRepaid = 4
)

// Loop is the loop of one owner. M is what others send it, S what it keeps for each
// process. Its methods are for the owner alone where they do not say otherwise.
type Loop[M, S any] struct {
	inbox[M]
	user      User[S]
	epoll     int
	processes map[int32]*Process[S] // by their eventfds
	hot       []*Process[S]         // looked at in every pass
	turn      int                   // of hot: looked at last
	vain      *quota.Rate           // kicks that bring nothing
	polled    int64                 // when the descriptors were looked at last
	dozing    bool                  // the hot processes were told that the owner sleeps
	fired     [64]unix.EpollEvent
	waiting   int // of fired: not taken yet
	done      chan struct{}
}

// New makes the loop of an owner. Close must follow.
func New[M, S any](u User[S]) (*Loop[M, S], error) {
	l := &Loop[M, S]{user: u, processes: map[int32]*Process[S]{}, vain: quota.NewRate(vainKicks, vainTime), done: make(chan struct{})}
	l.event = -1
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		l.epoll = -1
		err = fmt.Errorf("owner: %w", os.NewSyscallError("epoll_create1", err))
	} else if err = l.open(); err == nil {
		err = l.Watch(l.event)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Close releases the loop's descriptors. The owner must not run; any goroutine may call
// it, and it may be called again.
func (l *Loop[M, S]) Close() error {
	err := l.close()
	if l.epoll >= 0 {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(l.epoll)))
		l.epoll = -1
	}
	return err
}

// End says that the owner runs no more: Do returns false from now on.
func (l *Loop[M, S]) End() { close(l.done) }

// Done is closed by End. Any goroutine may use it.
func (l *Loop[M, S]) Done() <-chan struct{} { return l.done }

// Do has the owner run f, and waits until it has. It returns false if the owner has ended,
// where f may not have been run. Any goroutine but the owner may call it.
func (l *Loop[M, S]) Do(f func()) bool {
	over := make(chan struct{})
	l.Post(func() { defer close(over); f() })
	select {
	case <-over:
		return true
	case <-l.done:
		return false
	}
}

// Watch has User.Fired called when a descriptor becomes readable, and ends the owner's
// sleep then.
func (l *Loop[M, S]) Watch(fd int) error {
	// Edge-triggered and never read: a peer could make its eventfd block.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("watching a descriptor: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// unwatch ends that.
func (l *Loop[M, S]) unwatch(fd int) { _ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// Attach has a process looked at.
func (l *Loop[M, S]) Attach(p *Process[S], now int64) error {
	if err := l.Watch(p.Wake); err != nil {
		return err
	}
	p.kick = p.Pages.Kick() - 1 // what it has published before is looked at
	l.processes[int32(p.Wake)] = p
	l.Heat(p, now)
	return nil
}

// Detach lets a process go.
func (l *Loop[M, S]) Detach(p *Process[S]) {
	l.unwatch(p.Wake)
	delete(l.processes, int32(p.Wake))
	if i := slices.Index(l.hot, p); i >= 0 {
		l.drop(i)
	}
}

// Hot returns the processes that are looked at in every pass. They are the loop's.
func (l *Loop[M, S]) Hot() []*Process[S] { return l.hot }

// Heat has a process looked at in every pass, until it is quiet and User.Busy is false.
func (l *Loop[M, S]) Heat(p *Process[S], now int64) {
	if p.hot {
		return
	}
	p.hot, p.since = true, now
	p.setAsleep(l.dozing)
	l.hot = append(l.hot, p)
}

// cool leaves number i of the hot processes to its eventfd. It returns false if the process
// has published something meanwhile: either the owner sees that, or the process sees that
// the owner sleeps.
func (l *Loop[M, S]) cool(i int) bool {
	p := l.hot[i]
	p.setAsleep(true)
	if !p.Seen() {
		p.setAsleep(l.dozing)
		return false
	}
	l.drop(i)
	return true
}

func (l *Loop[M, S]) drop(i int) {
	last := len(l.hot) - 1
	l.hot[i].hot = false
	l.hot[i], l.hot[last] = l.hot[last], nil
	l.hot = l.hot[:last]
	if l.turn >= i {
		l.turn--
	}
}

// Look takes what processes have published, in turns, until enough returns true: what it
// began with in the last pass comes last. It reports whether there was anything.
func (l *Loop[M, S]) Look(now int64, enough func() bool) (any bool) {
	if !l.dozing && len(l.processes) > len(l.hot) && now-l.polled >= pollTime {
		l.Poll(now)
	}
	for n := len(l.hot); n > 0 && !enough(); n-- {
		if l.turn++; l.turn >= len(l.hot) {
			l.turn = 0
		}
		p := l.hot[l.turn]
		switch k := p.Pages.Kick(); {
		case l.deaf(p, now):
		case k != p.kick || p.sends:
			any = l.kicked(p, k, now) || any
		case now-p.since > quietTime && !l.user.Busy(p):
			l.cool(l.turn)
		}
	}
	return any
}

// kicked takes a kick of a process, or looks for what an earlier one announced. It reports
// whether there was anything.
func (l *Loop[M, S]) kicked(p *Process[S], k uint32, now int64) bool {
	again := k == p.kick
	p.kick = k
	switch {
	case p.take(l.user), l.user.Answers(p):
		l.vain.Repay(p.UID, vainRepaid)
		p.since = now
		return true
	case !again && !l.vain.Take(p.UID, now):
		p.muted = now + int64(vainTime)
		l.unwatch(p.Wake)
		l.user.Mutes(p)
	}
	return false
}

// deaf reports whether a process's kicks are left alone still.
func (l *Loop[M, S]) deaf(p *Process[S], now int64) bool {
	switch {
	case p.muted == 0:
		return false
	case now < p.muted:
		return true
	case l.Watch(p.Wake) != nil:
		p.muted = now + int64(vainTime) // once more then
		return true
	}
	p.muted = 0
	return false
}

// Rung reports whether a process that is looked at has published something.
func (l *Loop[M, S]) Rung() bool {
	for _, p := range l.hot {
		if p.muted == 0 && (p.sends || !p.Seen()) {
			return true
		}
	}
	return false
}

// Poll looks at the descriptors. Not between Doze and Rouse.
func (l *Loop[M, S]) Poll(now int64) {
	l.Wait(0)
	l.take(now)
}

// take takes the descriptors that have fired.
func (l *Loop[M, S]) take(now int64) {
	n := l.waiting
	l.waiting, l.polled = 0, now
	if n == len(l.fired) {
		l.polled = now - pollTime // there may be more
	}
	for i := range n {
		fd := l.fired[i].Fd
		p := l.processes[fd]
		switch {
		case p == nil:
			l.user.Fired(int(fd))
		case !p.Seen():
			l.Heat(p, now)
		}
	}
}

// Doze tells everybody to wake the owner from now on. Rouse must follow. Either the owner
// finds what was published, when it looks once more, or its publisher finds that the owner
// sleeps.
func (l *Loop[M, S]) Doze() {
	l.asleep.Store(true)
	l.dozing = true
	for _, p := range l.hot {
		p.setAsleep(true)
	}
}

// Wait sleeps until a process, a descriptor or the inbox wakes the owner, or until timeout
// has passed; a negative one never does. It reports whether something has fired.
func (l *Loop[M, S]) Wait(timeout time.Duration) bool {
	l.waiting = wait(l.epoll, l.fired[:], timeout)
	return l.waiting > 0
}

// Rouse ends what Doze began, and takes what has fired.
func (l *Loop[M, S]) Rouse(now int64) {
	l.asleep.Store(false)
	l.dozing = false
	l.take(now)
	for _, p := range l.hot {
		p.setAsleep(false)
	}
}

// Unmute returns how long it is until the kicks of some process are looked at again;
// negative: there is none.
func (l *Loop[M, S]) Unmute(now int64) (left time.Duration) {
	left = -1
	for _, p := range l.hot {
		if p.muted != 0 && (left < 0 || time.Duration(p.muted-now) < left) {
			left = time.Duration(max(p.muted-now, 0))
		}
	}
	return left
}
