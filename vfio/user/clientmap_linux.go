package user

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what a client keeps of DMA_MAPs that nobody waited for (ours).
const (
	// maxPosted are without an answer: their answers fit a quarter of a socket (some 69 of
	// them), so that neither side ever waits until the other reads.
	maxPosted  = 64
	maxRefused = 64 // refusals that were not reported; of more there is a number only
)

// posted is the DMA_MAPs that nobody waited for: those without an answer, by message
// ID, and the refusals to be reported.
type posted struct {
	mu  sync.Mutex // taken last
	due map[uint16]DMAMap

	refused []error // of who receives
	more    int
}

func (p *posted) add(id uint16, m DMAMap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due == nil {
		p.due = map[uint16]DMAMap{}
	}
	p.due[id] = m
}

func (p *posted) has(id uint16) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.due[id]
	return ok
}

func (p *posted) many() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.due)
}

func (p *posted) remove(id uint16) DMAMap {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.due[id]
	delete(p.due, id)
	return m
}

// take tells whether a message answers one of them.
func (p *posted) take(m message) bool {
	return m.isReply() && m.Command == CmdDMAMap && p.has(m.ID)
}

// settled takes the answer to a DMA_MAP that nobody waited for. mu is held.
func (c *Client) settled(answer message) {
	c.sock.shed(answer.fds)
	m := c.maps.remove(answer.ID)
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
	m := DMAMap{dmaMapSize, rights, offset, addr, size}
	err := c.room()
	if err == nil {
		err = c.space.add(m, fd)
	}
	if err != nil {
		return fmt.Errorf("vfio-user: map DMA %#x+%#x: %w", addr, size, err)
	}
	c.out.Lock()
	defer c.out.Unlock()
	c.note = m.Append(append(c.note[:0], make([]byte, HeaderSize)...))
	if err := c.post(CmdDMAMap, flagCommand, c.note, []int{fd}, func(id uint16) { c.maps.add(id, m) }); err != nil {
		return fmt.Errorf("vfio-user: map DMA %#x+%#x: %w", addr, size, errors.Join(err, c.space.remove(addr, addr+size-1)))
	}
	return nil
}

// room takes answers to DMA_MAPs where too many are to come.
func (c *Client) room() error {
	if c.maps.many() < maxPosted {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(maxPosted / 2)
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
		c.sock.shed(m.fds)
		err = fmt.Errorf("%w: answer to %v, which nobody waits for", ErrMalformed, m.Command)
	}
	if err != nil {
		return c.fail(err)
	}
	return nil
}
