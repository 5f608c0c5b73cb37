package user

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxPosted bounds the posted DMA_MAPs without an answer: a quarter of a socket buffer holds some
// 69 answers, so that neither side ever waits until the other reads. Defined by this project.
const maxPosted = 64

// posted holds the posted DMA_MAPs that are not answered yet, by message ID.
type posted struct {
	mu  sync.Mutex // locked last
	due map[uint16]DMAMap
}

func (p *posted) add(id uint16, m DMAMap) {
	p.mu.Lock()
	defer p.mu.Unlock()
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

func (p *posted) remove(id uint16) (m DMAMap, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok = p.due[id]
	delete(p.due, id)
	return m, ok
}

// settled handles the answer to a posted DMA_MAP. It reports whether a message is one. The caller
// holds mu.
func (c *Client) settled(answer message) bool {
	if !answer.isReply() || answer.Command != CmdDMAMap {
		return false
	}
	m, ok := c.maps.remove(answer.ID)
	if !ok {
		return false
	}
	c.sock.shed(answer.fds)
	if answer.isError() {
		// The range is the client's own mapping, so it cuts no page.
		_ = c.space.remove(m.Address, m.Address+m.Size-1)
		if f := c.opts.MapRefused; f != nil {
			f(m.Address, m.Size, &Error{CmdDMAMap, unix.Errno(answer.Error)})
		}
	}
	return true
}

// PostMapDMA is like MapDMA but does not wait for the answer. The server handles it before
// anything that any method sends later. If the server refuses it, Options.MapRefused is called
// before the next method that awaits an answer returns.
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
