package rdma

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// Thread is the packetizer and the mailbox of a thread of the global shared address space, on which
// package gsas is built. A goroutine at a time may use a channel, and one at a time may call Take.
type Thread struct {
	e    *Endpoint
	port *attach.Port
	info attach.Threaded

	numbers *threadNumbers
	mu      sync.Mutex
	memory  int  // of the tree on this node; -1: closed
	ended   bool // or pfd will end it
}

// threadNumbers has the number of the last message by channel and node (spec/gsas.md 3).
type threadNumbers [device.PktzChannels]map[device.NodeID]uint16

// NewThread makes a thread: the root of a new tree, or one of the tree with a token. The endpoint must
// have Options.Threads. Errors match ErrRequest, ErrGone or ErrClosed; pfd's refusal is an
// *attach.RefusedError.
func (e *Endpoint) NewThread(token [16]byte) (*Thread, error) {
	if !e.pages.HasThreads() {
		return nil, fmt.Errorf("make a thread: %w: the endpoint has none (Options.Threads)", ErrRequest)
	}
	e.asking.Lock()
	defer e.asking.Unlock()
	m := attach.Thread{Product: attach.Product(), Token: token}
	a, err := e.exchangeFor(m.Append(nil), attach.TypeThread, func(a *answer) bool { return a.thread != nil })
	if err != nil {
		return nil, fmt.Errorf("make a thread: %w", err)
	}
	defer a.fds.Close()
	t := &Thread{e: e, info: *a.thread, port: e.pages.Thread(int(a.thread.Index)), memory: a.fds.Take(0)}
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.numbers = e.numbers[t.info.Interface]; t.numbers == nil {
		t.numbers = new(threadNumbers)
		if e.numbers == nil {
			e.numbers = map[uint8]*threadNumbers{}
		}
		e.numbers[t.info.Interface] = t.numbers
	}
	return t, nil
}

// Info returns what pfd has told of the thread.
func (t *Thread) Info() attach.Threaded { return t.info }

// Next returns the number for the next message of a channel to the unit of a node.
func (t *Thread) Next(channel int, node device.NodeID) uint16 {
	m := t.numbers[channel]
	if m == nil {
		m = map[device.NodeID]uint16{}
		t.numbers[channel] = m
	}
	m[node]++
	return m[node]
}

// Send sends a request to the unit of a node. It returns false if the node has not taken the channel's
// last message yet.
func (t *Thread) Send(channel int, node device.NodeID, number uint16, words []uint64) bool {
	if !t.port.SendTo(channel, packetizer.Destination(node, device.MailboxGSAS, 0), number, words) {
		return false
	}
	t.ring()
	return true
}

func (t *Thread) ring() {
	t.e.pages.RingThread(int(t.info.Index))
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	t.e.kickLocked()
}

// Refused reports whether the node has refused the last message of a channel.
func (t *Thread) Refused(channel int) bool {
	return t.port.SendStatus(channel) == device.PktzRefused
}

// Unread reports whether pfd has not read the last message of a channel yet.
func (t *Thread) Unread(channel int) bool {
	return t.port.SendStatus(channel) == device.PktzBusy
}

// Take takes an answer of a unit out of the mailbox, and the node of the unit. Other messages are
// dropped: nothing but units can send them.
func (t *Thread) Take() (a atomics.Answer, node device.NodeID, ok bool) {
	var m attach.Mail
	for t.port.HasMail() {
		_, full := t.port.TakeMail(&m)
		if full {
			t.ring()
		}
		source := mailbox.DecodeSource(m.Source)
		if source.PDID != device.PDIDFirmware {
			continue
		}
		a, err := atomics.DecodeAnswer(m.Words[:min(source.Words, device.PktzMaxWords)])
		if err == nil {
			return a, source.Node, true
		}
	}
	return a, 0, false
}

// HasMail reports whether Take would take something.
func (t *Thread) HasMail() bool { return t.port.HasMail() }

// Spin calls check until it returns true, which is then the result, or for SpinTime.
func (t *Thread) Spin(check func() bool) bool { return t.e.spin(check) }

// Wait sleeps until something has come for the thread, at most for a time. check, which is called
// before, reports whether it has come already.
func (t *Thread) Wait(most time.Duration, check func() bool) error {
	t.port.AddWaiters(1)
	defer t.port.AddWaiters(-1)
	old := t.port.Event()
	if check() {
		return nil
	}
	if err := t.Err(); err != nil {
		return err
	}
	return t.port.WaitEvent(old, most)
}

// Wake ends all waits, which call their checks again.
func (t *Thread) Wake() { t.port.WakeSelf() }

// ErrTreeLost means that pfd has ended a thread, because the pfd of the root of its tree has ended, or the host
// of that pfd is struck.
var ErrTreeLost = errors.New("the tree is lost: the pfd of its root has ended")

// Err returns the error of a thread that pfd has ended, or whose attachment has ended, else nil.
func (t *Thread) Err() error {
	if t.port.Ended() {
		return ErrTreeLost
	}
	if r, over := t.e.pages.Ended(); over {
		t.e.end(r, "")
	}
	return t.e.gone()
}

// Memory calls f with the memfd of the tree's memory on this node.
func (t *Thread) Memory(f func(fd int) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.memory < 0 {
		return ErrClosed
	}
	return f(t.memory)
}

// Close ends the thread. Nothing is written to its mailbox afterwards. If it is the last thread of its
// tree, the tree's pages are freed. If pfd refuses that, Close may be called again.
func (t *Thread) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil
	}
	var err error
	if t.memory >= 0 {
		err = os.NewSyscallError("close", unix.Close(t.memory))
		t.memory = -1
	}
	t.e.asking.Lock()
	defer t.e.asking.Unlock()
	m := attach.Unthread{Product: attach.Product(), Index: t.info.Index}
	_, ended := t.e.exchange(m.Append(nil), attach.Shared{VA: device.VA(t.info.Index), Answered: attach.TypeUnthread})
	var refused *attach.RefusedError
	t.ended = !errors.As(ended, &refused)
	if errors.Is(ended, ErrGone) || errors.Is(ended, ErrClosed) { // it ended with the attachment
		ended = nil
	}
	if err = errors.Join(err, ended); err != nil {
		return fmt.Errorf("end a thread: %w", err)
	}
	return nil
}
