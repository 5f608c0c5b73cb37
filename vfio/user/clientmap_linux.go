package user

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what a client keeps of DMA_MAPs that nobody waited for (ours).
const (
	maxPosted  = 256 // without an answer
	maxRefused = 64  // refusals that were not reported; of more there is a number only
)

// posted is the DMA_MAPs that nobody waited for: those without an answer, by message
// ID, and the refusals to be reported.
type posted struct {
	due     map[uint16]DMAMap
	refused []error
	more    int
}

func (p *posted) has(id uint16) bool {
	_, ok := p.due[id]
	return ok
}

// take tells whether a message answers one of them.
func (p *posted) take(m message) bool {
	return m.isReply() && m.Command == CmdDMAMap && p.has(m.ID)
}

// settled takes the answer to a DMA_MAP that nobody waited for. mu is held.
func (c *Client) settled(answer message) {
	closeFDs(answer.fds)
	m := c.maps.due[answer.ID]
	delete(c.maps.due, answer.ID)
	if !answer.isError() {
		return
	}
	// The range is the client's own: it cuts no page.
	_ = c.space.remove(m.Address, m.Address+m.Size-1)
	if len(c.maps.refused) == maxRefused {
		c.maps.more++
		return
	}
	c.maps.refused = append(c.maps.refused, &MapError{m.Address, m.Size, &Error{CmdDMAMap, unix.Errno(answer.Error)}})
}

// unlock ends a request: it adds to its error the refusals that came before its
// answer, once. mu is held.
func (c *Client) unlock(err *error) {
	if p := &c.maps; len(p.refused) > 0 {
		if p.more > 0 {
			p.refused = append(p.refused, fmt.Errorf("and %d more: %w", p.more, ErrMapRefused))
		}
		*err = errors.Join(append([]error{*err}, p.refused...)...)
		p.refused, p.more = nil, 0
	}
	c.mu.Unlock()
}

// PostMapDMA maps like MapDMA and does not wait for the answer. Whatever is sent
// after it, by any method, the server handles after it. Where the server refuses it,
// the next method that waits for an answer (but Region, RegionIOFDs and those of
// interrupts) does what it does and then reports the refusal, once, by an error that
// matches ErrMapRefused (a MapError each); so does Flush.
func (c *Client) PostMapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := DMAMap{dmaMapSize, rights, offset, addr, size}
	err := c.settle(maxPosted - 1)
	if err == nil {
		err = c.space.add(m, fd)
	}
	if err != nil {
		return fmt.Errorf("vfio-user: map DMA %#x+%#x: %w", addr, size, err)
	}
	if err := c.post(CmdDMAMap, flagCommand, m.Append(c.begin()), []int{fd}); err != nil {
		return fmt.Errorf("vfio-user: map DMA %#x+%#x: %w", addr, size, errors.Join(err, c.space.remove(addr, addr+size-1)))
	}
	if c.maps.due == nil {
		c.maps.due = map[uint16]DMAMap{}
	}
	c.maps.due[c.id] = m
	return nil
}

// Flush waits until every DMA_MAP of PostMapDMA is answered, and reports the refusals
// that were not reported. It sends nothing.
func (c *Client) Flush() (err error) {
	c.mu.Lock()
	defer c.unlock(&err)
	if err := c.settle(0); err != nil {
		return fmt.Errorf("vfio-user: answers to DMA_MAP: %w", err)
	}
	return nil
}

// settle receives until no more DMA_MAPs than that are without an answer. mu is held.
func (c *Client) settle(left int) error {
	select {
	case <-c.done:
		return c.Err()
	default:
	}
	m, err := c.receive(time.Now().Add(c.patience()), left)
	if err == nil && m.Command != 0 {
		closeFDs(m.fds)
		err = fmt.Errorf("%w: answer to %v, which nobody waits for", ErrMalformed, m.Command)
	}
	if err != nil {
		return c.fail(err)
	}
	return nil
}
