package suite

import (
	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/vfio/mediate"
)

// Mediated is a mediated machine as a Machine of the suite.
type Mediated struct{ *mediate.Machine }

// On runs f on the goroutine that owns the node.
func (m Mediated) On(node int, f func()) {
	done := make(chan struct{})
	m.Bus(node).Post(func() { defer close(done); f() })
	<-done
}

// Attach implements Machine.
func (m Mediated) Attach(node, slot int, pages *attach.Pages, wake int, _ *proc.Process) (err error) {
	m.On(node, func() { err = m.Machine.Attach(node, slot, &mediate.Attachment{Pages: pages, Wake: wake}) })
	return err
}

// Detach implements Machine.
func (m Mediated) Detach(node, slot int) {
	m.On(node, func() { m.Machine.Detach(node, slot) })
}

// Share implements Shadow.
func (m Mediated) Share(node, slot int, b []byte, fd int, write bool) error {
	mem, err := m.Memory(node)
	if err != nil {
		return err
	}
	return mem.Share(slot, VA(b), uint64(len(b)), fd, 0, write)
}

// Unshare implements Shadow.
func (m Mediated) Unshare(node, slot int, b []byte) error {
	mem, err := m.Memory(node)
	if err != nil {
		return err
	}
	return mem.Unshare(slot, VA(b), uint64(len(b)))
}

// Forget implements Shadow.
func (m Mediated) Forget(node, slot int, b []byte) {
	if mem, err := m.Memory(node); err == nil {
		mem.Forget(slot, VA(b), uint64(len(b)))
	}
}
