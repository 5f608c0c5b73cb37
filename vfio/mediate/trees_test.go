package mediate

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// A device that leaves more operations to the driver than a unit can have takes no memory for them, whether
// they are answered late or cannot be; honest ones go on when the former ones are answered.
func TestCallsAreBounded(t *testing.T) {
	passed := 0
	m := &Machine{onCall: func(int, atomics.Call) { passed++ }}
	n := &node{m: m}
	m.nodes = []*node{n}
	alive, read := atomics.Request{Op: atomics.Alive}, atomics.Request{Op: atomics.Read64} // a unit performs a read itself
	call := func(id int, r atomics.Request) {
		var words [device.EntryWords]uint64
		r.Encode(words[:])
		n.called(uint32(id), &words)
	}
	for i := range 1000 {
		call(i, alive)
	}
	if passed != atomics.InFlight {
		t.Errorf("%d operations are under way", passed)
	}
	m.AnswerCall(0, 0, atomics.OK, 0) // there is no device any more: it is dropped
	for i := range 1000 {
		call(i, alive)
	}
	if passed != atomics.InFlight+1 {
		t.Errorf("%d operations after one was answered", passed)
	}
	for i := range atomics.InFlight {
		m.AnswerCall(0, uint32(i), atomics.OK, 0)
	}
	for i := range 1000 {
		call(i, read)
	}
	if n.calls != 0 || len(n.answers) != 0 {
		t.Errorf("%d calls, %d answers", n.calls, len(n.answers))
	}
}
