package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc"
)

// Process is a simulated process: memory at Base, and a domain.
type Process struct {
	node   *Node
	Domain *domain.Domain
	Base   device.VA
	// Data is the content of all pages; absent ones are zero. It is nil if the process has only states
	// of pages (AttachEmpty).
	Data  []byte
	pages []pageState
	// OnWords is called when completion words have been written to the memory.
	OnWords func()
	// OnDone is called when a channel's done is final.
	OnDone func(ch int, done uint32, status uint8)
	// OnMail is called for each message in the process's mailbox.
	OnMail func(src mailbox.Source, words [device.PktzMaxWords]uint64)
}

type pageState uint8

const (
	absent pageState = iota
	present
	readOnly // present but not writable
	unmapped
)

// Attach creates a process with pages pages of memory, all absent, on node n.
func (n *Node) Attach(uid uint32, base device.VA, pages int) (*Process, error) {
	p, err := n.AttachEmpty(uid, base, pages)
	if err == nil {
		p.Data = make([]byte, pages*device.PageSize)
	}
	return p, err
}

// AttachEmpty is Attach for a process whose memory has no content, so that thousands of nodes fit. Data
// that is read from it begins with its Mark, and data that is written to it is lost.
func (n *Node) AttachEmpty(uid uint32, base device.VA, pages int) (*Process, error) {
	d, err := n.Domains.Create(domain.Request{UID: uid, AcceptGroup: true})
	if err != nil {
		return nil, err
	}
	p := &Process{node: n, Domain: d, Base: base, pages: make([]pageState, pages)}
	n.process[d.Slot] = p
	if err := n.Driver.Add(fault.Target{Slot: d.Slot, PDID: d.PDID, Policy: n.world.cfg.Policy}); err != nil {
		return nil, err
	}
	return p, nil
}

// Write rings the doorbell of a channel with a descriptor.
func (p *Process) Write(ch int, d device.Descriptor) {
	p.node.Event(&soc.Event{Kind: soc.DoorbellRung, Slot: p.Domain.Slot, Channel: ch, Words: d.Words()})
}

// Set changes the state of a page. An absent page is filled with zeros.
func (p *Process) Set(page int, s pageState) {
	p.pages[page] = s
	if s == absent && p.Data != nil {
		clear(p.Data[page*device.PageSize : (page+1)*device.PageSize])
	}
}

// Evict makes the pages of a range of bytes absent as swapping does: their content comes back with them.
func (p *Process) Evict(from, to int) {
	for i := from / device.PageSize; i <= (to-1)/device.PageSize; i++ {
		if p.pages[i] == present {
			p.pages[i] = absent
		}
	}
}

// Unmap unmaps the pages of a range of bytes.
func (p *Process) Unmap(from, to int) {
	for i := from / device.PageSize; i <= (to-1)/device.PageSize; i++ {
		p.pages[i] = unmapped
	}
}

// MarkSize is the size of a mark, in bytes.
const MarkSize = 16

// Mark returns what a read at va of memory without content begins with: the node and the address.
func (p *Process) Mark(va device.VA) (m [MarkSize]byte) {
	binary.LittleEndian.PutUint64(m[:], uint64(p.node.id)+1)
	binary.LittleEndian.PutUint64(m[8:], uint64(va))
	return m
}

// Touch makes the pages of a range of bytes present, like a touch by the process.
func (p *Process) Touch(from, to int) {
	for i := from / device.PageSize; i <= (to-1)/device.PageSize; i++ {
		if p.pages[i] == absent {
			p.pages[i] = present
		}
	}
}

func (p *Process) index(va device.VA) (int, bool) {
	i := int64(va>>device.PageShift) - int64(p.Base>>device.PageShift)
	return int(i), i >= 0 && i < int64(len(p.pages))
}

func (p *Process) state(va device.VA) pageState {
	if i, ok := p.index(va); ok {
		return p.pages[i]
	}
	return unmapped
}

func (p *Process) walk(va device.VA, pages int, write bool) (missing, denied uint64) {
	for i := range pages {
		switch p.state(va.Page() + device.VA(i)<<device.PageShift) {
		case absent, unmapped:
			missing |= 1 << uint(i)
		case readOnly:
			if write {
				denied |= 1 << uint(i)
			}
		}
	}
	return missing, denied
}

func (p *Process) move(va device.VA, data []byte, write bool) bool {
	off := int64(va) - int64(p.Base)
	if off < 0 || off+int64(len(data)) > int64(len(p.pages))*device.PageSize {
		return false
	}
	for i := va.Page(); i < va+device.VA(len(data)); i += device.PageSize {
		switch p.state(i) {
		case absent, unmapped:
			return false // became absent between the walk and the move
		}
	}
	switch {
	case p.Data == nil && !write && len(data) >= MarkSize:
		mark := p.Mark(va)
		copy(data, mark[:])
	case p.Data == nil:
	case write:
		copy(p.Data[off:], data)
	default:
		copy(data, p.Data[off:])
	}
	return true
}

// Send sends a message by packetizer channel c of the process; it returns false if refused.
func (p *Process) Send(c int, dst device.NodeID, box uint8, words ...uint64) bool {
	ev := soc.Event{
		Kind: soc.MessageSent, Interface: int(p.Domain.Interface), Channel: c,
		Destination: uint64(dst) | uint64(box)<<24, N: len(words),
	}
	copy(ev.Words[:], words)
	p.node.Event(&ev)
	return p.node.SOC.PacketizerStatus(int(p.Domain.Interface), c) == device.PktzFree
}

func (p *Process) descriptor(ch int, done uint32, status uint8) {
	if ch < device.WriteChannels && done != device.DoneOngoing && p.OnDone != nil {
		p.OnDone(ch, done, status)
	}
}

// PageIn implements the pager of the process's domain.
func (p *Process) PageIn(va device.VA, pages int, write bool) gup.Result {
	var r gup.Result
	for i := range pages {
		j, ok := p.index(va + device.VA(i)<<device.PageShift)
		if !ok || p.pages[j] == unmapped || p.pages[j] == readOnly && write {
			if i == 0 {
				r.Err = fmt.Errorf("page %v: %w", va, gup.ErrUnmapped)
				if ok && p.pages[j] == readOnly {
					r.Err = fmt.Errorf("page %v: %w", va, gup.ErrDenied)
				}
			}
			break
		}
		if p.pages[j] == absent {
			p.pages[j] = present
		}
		r.Resident |= 1 << uint(i)
	}
	return r
}
