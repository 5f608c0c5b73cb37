package emu

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stall is the most that the machines' time advances between two readings of the clock: more than
// a pass or a call takes that has a processor. Defined by this project.
const stall = int64(time.Millisecond)

// clock is the machines' time. It advances while the engine runs, and while it sleeps because it has
// no work. It stops while the engine has work but no processor, or a call sleeps in the kernel.
// Otherwise blocks whose answers have arrived, but have not been read yet, would time out and be
// retransmitted.
type clock struct {
	now  int64 // ns, never more than Engine.Now
	seen int64 // Engine.Now at the last look
}

// run advances the clock to a reading of Engine.Now.
func (c *clock) run(now int64) {
	c.now += min(now-c.seen, stall)
	c.seen = now
}

// slept advances the clock to a reading of Engine.Now after a sleep that was to end at until, in the
// machines' time.
func (c *clock) slept(now, until int64) {
	c.now = max(min(c.now+now-c.seen, until), c.now)
	c.seen = now
}

// alarm is a timer of the kernel. In contrast to a timer of Go, setting it wakes no thread, which
// would take a processor from the transfer that has just begun.
type alarm struct {
	file *os.File
	fd   int // of file
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	a := &alarm{os.NewFile(uintptr(fd), "timerfd"), fd}
	if err := a.file.SetDeadline(time.Time{}); err != nil { // the runtime does not poll it
		return nil, fmt.Errorf("timerfd: %w", errors.Join(err, a.file.Close()))
	}
	return a, nil
}

// set makes the alarm expire after d, and then periodically if every is not 0. d 0 disarms it.
func (a *alarm) set(d, every time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d)), Interval: unix.NsecToTimespec(int64(every))}
	_ = unix.TimerfdSettime(a.fd, 0, &spec, nil) // no more than a wrong descriptor or time could be refused
}

// ring waits until the alarm has expired since it was set or last waited for.
func (a *alarm) ring() error {
	var times [8]byte
	_, err := a.file.Read(times[:])
	return err
}
