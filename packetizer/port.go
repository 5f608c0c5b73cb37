package packetizer

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// Errors of Send, besides those of the window.
var (
	// ErrRefused: the receiving mailbox does not admit this sender, or is full (STATUS 2;
	// spec/hardware.md 3).
	ErrRefused = errors.New("packetizer: message refused: the mailbox is full or does not admit this sender")
	// ErrBusy: all four channels hold messages in flight. Try again later.
	ErrBusy = errors.New("packetizer: all channels busy: try again later")
	// ErrWords: a message has one to eight u64.
	ErrWords = errors.New("packetizer: a message has 1 to 8 u64")
)

// Port drives one packetizer through window pktz. It is used on the goroutine that owns the
// window. Sending does not allocate.
type Port struct {
	w    device.Window
	base uint32
	next uint32 // channel to try first
	// busy has a bit for each channel whose last known STATUS is busy. The others are used
	// without reading STATUS first, which saves one access per message.
	busy uint8

	refused uint64
}

// New returns packetizer n, 0..63, of window pktz.
func New(w device.Window, n int) *Port {
	return &Port{w: w, base: uint32(n) % device.Interfaces * device.PageSize}
}

// Refused returns the number of refusals seen. A refusal by another node's mailbox may arrive
// after the channel was free again and is then missed: a caller that needs an answer must request
// one (a RAPF's is the retransmission, backed by the guard time-out).
func (p *Port) Refused() uint64 { return p.refused }

// Send sends one to eight u64 to a mailbox of node dst, 1..15. It returns nil if the message was
// accepted or is in flight, ErrRefused if the hardware refuses it at once, and ErrBusy if no
// channel is free.
func (p *Port) Send(dst device.NodeID, mailbox uint8, words ...uint64) error {
	if len(words) == 0 || len(words) > device.PktzMaxWords {
		return fmt.Errorf("%w, not %d", ErrWords, len(words))
	}
	base, ch, err := p.free()
	if err != nil {
		return err
	}
	if err := p.w.Write64(base+device.PktzDestination, Destination(dst, mailbox, 0)); err != nil {
		return fmt.Errorf("packetizer destination: %w", err)
	}
	for i, v := range words {
		if err := p.w.Write64(base+device.PktzPayload+8*uint32(i), v); err != nil {
			return fmt.Errorf("packetizer payload: %w", err)
		}
	}
	if err := p.w.Write64(base+device.PktzSend, uint64(len(words))); err != nil {
		return fmt.Errorf("packetizer send: %w", err)
	}
	p.next = (ch + 1) % device.PktzChannels
	status, err := p.status(base, ch)
	if err != nil {
		return err
	}
	if status == device.PktzRefused {
		return ErrRefused
	}
	return nil
}

// RAPF asks node dst to retransmit a block, or to end its transfer.
func (p *Port) RAPF(dst device.NodeID, m mailbox.RAPF) error {
	return p.Send(dst, device.MailboxRequest, m.Encode())
}

// free finds a channel without a message in flight.
func (p *Port) free() (base, ch uint32, err error) {
	for i := range uint32(device.PktzChannels) {
		ch = (p.next + i) % device.PktzChannels
		base = p.base + ch*device.PktzChannelStride
		if p.busy&(1<<ch) == 0 {
			return base, ch, nil
		}
		status, err := p.status(base, ch)
		if err != nil {
			return 0, 0, err
		}
		if status != device.PktzBusy {
			return base, ch, nil
		}
	}
	return 0, 0, ErrBusy
}

// status reads a channel's STATUS and updates busy and refused.
func (p *Port) status(base, ch uint32) (uint64, error) {
	status, err := p.w.Read64(base + device.PktzStatus)
	if err != nil {
		return 0, fmt.Errorf("packetizer status: %w", err)
	}
	p.busy &^= 1 << ch
	switch status {
	case device.PktzBusy:
		p.busy |= 1 << ch
	case device.PktzRefused:
		p.refused++
	}
	return status, nil
}
