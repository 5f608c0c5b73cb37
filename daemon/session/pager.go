package session

import (
	"errors"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/netlink"
)

// pager is a Pager that ends the session when the address space is gone.
type pager struct {
	fault.Pager
	s *session
}

// PageIn implements fault.Pager.
func (p *pager) PageIn(va device.VA, pages int, write bool) gup.Result {
	return p.noticed(p.Pager.PageIn(va, pages, write))
}

func (p *pager) noticed(r gup.Result) gup.Result {
	if r.Err != nil && errors.Is(r.Err, gup.ErrGone) {
		p.s.end(attach.ReasonProcess)
	}
	return r
}

// Ask implements fault.Asker.
func (p *pager) Ask(va device.VA, pages int, write bool) gup.Question {
	a, ok := p.Pager.(fault.Asker)
	if !ok {
		return nil
	}
	return noticing{a.Ask(va, pages, write), p}
}

type noticing struct {
	gup.Question
	p *pager
}

func (n noticing) Wait() gup.Result { return n.p.noticed(n.Question.Wait()) }

// delegate asks the process to page in itself.
type delegate struct {
	n    *Node
	port uint32
}

func (s *session) delegate() delegate { return delegate{s.n, s.port} }

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
