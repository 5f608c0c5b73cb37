package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/rdma"
)

// A fault message that pfd did not send never reaches a process: the process's socket is
// connected to pfd's, and the kernel refuses all other senders. (After a reuse of pfd's port id
// it could; package netlink drops and counts such messages.)
func TestForgedFaultMessage(t *testing.T) { onEach(t, forgedFaultMessage) }

func forgedFaultMessage(t *testing.T, w *world) {
	b := w.bystander(attachOrder{Method: "touch"})
	victim := w.attach("victim", attachOrder{Node: 1, Method: "touch"})
	m := victim.buffer("b", "anonymous", 1<<20, 0)
	ports := usersockPorts(t)
	s, err := netlink.OpenSender()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if len(ports) < 5 { // three attachments, two nodes of pfd
		t.Fatalf("ports %d: too few for this pfd", ports)
	}
	receivers := 0
	for _, port := range ports {
		// The message asks the victim to page its buffer in and to request a block that was not
		// sent.
		err := s.Send(port, netlink.Fault{VA: device.VA(m.VA), Write: true, Pages: 256, Transaction: 3, PDID: 1})
		if errors.Is(err, netlink.ErrNoReceiver) {
			receivers++
		}
	}
	if receivers < 3 {
		t.Errorf("%d of %d sockets refused a stranger's message, want the three receivers at least", receivers, len(ports))
	}
	if n := s.Counters().NoReceiver; n != uint64(receivers) {
		t.Errorf("the attacker counts %d refusals of %d", n, receivers)
	}
	// pfd's own sockets receive such a message, drop it and count it.
	for node := range 2 {
		w.saw(node, "netlink_strays_total", 0)
	}
	b.some()
	if stats := victim.must(order{Op: "stats"}).Stats; stats.NumPageFaults != 0 || stats.FaultsForged != 0 {
		t.Errorf("forged faults were served: %+v", stats)
	}
	for i, e := range victim.must(order{Op: "pagemap", ID: "b"}).Bits {
		if e>>63 != 0 {
			t.Fatalf("page %d was paged in", i)
		}
	}
	b.fine()
}

// usersockPorts lists the port ids of all NETLINK_USERSOCK sockets.
func usersockPorts(t *testing.T) (ports []uint32) {
	t.Helper()
	f, err := os.Open("/proc/net/netlink")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var sk string
		var protocol int
		var port uint32
		if n, _ := fmt.Sscan(s.Text(), &sk, &protocol, &port); n == 3 && protocol == unix.NETLINK_USERSOCK {
			ports = append(ports, port)
		}
	}
	return ports
}

func read(r mailbox.ReadRequest) []uint64 { words := r.Encode(); return words[:] }

// Messages that only firmware or another domain may send are refused or ignored. Each has a
// counter, and the transfers that they attack arrive.
func TestForgedMessages(t *testing.T) { onEach(t, forgedMessages) }

func forgedMessages(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	liar := w.raw(attach.Hello{Group: "liar"})
	src := w.memory(4096, liar)
	for _, c := range []struct {
		name    string
		mailbox uint8
		words   []uint64
		counter device.Counter
		status  uint64
	}{
		{"an acknowledgement", 0, []uint64{mailbox.Ack{Transaction: 5, Code: device.CodeAck}.Encode()}, device.MboxRefused, device.PktzRefused},
		{"a negative acknowledgement", 0, []uint64{mailbox.Ack{Transaction: 5, Code: device.CodeDecode}.Encode()}, device.MboxRefused, device.PktzRefused},
		{"a RAPF of a transaction that no node has", device.MailboxRequest, []uint64{mailbox.RAPF{Transaction: 1023, Sequence: 9, PDID: liar.PDID, Claimed: liar.PDID}.Encode()}, device.RAPFStale, device.PktzFree},
		{"a RAPF past the last transaction", device.MailboxRequest, []uint64{mailbox.RAPF{Transaction: 5000, PDID: liar.PDID, Claimed: liar.PDID}.Encode()}, device.MsgDropped, device.PktzFree},
		{"a doorbell of another page", device.MailboxRequest, []uint64{mailbox.Doorbell{PDID: liar.PDID, Channel: 15*64 + 3}.Encode()}, device.DoorbellDenied, device.PktzFree},
		{"a doorbell in another domain's name", device.MailboxRequest, []uint64{mailbox.Doorbell{PDID: 1, Channel: 3}.Encode()}, device.DoorbellDenied, device.PktzFree},
		{"a read of a domain that nobody has", device.MailboxRead, read(mailbox.ReadRequest{PDID: liar.PDID, Tag: 1, Size: 64, Src: va(src), Dst: va(src), Notify: va(src), Target: 0xfffe}), device.DoorbellDenied, device.PktzFree},
		{"a read of a domain that has not admitted us", device.MailboxRead, read(mailbox.ReadRequest{PDID: liar.PDID, Tag: 2, Size: 64, Src: va(src), Dst: va(src), Notify: va(src), Target: pdidOf(t, b.must(order{Op: "buffer", ID: "mine", Size: 4096}).Remote)}), device.DoorbellDenied, device.PktzFree},
		{"a read of an address past the width", device.MailboxRead, read(mailbox.ReadRequest{PDID: liar.PDID, Tag: 3, Size: 64, Src: 1 << 60, Dst: va(src), Notify: va(src), TargetGeneration: liar.generation(0, 0)}), device.DoorbellDenied, device.PktzFree},
		{"a message to the driver", device.MailboxDriver, []uint64{1, 2, 3}, device.MboxRefused, device.PktzRefused},
		{"a message to a process that admits nobody", device.MailboxProcess, []uint64{1 << 40}, device.MboxRefused, device.PktzRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := w.count(0, hw(c.counter))
			if got := liar.send(0, c.mailbox, c.words...); got != c.status {
				t.Errorf("packetizer status %d, want %d", got, c.status)
			}
			w.saw(0, hw(c.counter), before)
		})
	}
	// RAPFs, with and without the fail bit, for every transaction while others' transfers are
	// in flight, with old and guessed sequence numbers.
	t.Run("a RAPF for every transaction", func(t *testing.T) {
		before := w.count(0, hw(device.RAPFStale)) + w.count(0, hw(device.RAPFDenied))
		for tr := range 256 {
			for _, pdid := range []device.PDID{liar.PDID, 1} {
				m := mailbox.RAPF{Transaction: device.TransactionID(tr % 8), Sequence: device.Sequence(tr), PDID: pdid, Claimed: 1, Fail: tr%2 == 0}
				liar.send(0, device.MailboxRequest, m.Encode())
			}
		}
		if after := w.count(0, hw(device.RAPFStale)) + w.count(0, hw(device.RAPFDenied)); after < before+512 {
			t.Errorf("%d of 512 requests were refused", after-before)
		}
	})
	t.Run("a channel that does not exist", func(t *testing.T) {
		before := w.count(0, hw(device.BadAccess)) + w.count(0, hw(device.DoorbellDenied)) + w.count(0, hw(device.MsgDropped))
		word := liar.Bytes()[attach.DoorbellPage:]
		for _, v := range []uint64{65, 1000, 1 << 40, ^uint64(0)} {
			putWord(word, v)
			liar.kick()
			w.until("the doorbell is taken", func() bool { return getWord(word) == 0 })
		}
		if after := w.count(0, hw(device.BadAccess)) + w.count(0, hw(device.DoorbellDenied)) + w.count(0, hw(device.MsgDropped)); after < before+4 {
			t.Errorf("%d of 4 doorbells were counted", after-before)
		}
	})
	t.Run("a message of a length that cannot be", func(t *testing.T) {
		for _, n := range []uint64{9, 1 << 33, ^uint64(0)} {
			page := liar.Bytes()[attach.PktzPage:]
			putWord(page[device.PktzSend:], n)
			liar.kick()
			w.until("the message is taken", func() bool { return getWord(page[device.PktzSend:]) == 0 })
			if s := liar.SendStatus(0); s != device.PktzRefused {
				t.Errorf("a count of %d: status %d, want refused", n, s)
			}
		}
	})
	// Afterwards the liar's own transfers still work.
	peer := w.raw(attach.Hello{Group: "liar", Node: 1})
	dst := w.memory(4096, peer)
	fill(src, 3)
	liar.ring(2, device.Descriptor{Src: va(src), Dst: va(dst), Size: 4096, DstNode: peer.Node})
	if done, status := liar.end(2); done != device.DoneCompleted {
		t.Errorf("the liar's own transfer: done %d, status %d", done, status)
	}
	b.fine()
}

// The owner changes a descriptor after the doorbell. The engine uses the copy that it took: it
// accesses only the copy's source and destination.
func TestDescriptorChangedAfterTheDoorbell(t *testing.T) { onEach(t, descriptorChanged) }

func descriptorChanged(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	liar := w.raw(attach.Hello{Group: "liar"})
	peer := w.raw(attach.Hello{Group: "liar", Node: 1})
	const size = 1 << 20
	src, dst, other := w.memory(size, liar), w.memory(size, peer), w.memory(4*size, liar, peer)
	fill(src, 1)
	fill(other, 2)
	for round := range 20 {
		w.discard(dst)
		liar.ring(0, device.Descriptor{Src: va(src), Dst: va(dst), Size: size, DstNode: 1})
		w.until("the transfer has started", func() bool { return liar.Done(0) != device.DoneInitialized })
		// Destination, source, size and node change while it runs. So do its completion words:
		// a forged done deceives only its owner.
		d := device.Descriptor{Src: va(other), Dst: va(other) + device.VA(round)*4096, Size: 4 * size, DstNode: 1, Notify: va(other)}
		page := liar.Bytes()[attach.DescriptorPage:]
		for i, v := range d.Words() {
			if off := 8 * i; off != device.DescSize && off != device.DescReserved1 {
				putWord(page[off:], v)
			}
		}
		if done, status := liar.end(0); done != device.DoneCompleted {
			t.Fatalf("round %d: done %d, status %d", round, done, status)
		}
		if n, first := wrong(dst, 1, 0); n != 0 {
			t.Fatalf("round %d: %d bytes wrong from %d on", round, n, first)
		}
		if n, first := wrong(other, 2, 0); n != 0 {
			t.Fatalf("round %d: the new descriptor was executed: %d bytes changed from %d on", round, n, first)
		}
	}
	b.fine()
}

// Whatever a descriptor contains, its transfer ends with the right code, and the node
// continues.
func TestWildDescriptors(t *testing.T) { onEach(t, wildDescriptors) }

func wildDescriptors(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	liar := w.raw(attach.Hello{Group: "liar"})
	peer := w.raw(attach.Hello{Group: "liar", Node: 1})
	stranger := w.attach("stranger", attachOrder{Node: 1, Group: "stranger"})
	theirs := stranger.buffer("b", "anonymous", 8192, 9)
	// A transfer beyond the memory must not reach other memory of this process: blocks in
	// flight behind the first failed one are written, and could overwrite the attachment's
	// memory.
	const guard = 4 << 20
	mine := w.memory(2*device.PageSize+guard, liar, peer)
	if err := unix.Mprotect(mine[2*device.PageSize:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	mine = mine[:2*device.PageSize]
	const holeVA = device.VA(lonely)
	for _, c := range []struct {
		name    string
		d       device.Descriptor
		status  uint8
		node    int
		counter string // of the node, or of the node whose hole is reached first
	}{
		{"a node that is not there", device.Descriptor{Src: va(mine), Dst: va(mine), Size: 64, DstNode: 0x3ffff}, device.StatusDecode, 0, hw(device.DoorbellDenied)},
		{"an address past the width", device.Descriptor{Src: va(mine), Dst: 1 << 60, Size: 64, DstNode: 1}, device.StatusDecode, 0, hw(device.DoorbellDenied)},
		{"an address of the kernel", device.Descriptor{Src: 0xffff_8000_0000_0000, Dst: va(mine), Size: 64, DstNode: 1}, device.StatusDecode, 0, hw(device.DoorbellDenied)},
		{"no bytes", device.Descriptor{Src: va(mine), Dst: va(mine), DstNode: 1}, device.StatusDecode, 0, hw(device.DoorbellDenied)},
		{"a source that is not mapped", device.Descriptor{Src: holeVA, Dst: va(mine), Size: 64, DstNode: 1}, device.StatusDecode, 0, control.CounterFailed},
		{"a destination that is not mapped", device.Descriptor{Src: va(mine), Dst: holeVA, Size: 64, DstNode: 1}, device.StatusDecode, 1, control.CounterFailed},
		{"address 0", device.Descriptor{Src: va(mine), Dst: 0, Size: 64, DstNode: 1}, device.StatusDecode, 1, control.CounterFailed},
		{"all there is", device.Descriptor{Src: va(mine), Dst: va(mine), Size: 1<<32 - 1, DstNode: 1}, device.StatusDecode, control.AllNodes, control.CounterFailed},
		{"a domain that nobody has", device.Descriptor{Src: va(mine), Dst: va(mine), Size: 64, DstNode: 1, DstPDID: 0xfffe}, device.StatusDomain, 0, hw(device.Nacks5)},
		{"a domain that has not admitted us", device.Descriptor{Src: va(mine), Dst: device.VA(theirs.VA), Size: 64, DstNode: 1, DstPDID: pdidOf(t, theirs.Remote)}, device.StatusDomain, 0, hw(device.Nacks5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.during(t)
			fill(mine, 4)
			before := w.count(c.node, c.counter)
			liar.ring(1, c.d)
			if done, status := liar.end(1); done != device.DoneFailed || status != c.status {
				t.Errorf("done %d, status %d; want failed with %d", done, status, c.status)
			}
			w.saw(c.node, c.counter, before)
		})
	}
	stranger.holds("b", 9, 0, 8192)
	b.fine()
}

func pdidOf(t *testing.T, remote string) device.PDID {
	t.Helper()
	r, err := rdma.ParseRemote(remote)
	if err != nil {
		t.Fatal(err)
	}
	return r.PDID
}

// An attachment that violates the protocol is refused with a reason, and counted.
func TestMalformedAttachments(t *testing.T) {
	w := start(t)
	b := w.bystander(attachOrder{})
	good, err := (&attach.Hello{Product: "liar 1", Group: "liar"}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	change := func(at int, v byte) []byte {
		m := append([]byte(nil), good...)
		m[at] = v
		return m
	}
	for _, c := range []struct {
		name string
		msg  []byte
		code attach.Code
		text string
	}{
		{"too short", good[:100], attach.CodeProtocol, "100 bytes"},
		{"no header", good[:7], attach.CodeProtocol, "header"},
		{"too long", append(append([]byte(nil), good...), make([]byte, 600)...), attach.CodeProtocol, "more than"},
		{"another length", change(4, 9), attach.CodeProtocol, "length"},
		{"another protocol", change(2, 200), attach.CodeVersion, "install"},
		{"a type that is not known", change(0, 77), attach.CodeUnknownType, "type 77"},
		{"a welcome", change(0, 2), attach.CodeProtocol, "type 2"},
		{"a method that is not known", change(76, 99), attach.CodeProtocol, "method 99"},
		{"a group of control characters", change(112, 27), attach.CodeProtocol, "group"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.during(t)
			before := w.count(control.AllNodes, control.CounterRefused)
			conn := w.dial()
			if err := conn.Send(c.msg); err != nil {
				t.Fatal(err)
			}
			w.refusal(conn, c.code, c.text)
			w.saw(control.AllNodes, control.CounterRefused, before)
		})
	}
	forgedKeepers(t, w)
	b.fine()
}

// dial connects to the attachment socket until the test ends.
func (w *world) dial() *attach.Conn {
	w.t.Helper()
	conn, err := attach.Dial(w.ctx(), control.AttachSocket(w.socket()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// refusal fails the test unless the next message is a refusal with code and text.
func (w *world) refusal(conn *attach.Conn, code attach.Code, text string) {
	w.t.Helper()
	var buf [attach.MaxMessage]byte
	n, fds, err := conn.Receive(w.ctx(), buf[:])
	fds.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := attach.DecodeRefused(buf[:n])
	if err != nil {
		w.t.Fatal(err)
	}
	if r.Code != code || !strings.Contains(r.Text, text) {
		w.t.Errorf("refused with code %d, %q; want %d and %q", r.Code, r.Text, code, text)
	}
}

// forgedKeepers names false keepers: no task, the process itself, and other processes.
func forgedKeepers(t *testing.T, w *world) {
	hello, err := (&attach.Hello{Product: "liar 1", Group: "liar"}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pidfd := func(pid int) int {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	for _, c := range []struct {
		name   string
		keeper int
		code   attach.Code
		text   string
	}{
		{"a keeper that is no process", int(null.Fd()), attach.CodeProtocol, "no pidfd"},
		{"the process itself as keeper", pidfd(os.Getpid()), attach.CodeProtocol, "its own keeper"},
		{"another process as keeper", pidfd(w.cmd.Process.Pid), attach.CodePermission, "keeper"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.during(t)
			before := w.count(control.AllNodes, control.CounterRefused)
			conn := w.dial()
			if err := conn.Send(hello); err != nil {
				t.Fatal(err)
			}
			var buf [attach.MaxMessage]byte
			n, fds, err := conn.Receive(w.ctx(), buf[:])
			if err != nil {
				t.Fatal(err)
			}
			defer fds.Close()
			if h, err := attach.DecodeHeader(buf[:n]); err != nil || h.Type != attach.TypeMemory {
				t.Fatalf("%+v, %v where the memory is due", h, err)
			}
			if err := conn.Send(bare(attach.TypeMapped), c.keeper); err != nil {
				t.Fatal(err)
			}
			w.refusal(conn, c.code, c.text)
			w.saw(control.AllNodes, control.CounterRefused, before)
		})
	}
}

// A process cannot harm others by its descriptors: the memory cannot be shrunk, and a blocking
// eventfd blocks only its owner.
func TestDescriptorsTurnedAgainstPfd(t *testing.T) { onEach(t, turnedAgainstPfd) }

func turnedAgainstPfd(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	liar := w.raw(attach.Hello{Group: "liar"})
	peer := w.raw(attach.Hello{Group: "liar", Node: 1})
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(liar.fds[0], size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncating the attachment's memory to %d: %v, want EPERM", size, err)
		}
	}
	if err := unix.Fallocate(liar.fds[0], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, attach.MemorySize); !errors.Is(err, unix.EPERM) {
		t.Errorf("punching a hole: %v, want EPERM", err)
	}
	if err := unix.Madvise(liar.Bytes(), unix.MADV_REMOVE); !errors.Is(err, unix.EPERM) {
		t.Errorf("MADV_REMOVE: %v, want EPERM", err)
	}
	if _, err := unix.Mmap(liar.fds[0], 0, attach.MemorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("mapping it again: %v, want EPERM", err)
	}
	if _, err := unix.FcntlInt(uintptr(liar.fds[0]), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("a further seal could be set")
	}
	// Full, blocking, and no longer non-blocking for pfd either.
	if err := unix.SetNonblock(liar.fds[1], true); err != nil {
		t.Fatal(err)
	}
	full := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if _, err := unix.Write(liar.fds[1], full); err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(liar.fds[1], false); err != nil {
		t.Fatal(err)
	}
	b.some()
	// This eventfd can no longer wake pfd; other wake-ups make pfd take the doorbell.
	src, dst := w.memory(8192, liar), w.memory(8192, peer)
	fill(src, 6)
	liar.Publish(0, &device.Descriptor{Src: va(src), Dst: va(dst), Size: 8192, DstNode: 1, DstGeneration: liar.generation(1, 0)})
	if !liar.Ring(0) {
		t.Fatal("the doorbell is taken")
	}
	liar.Kick()
	if done, status := liar.end(0); done != device.DoneCompleted {
		t.Errorf("done %d, status %d", done, status)
	}
	// All pages full of ones, which pfd must treat as plain values.
	for _, page := range []int{attach.DescriptorPage, attach.DoorbellPage, attach.PktzPage, attach.WakePage} {
		for i := 0; i < device.PageSize; i += 8 {
			putWord(liar.Bytes()[page+i:], ^uint64(0))
		}
		liar.Kick() // the eventfd would block, but only this process
		b.some()
	}
	// A message that no attachment sends after its handshake is refused.
	if err := liar.Conn.Send(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := within(10 * time.Second)
	defer cancel()
	var buf [attach.MaxMessage]byte
	n, _, err := liar.Receive(ctx, buf[:])
	if err != nil {
		t.Fatal(err)
	}
	if r, err := attach.DecodeRefused(buf[:n]); err != nil || r.Code != attach.CodeProtocol {
		t.Errorf("a broken message: %v, %v", r, err)
	}
	w.until("the attachment is ended", func() bool { _, over := liar.Ended(); return over })
	b.fine()
}
