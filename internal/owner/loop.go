// Package owner is the loop of the goroutine that owns the state of a machine's nodes: its inbox,
// to which any goroutine posts; the processes and file descriptors that it serves; and how it sleeps
// when idle. The work itself belongs to its user, whose passes call Take and Look, and which
// sleeps by
//
//	Doze; if nothing has arrived meanwhile: Wait; Rouse.
//
// A process is polled in every pass only while it publishes. One that has been quiet for a while
// becomes cold: its asleep flag is set, and its eventfd brings it back. So a pass costs the same
// with a thousand idle processes as with one.
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
	// quietTime is how long a process must publish nothing before it becomes cold.
	quietTime = int64(time.Millisecond)
	// pollTime is the interval between polls of the file descriptors while the owner is busy: the kick
	// of a cold process may wait that long.
	pollTime = int64(50 * time.Microsecond)
	// scanTime is the interval between polls of the cold processes themselves. A process that
	// has filled its eventfd cannot wake the owner any more: it waits for another wake-up.
	scanTime = int64(10 * time.Millisecond)
	// A kick without work costs the owner a wake-up and a pass. A user may send vainKicks of them
	// at once, and one more per vainTime; a process that exceeds this is muted for that time. A
	// process that publishes much sometimes kicks in vain, because the owner sees its publication
	// before the kick: each kick with work restores vainRepaid.
	vainKicks  = 64
	vainTime   = 10 * time.Millisecond
	vainRepaid = 4
)

// Loop is the loop of one owner. M is the type of its messages, S the owner's state per process.
// Its methods are for the owner only unless they say otherwise.
type Loop[M, S any] struct {
	inbox[M]
	user      User[S]
	epoll     int
	processes map[int32]*Process[S] // by their eventfds
	hot       []*Process[S]         // polled in every pass
	turn      int                   // of hot: polled last
	vain      *quota.Rate           // kicks without work
	scanned   int64                 // when the cold processes were polled last
	woken     bool                  // the owner has slept since
	polled    int64                 // when the file descriptors were last polled
	dozing    bool                  // the asleep flags of the hot processes are set
	fired     [64]unix.EpollEvent
	waiting   int // of fired: not yet handled
	done      chan struct{}
}

// New returns the loop of an owner. The caller must call Close.
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

// Close releases the loop's file descriptors. The owner must not run. Any goroutine may call it, even
// repeatedly.
func (l *Loop[M, S]) Close() error {
	err := l.close()
	if l.epoll >= 0 {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(l.epoll)))
		l.epoll = -1
	}
	return err
}

// End marks the owner as ended: Do returns false from now on.
func (l *Loop[M, S]) End() { close(l.done) }

// Done returns a channel that End closes. Any goroutine may use it.
func (l *Loop[M, S]) Done() <-chan struct{} { return l.done }

// Do makes the owner run f and waits until it has. It returns false if the owner has ended; f may
// not have run then. Any goroutine but the owner may call it.
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

// Watch makes User.Fired be called, and the owner wake, when a file descriptor becomes readable.
func (l *Loop[M, S]) Watch(fd int) error {
	// Edge-triggered and never read: a peer could make its eventfd block.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("watching a descriptor: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// unwatch undoes Watch.
func (l *Loop[M, S]) unwatch(fd int) { _ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// Attach starts serving a process.
func (l *Loop[M, S]) Attach(p *Process[S], now int64) error {
	if err := l.Watch(p.Wake); err != nil {
		return err
	}
	p.kick = p.Pages.Kicks() - 1 // so that what it has published before is found
	l.processes[int32(p.Wake)] = p
	p.here = true
	l.Heat(p, now)
	return nil
}

// Detach stops serving a process.
func (l *Loop[M, S]) Detach(p *Process[S]) {
	l.unwatch(p.Wake)
	delete(l.processes, int32(p.Wake))
	p.here = false
	if i := slices.Index(l.hot, p); i >= 0 {
		l.drop(i)
	}
}

// Hot returns the processes that are polled in every pass. The slice belongs to the loop.
func (l *Loop[M, S]) Hot() []*Process[S] { return l.hot }

// Heat makes a process hot: it is polled in every pass until it is quiet and User.Busy is false.
// A process that has been detached stays unserved, whatever of it is still under way.
func (l *Loop[M, S]) Heat(p *Process[S], now int64) {
	if p.hot || !p.here {
		return
	}
	p.hot, p.since = true, now
	p.setAsleep(l.dozing)
	l.hot = append(l.hot, p)
}

// cool leaves hot process i to its eventfd. It returns false if the process has published
// something meanwhile: either the owner sees that, or the process sees the asleep flag.
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

// Look handles what processes have published, round robin, until enough returns true; the next
// pass begins after the process handled last. It reports whether there was anything.
func (l *Loop[M, S]) Look(now int64, enough func() bool) (any bool) {
	if !l.dozing && len(l.processes) > len(l.hot) && now-l.polled >= pollTime {
		l.Poll(now)
	}
	if now-l.scanned >= scanTime {
		l.scan(now)
	}
	for n := len(l.hot); n > 0 && !enough(); n-- {
		if l.turn++; l.turn >= len(l.hot) {
			l.turn = 0
		}
		p := l.hot[l.turn]
		switch k := p.Pages.Kicks(); {
		case p.muted != 0 && l.deaf(p, now):
		case k != p.kick || p.sends:
			any = l.kicked(p, k, now) || any
		case now-p.since > quietTime && !l.user.Busy(p):
			l.cool(l.turn)
		}
	}
	return any
}

// scan heats the cold processes that have published something.
func (l *Loop[M, S]) scan(now int64) {
	l.scanned, l.woken = now, false
	if len(l.processes) == len(l.hot) {
		return
	}
	for _, p := range l.processes {
		if !p.Seen() {
			l.Heat(p, now)
		}
	}
}

// kicked handles a kick of a process, or looks for what an earlier one announced. It reports
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

// deaf reports whether a process is still muted.
func (l *Loop[M, S]) deaf(p *Process[S], now int64) bool {
	switch {
	case p.muted == 0:
		return false
	case now < p.muted:
		return true
	case l.Watch(p.Wake) != nil:
		p.muted = now + int64(vainTime) // try again then
		return true
	}
	p.muted = 0
	return false
}

// Rung reports whether a hot process has published something.
func (l *Loop[M, S]) Rung() bool {
	for _, p := range l.hot {
		if p.muted == 0 && (p.sends || !p.Seen()) {
			return true
		}
	}
	return false
}

// Poll polls the file descriptors. It must not be called between Doze and Rouse.
func (l *Loop[M, S]) Poll(now int64) {
	l.Wait(0)
	l.fire(now)
}

// fire handles the file descriptors that have fired.
func (l *Loop[M, S]) fire(now int64) {
	n := l.waiting
	l.waiting, l.polled = 0, now
	if n == len(l.fired) {
		l.polled = now - pollTime // there may be more events
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

// Doze tells all publishers to wake the owner from now on. The caller must call Rouse. Either the
// owner finds the publication when it looks once more, or the publisher sees that the owner
// sleeps.
func (l *Loop[M, S]) Doze() {
	l.asleep.Swap(true) // a load that follows comes after it, for the race detector, too
	l.dozing = true
	for _, p := range l.hot {
		p.setAsleep(true)
	}
}

// Wait sleeps until a process, a descriptor or the inbox wakes the owner, or until timeout has
// passed; a negative timeout never does. It reports whether a descriptor has fired.
func (l *Loop[M, S]) Wait(timeout time.Duration) bool {
	l.waiting = wait(l.epoll, l.fired[:], timeout)
	return l.waiting > 0
}

// Rouse undoes Doze and handles the file descriptors that have fired.
func (l *Loop[M, S]) Rouse(now int64) {
	l.asleep.Store(false)
	l.dozing, l.woken = false, true
	l.fire(now)
	for _, p := range l.hot {
		p.setAsleep(false)
	}
}

// Timeout returns how long the owner may sleep for the processes' sake: until a muted one is
// served again, or the cold ones are polled after a wake-up. It is negative if nothing is due.
func (l *Loop[M, S]) Timeout(now int64) (left time.Duration) {
	left = -1
	due := func(at int64) {
		if d := time.Duration(max(at-now, 0)); left < 0 || d < left {
			left = d
		}
	}
	if l.woken && len(l.processes) > len(l.hot) {
		due(l.scanned + scanTime)
	}
	for _, p := range l.hot {
		if p.muted != 0 {
			due(p.muted)
		}
	}
	return left
}
