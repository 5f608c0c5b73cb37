package owner

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// inbox holds the requests of other goroutines to the owner, in order.
type inbox[M any] struct {
	mu     sync.Mutex // guards list and event
	list   []item[M]
	event  int         // eventfd that wakes the owner; -1: closed
	some   atomic.Bool // list is not empty
	asleep atomic.Bool // the owner sleeps, or is about to

	spare []item[M] // the owner's: the list that it took last
}

// item is a function for the owner to run, or a message.
type item[M any] struct {
	f func()
	m M
}

func (in *inbox[M]) open() (err error) {
	in.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		in.event = -1
		return fmt.Errorf("owner's inbox: %w", os.NewSyscallError("eventfd", err))
	}
	return nil
}

func (in *inbox[M]) close() error {
	in.mu.Lock()
	fd := in.event
	in.event = -1
	in.mu.Unlock()
	if fd < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// Post makes the owner run f. Any goroutine may call it.
func (in *inbox[M]) Post(f func()) { in.add(item[M]{f: f}) }

// Send sends a message to the owner. Any goroutine may call it.
func (in *inbox[M]) Send(m M) { in.add(item[M]{m: m}) }

func (in *inbox[M]) add(it item[M]) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.leave(it)
	in.wake()
}

// Leave is Post, but does not wake the owner: the caller must call Wake, or do the owner's work.
func (in *inbox[M]) Leave(f func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.leave(item[M]{f: f})
}

func (in *inbox[M]) leave(it item[M]) {
	in.list = append(in.list, it)
	in.some.Swap(true) // before wake looks (Doze)
}

// Wake wakes the owner. Any goroutine may call it.
func (in *inbox[M]) Wake() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.wake()
}

func (in *inbox[M]) wake() {
	if !in.asleep.Load() || in.event < 0 {
		return
	}
	one := [8]byte{1}
	// A write to a full eventfd wakes, too; an interrupted one does not.
	for {
		if _, err := unix.Write(in.event, one[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Posted reports whether the inbox is not empty.
func (in *inbox[M]) Posted() bool { return in.some.Load() }

// Take runs the posted functions and calls message with each message.
func (in *inbox[M]) Take(message func(M)) {
	in.mu.Lock()
	list := in.list
	in.list, in.spare = in.spare[:0], nil
	in.some.Store(false)
	in.mu.Unlock()
	for i := range list {
		it := list[i]
		list[i] = item[M]{}
		if it.f != nil {
			it.f()
		} else {
			message(it.m)
		}
	}
	in.spare = list
}
