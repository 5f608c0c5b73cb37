package emu

import (
	"errors"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// torn is memory in which some bytes cannot be moved.
type torn struct {
	noMemory
	stop  []device.VA
	err   error
	calls int
}

func (m *torn) WriteV(src [][]byte, va device.VA) (int, error) {
	m.calls++
	n := 0
	for _, b := range src {
		n += len(b)
	}
	for _, at := range m.stop {
		if va <= at && at < va+device.VA(n) {
			return int(at - va), m.err
		}
	}
	return n, nil
}

func (m *torn) ReadV(dst [][]byte, va device.VA) (int, error) { return m.WriteV(dst, va) }

// An access that cannot be moved to its end stops none of those joined with it, and each access learns
// how many of its own bytes were moved.
func TestJoinedMoves(t *testing.T) {
	refused := errors.New("bad address")
	for _, c := range []struct {
		name  string
		stop  []device.VA
		err   error
		moved []int
		calls int
	}{
		{"all", nil, nil, []int{4096, 4096, 4096, 4096}, 1},
		{"first byte", []device.VA{0x10000}, refused, []int{0, 4096, 4096, 4096}, 2},
		{"in the middle", []device.VA{0x11010}, refused, []int{4096, 16, 4096, 4096}, 2},
		{"two", []device.VA{0x11010, 0x13fff}, refused, []int{4096, 16, 4096, 4095}, 2},
		{"short without an error", []device.VA{0x12001}, nil, []int{4096, 4096, 1, 4096}, 2},
		{"gone", []device.VA{0x11000}, proc.ErrGone, []int{4096, 0, 0, 0}, 1},
	} {
		for _, write := range []bool{false, true} {
			m := &torn{stop: c.stop, err: c.err}
			call := &call{count: 4}
			for i := range call.count {
				call.vas[i], call.lens[i], call.bufs[i] = 0x10000+device.VA(i)*4096, 4096, make([]byte, 4096)
			}
			call.op = &call.own
			call.own = space.Op{Kind: space.Move, Write: write, VA: 0x10000, Bufs: call.buffers(0)}
			var err error
			for more := true; more; more = call.rest() {
				if space.Access(m, call.op); call.op.Err != nil {
					err = call.op.Err
				}
			}
			if got := call.moved[:4]; !slices.Equal(got, c.moved) || m.calls != c.calls || !errors.Is(err, c.err) {
				t.Errorf("%s, write %v: moved %v in %d calls, %v; want %v, %d, %v", c.name, write, got, m.calls, err, c.moved, c.calls, c.err)
			}
		}
	}
}
