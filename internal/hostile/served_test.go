package hostile

import (
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/netlink"
	"golang.org/x/sys/unix"
)

// For method populate, pfd uses a process's statement that it served a fault only as a hint to
// check. A process that lies or says nothing gains nothing and delays no other. A process that
// pages in without saying so is served all the same.
func TestWordsOfServedFaults(t *testing.T) {
	onEach(t, wordsOfServedFaults, "--guard-us", "2000", "--timeout-us", "2000")
}

func wordsOfServedFaults(t *testing.T, w *world) {
	b := w.bystander(attachOrder{Method: "populate", Policy: "p4"})
	const size = 256 << 10
	bring := func(f netlink.Fault) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(f.VA), uintptr(f.Pages)*device.PageSize, unix.MADV_POPULATE_WRITE)
	}
	for _, c := range []struct {
		name    string
		arrives bool
		serve   func(target *raw, f netlink.Fault, number uint32)
	}{
		{"does it and says so", true, func(target *raw, f netlink.Fault, number uint32) {
			bring(f)
			target.SetServed(number, 0)
		}},
		{"does it and says nothing", true, func(_ *raw, f netlink.Fault, _ uint32) { bring(f) }},
		{"says so before it does it", true, func(target *raw, f netlink.Fault, number uint32) {
			target.SetServed(number, 0)
			time.Sleep(time.Millisecond)
			bring(f)
		}},
		{"says so and does nothing", false, func(target *raw, _ netlink.Fault, number uint32) { target.SetServed(number, 0) }},
		{"says anything, over and over", false, func(target *raw, _ netlink.Fault, number uint32) {
			for i := range uint32(1000) {
				target.SetServed(number+1+i, 0)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.during(t)
			target := w.raw(attach.Hello{Group: "served", Node: 1, Method: pagein.Populate, Policy: pagein.PI4})
			from := w.raw(attach.Hello{Group: "served"})
			peer := target.Peer()
			faults, err := netlink.FromFD(target.fds.Take(2), netlink.Credentials{Port: target.PFDPort, PID: int32(peer.PID), UID: peer.UID})
			if err != nil {
				t.Fatal(err)
			}
			quiet := make(chan struct{})
			go func() {
				defer close(quiet)
				for {
					f, err := faults.Receive()
					if err != nil {
						return
					}
					c.serve(target, f, faults.Last())
				}
			}()
			src, dst := w.memory(size, from), w.memory(size, target)
			fill(src, 5)
			from.ring(0, device.Descriptor{Src: va(src), Dst: va(dst), Size: size, DstNode: target.Node})
			done, status := from.end(0)
			switch {
			// A device elsewhere accesses the file, which has the page once it is touched.
			case c.arrives, w.shared && done == device.DoneCompleted:
				if n, at := wrong(dst, 5, 0); done != device.DoneCompleted || n != 0 {
					t.Errorf("done %d, status %d, %d bytes wrong from %d on", done, status, n, at)
				}
			case w.shared && done == device.DoneFailed && status == device.StatusDecode:
				// The page claimed to be present is entered, and its access fails.
			case done != device.DoneFailed || status != device.StatusMemory && status != device.StatusSlaveError && status != device.StatusNoContext && status != device.StatusLimit:
				// The status is the last answer, or that there was none. On a busy machine
				// contexts of retransmitted blocks may still be open.
				t.Errorf("done %d, status %d: want failed", done, status)
			default:
				if n, at := wrong(dst, 0, 0); n != 0 {
					t.Errorf("%d bytes written to absent memory, from %d on", n, at)
				}
			}
			if err := faults.Close(); err != nil {
				t.Error(err)
			}
			<-quiet
			_, _ = from.Close(), target.Close()
			w.until("both slots are free", func() bool { return w.domains() == 2 })
		})
	}
	b.fine()
}
