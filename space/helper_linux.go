package space

import (
	"slices"

	"github.com/exanet/pfd/space/memport"
)

// helper sends operations to a process that has the rights of the memory's owner (package memport).
type helper struct {
	Prompt
	port     *memport.Port
	free     []*request
	waiting  []*request // until the port has a free slot
	answered []*request
}

// request is an operation that the helper performs.
type request struct {
	memport.Request
	op *Op
}

// NewHelper returns a Space whose operations a helper performs. Its Close abandons the port; the
// caller still closes the port.
func NewHelper(port *memport.Port) Space { return &helper{port: port} }

// Start implements Space.
func (h *helper) Start(op *Op, now int64, _ bool) Step {
	r := h.request()
	r.op = op
	switch op.Kind {
	case Walk:
		r.AskWalk(op.VA, op.Pages, op.Write)
	case Move, Words:
		r.AskMove(op.Bufs, op.VA, op.Write, op.Kind == Words)
	case PageIn, Remap:
		if f := &op.folios; f.Touch != 0 {
			r.AskTouch(f.VA, f.Touch, op.Write)
			break
		}
		r.AskPageIn(op.VA, op.Pages, op.Write)
	}
	switch ok, ended := h.port.Submit(&r.Request, now); {
	case ended:
		h.settle(r)
		return Over
	case !ok:
		h.waiting = append(h.waiting, r)
	}
	return Wait
}

func (h *helper) request() *request {
	if n := len(h.free); n > 0 {
		r := h.free[n-1]
		h.free = h.free[:n-1]
		return r
	}
	r := new(request)
	r.Done = func() { h.answered = append(h.answered, r) }
	return r
}

// settle copies the results of a request to its operation, and frees the request.
func (h *helper) settle(r *request) *Op {
	op := r.op
	switch op.Kind {
	case Walk:
		op.Walked, op.Err = r.Walk, r.Err
	case Move, Words:
		op.Moved, op.Err = r.Moved, r.Err
	default:
		op.Paged = r.PageIn
	}
	r.op = nil
	h.free = append(h.free, r)
	return op
}

// Run implements Space. No step of this Space requires it.
func (h *helper) Run(*Op) {}

// Poll implements Space.
func (h *helper) Poll(now int64, next func(*Op, Step)) (any bool) {
	if h.port.Pending() {
		h.port.Poll()
	}
	for len(h.answered) > 0 {
		r := h.answered[0]
		h.answered = slices.Delete(h.answered, 0, 1)
		op := h.settle(r)
		h.submit(now)
		next(op, Over)
		any = true
	}
	return any
}

// submit submits waiting requests while the port has free slots.
func (h *helper) submit(now int64) {
	for len(h.waiting) > 0 {
		r := h.waiting[0]
		ok, ended := h.port.Submit(&r.Request, now)
		if !ok {
			return
		}
		h.waiting = slices.Delete(h.waiting, 0, 1)
		if ended {
			h.answered = append(h.answered, r)
		}
	}
}

// Pending implements Space.
func (h *helper) Pending() bool { return h.port.Pending() }

// Due implements Space. It wakes another thread of the helper if one is stuck.
func (h *helper) Due(now int64) int64 { return h.port.Nudge(now) }

// SetAsleep implements Space.
func (h *helper) SetAsleep(asleep bool) { h.port.SetAsleep(asleep) }

// Close implements Space. It drops the waiting requests, because the session unmaps the port.
func (h *helper) Close() {
	h.port.Abandon()
	h.waiting = nil
}
