package user

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a client's record of posted DMA_MAPs. Values below are defined by this project.
const (
	// maxPosted bounds the unanswered ones: a quarter of a socket buffer holds some 69 answers,
	// so that neither side ever waits until the other reads.
	maxPosted  = 64
	maxRefused = 64 // refusals kept for the report; further ones are only counted
)

// posted records the DMA_MAPs that are not awaited: the unanswered ones by message ID, and the
// refusals to report.
type posted struct {
	mu  sync.Mutex // locked last
	due map[uint16]DMAMap

	refused []error // used only by the receiving goroutine
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

// take reports whether a message answers a posted DMA_MAP.
func (p *posted) take(m message) bool {
	return m.isReply() && m.Command == CmdDMAMap && p.has(m.ID)
}

// settled handles the answer to a posted DMA_MAP. The caller holds mu.
func (c *Client) settled(answer message) {
	c.sock.shed(answer.fds)
	m := c.maps.remove(answer.ID)
	if !answer.isError() {
		return
	}
	// The range is the client's own mapping, so it cuts no page.
	_ = c.space.remove(m.Address, m.Address+m.Size-1)
	if len(c.maps.refused) == maxRefused {
		c.maps.more++
		return
	}
	c.maps.refused = append(c.maps.refused, &MapError{m.Address, m.Size, &Error{CmdDMAMap, unix.Errno(answer.Error)}})
}

// unlock ends a request: it adds to its error, once, the refusals that came before its answer.
// The caller holds mu.
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

// PostMapDMA is like MapDMA but does not wait for the answer. The server handles it before
// anything that any method sends later. If the server refuses it, the next method that awaits an
// answer (except Region, RegionIOFDs and those of interrupts) does its work and then reports the
// refusal, once. That error matches ErrMapRefused, with one MapError for each refusal. Flush
// reports refusals in the same way.
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

// room receives answers to DMA_MAPs if too many are outstanding.
func (c *Client) room() error {
	if c.maps.many() < maxPosted {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(maxPosted / 2)
}

// Flush waits until every DMA_MAP of PostMapDMA is answered and returns the refusals that were
// not reported. It sends nothing.
func (c *Client) Flush() (err error) {
	c.mu.Lock()
	defer c.unlock(&err)
	if err := c.settle(0); err != nil {
		return fmt.Errorf("vfio-user: answers to DMA_MAP: %w", err)
	}
	return nil
}

// settle receives until at most left DMA_MAPs are unanswered. The caller holds mu.
func (c *Client) settle(left int) error {
	select {
	case <-c.done:
		return c.Err()
	default:
	}
	m, err := c.receive(time.Now().Add(c.patience()), left)
	if err == nil && m.Command != 0 {
		c.sock.shed(m.fds)
		err = fmt.Errorf("%w: unexpected answer to %v", ErrMalformed, m.Command)
	}
	if err != nil {
		return c.fail(err)
	}
	return nil
}
