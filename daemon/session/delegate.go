package session

import (
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/netlink"
)

// delegate asks the process to page in itself.
type delegate struct {
	n    *Node
	port uint32
}

func (s *session) delegate() delegate { return delegate{s.n, s.netlinkPort} }

// Ask implements fault.Delegate. It is safe for concurrent use.
func (d delegate) Ask(f netlink.Fault) error {
	_, err := d.numbered(f)
	return err
}

// numbered is like Ask, and returns the message's number.
func (d delegate) numbered(f netlink.Fault) (uint32, error) {
	d.n.asking.Lock()
	defer d.n.asking.Unlock()
	err := d.n.sender.Send(d.port, f)
	return d.n.sender.Last(), err
}

// asking tells the machine what a process is asked for before it asks the process.
type asking struct {
	delegate
	m    Sharing
	slot int
}

// Ask implements fault.Delegate.
func (a asking) Ask(f netlink.Fault) error {
	a.m.Asked(a.n.index, a.slot, f)
	return a.delegate.Ask(f)
}

// delegateFor returns the Delegate that asks the session's process.
func (s *session) delegateFor(slot int) fault.Delegate {
	if m := s.d.features.Sharing; m != nil {
		return asking{s.delegate(), m, slot}
	}
	return s.delegate()
}
