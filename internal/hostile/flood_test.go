package hostile

import (
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
)

// While users connect as fast as they can, each attach of another user succeeds: the library
// reconnects if the listener's queue is full. The test logs how often that happens.
func TestAttachDuringAConnectFlood(t *testing.T) {
	needRoot(t, "attackers of several users need their processes")
	w := start(t)
	v := w.spawn("victim", victimUID)
	var reap sync.WaitGroup
	t.Cleanup(reap.Wait)
	end := w.assault(&reap, []aggressor{{"connections", 0}, {"connections", 0}, {"connections", 0}})
	path := control.AttachSocket(w.socket())
	const rounds, plain = 10, 500
	full := 0
	for range rounds {
		// pfd gets no processor for a while, and the queue fills.
		if err := w.cmd.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience / 10); !queueFull(t, path) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		attached := make(chan error)
		go func() {
			r, err := v.do(order{Op: "attach", Attach: attachOrder{Socket: w.socket(), Group: "flood"}})
			if err == nil && r.Err != "" {
				err = errors.New(r.Err)
			}
			attached <- err
		}()
		for range plain { // while pfd is stopped
			if queueFull(t, path) {
				full++
			}
		}
		if err := errors.Join(w.cmd.Process.Signal(unix.SIGCONT), <-attached); err != nil {
			t.Fatal(err)
		}
		v.must(order{Op: "close"})
	}
	t.Logf("%d attaches; of %d plain connects %d met a full queue; the attackers did: %s", rounds, rounds*plain, full, end())
}

// queueFull connects once and reports whether the queue was full.
func queueFull(t *testing.T, path string) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	return err != nil
}
