package suite

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
)

// toucher is a process that pages in by itself (docs/attach.md 6). It receives requests over a
// real netlink socket and answers by its packetizer. Package hostile tests the library's
// implementation; this one runs on every machine.
type toucher struct {
	sender *netlink.Sender
	asked  func(netlink.Fault) // notifies the machine
	port   uint32
	mem    *attach.Memory
	pdid   device.PDID
}

// touchChannel is a packetizer channel that doorbells do not use.
const touchChannel = device.PktzChannels - 1

// Ask implements fault.Delegate, on the owning goroutine.
func (p *toucher) Ask(f netlink.Fault) error {
	p.asked(f)
	return p.sender.Send(p.port, f)
}

// Touch makes both sides page in by themselves from now on.
func (r *Rig) Touch(policy fault.Policy) {
	r.t.Helper()
	for n, s := range r.sides {
		sender, err := netlink.OpenSender()
		if err != nil {
			r.t.Fatal(err)
		}
		file, port, err := netlink.NewReceiver(sender.Port())
		if err != nil {
			r.t.Fatal(err)
		}
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			err = file.Close()
		}
		if err != nil {
			r.t.Fatal(err)
		}
		from := netlink.Credentials{Port: sender.Port(), PID: int32(os.Getpid()), UID: uint32(os.Getuid())}
		faults, err := netlink.FromFD(fd, from)
		if err != nil {
			r.t.Fatal(err)
		}
		p := &toucher{sender: sender, port: port, mem: s.mem, pdid: s.domain.PDID, asked: func(netlink.Fault) {}}
		if r.shadow != nil {
			p.asked = func(f netlink.Fault) { r.shadow.Asked(n, s.domain.Slot, f) }
		}
		r.On(n, func() {
			err = r.Drivers[n].Add(fault.Target{Slot: s.domain.Slot, PDID: p.pdid, Policy: policy, Method: fault.Touch, Delegate: p})
		})
		if err != nil {
			r.t.Fatal(err)
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			for {
				f, err := faults.Receive()
				if err != nil {
					return // closed
				}
				p.serve(&f)
			}
		}()
		r.t.Cleanup(func() {
			r.On(n, func() { r.Drivers[n].Remove(s.domain.Slot) })
			if err := faults.Close(); err != nil {
				r.t.Error(err)
			}
			<-over
			if err := sender.Close(); err != nil {
				r.t.Error(err)
			}
		})
	}
}

// serve pages in and requests the block again.
func (p *toucher) serve(f *netlink.Fault) {
	advice := unix.MADV_POPULATE_READ
	if f.Write {
		advice = unix.MADV_POPULATE_WRITE
	}
	failed := advise(f.VA.Page(), int(f.Pages), advice) != 0 && advise(f.VA.Page(), 1, advice) != 0
	if f.PDID == 0 {
		return // no peer to send a RAPF to
	}
	word := mailbox.RAPF{PDID: p.pdid, Claimed: p.pdid, Transaction: f.Transaction, Sequence: f.Sequence, Fail: failed}.Encode()
	for deadline := time.Now().Add(5 * time.Second); !p.mem.Send(touchChannel, f.Source, device.MailboxRequest, word); {
		if time.Now().After(deadline) {
			return // the guard time-out retransmits the block
		}
		time.Sleep(10 * time.Microsecond)
	}
	if p.mem.Kick() {
		_, _ = unix.Write(p.mem.WakeFD(), binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// advise is madvise for memory that may not be mapped.
func advise(va device.VA, pages, advice int) unix.Errno {
	for {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(va), uintptr(pages)*device.PageSize, uintptr(advice))
		if errno != unix.EINTR && errno != unix.EAGAIN {
			return errno
		}
	}
}

// touched returns a rig whose processes page in by themselves.
func touched(t *testing.T, m Machine, policy fault.Policy) *Rig {
	r := NewRig(t, m, policy, false)
	r.Touch(policy)
	t.Cleanup(func() {
		asked := uint64(0)
		for n, d := range r.Drivers {
			r.On(n, func() { asked += d.Stats().Total.Delegated })
		}
		if asked == 0 && !t.Skipped() {
			t.Error("no process was asked to page in")
		}
	})
	return r
}
