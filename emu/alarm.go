package emu

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

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
