package emu

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A thread that works is distinguished from one that sleeps in the kernel.
func TestAsleep(t *testing.T) {
	var e Engine
	var spins atomic.Uint64
	var stop atomic.Bool
	working := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		e.thread.Store(int32(unix.Gettid()))
		close(working)
		for !stop.Load() {
			spins.Add(1)
		}
	}()
	<-working
	// Go's scheduler may park it for a while if others need the processors.
	for deadline := time.Now().Add(2 * time.Minute); e.asleepNow(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a thread that works is said to sleep")
		}
	}
	stop.Store(true)

	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	asleep := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		e.thread.Store(int32(unix.Gettid()))
		close(asleep)
		_, _ = unix.Read(fds[0], make([]byte, 1))
	}()
	<-asleep
	for deadline := time.Now().Add(2 * time.Minute); !e.asleepNow(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a thread that sleeps in read is said to run")
		}
	}
	_ = unix.Close(fds[1]) // ends the read

	e.thread.Store(-1)
	if !e.asleepNow() {
		t.Error("a thread that is not there runs")
	}
}
