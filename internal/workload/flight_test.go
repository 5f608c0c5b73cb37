package workload

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/exanet/pfd/rdma"
)

// scripted is a transfer that ends after a number of polls and can be aborted.
type scripted struct {
	left    int
	err     error
	aborted *int
}

func (s *scripted) Poll() rdma.Status {
	if s.left--; s.left >= 0 {
		return rdma.Ongoing
	}
	return rdma.Finished
}
func (s *scripted) Err() error { return s.err }
func (s *scripted) Wait(context.Context) error {
	s.left = 0
	return s.err
}
func (s *scripted) Abort() error { *s.aborted++; return nil }

// All slots make their transfers at the same time, each slot one after the other. Every
// transfer ends once, also one that cannot be started.
func TestFlight(t *testing.T) {
	refused := errors.New("refused")
	for _, sleep := range []bool{false, true} {
		const slots, each = 3, 4
		var begun, ended [slots]int
		inFlight, most, failed, aborted := 0, 0, 0, 0
		f := flight{
			slots: slots, sleep: sleep,
			next: func(i int) bool { return begun[i] < each },
			begin: func(i int) (transfer, error) {
				if begun[i] != ended[i] {
					t.Fatalf("slot %d begins transfer %d before the end of the last one", i, begun[i])
				}
				begun[i]++
				if i == 1 && begun[i] == 2 {
					return nil, refused
				}
				inFlight++
				most = max(most, inFlight)
				return &scripted{left: 100 * (slots - i), aborted: &aborted}, nil
			},
			ended: func(i int, start time.Time, took time.Duration, err error) error {
				ended[i]++
				if took < 0 || time.Since(start) < took {
					t.Errorf("a transfer took %v from %v on", took, start)
				}
				if errors.Is(err, refused) {
					failed++
					return nil
				}
				inFlight--
				return err
			},
		}
		if err := f.run(t.Context()); err != nil || begun != [...]int{each, each, each} || ended != begun || most != slots || failed != 1 || aborted != 0 {
			t.Errorf("sleeping %v: %v, begun %v, ended %v, at once %d, refused %d, aborted %d", sleep, err, begun, ended, most, failed, aborted)
		}
	}
}

// The end of the context and an error of ended both abort the transfers in flight.
func TestFlightAborts(t *testing.T) {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, stopped := range []bool{false, true} {
		aborted, made := 0, 0
		f := flight{
			slots: 4,
			next:  func(int) bool { return true },
			begin: func(i int) (transfer, error) {
				if made++; stopped && made == 20 {
					cancel()
				}
				return &scripted{left: 1 << 40 * min(i, 1), aborted: &aborted}, nil
			},
			ended: func(int, time.Time, time.Duration, error) error {
				if !stopped && made == 20 {
					return enough
				}
				return nil
			},
		}
		err := f.run(ctx)
		if want := map[bool]error{false: enough, true: context.Canceled}[stopped]; !errors.Is(err, want) || aborted < 3 {
			t.Errorf("%v, want %v; %d transfers aborted, want the 3 that are in flight", err, want, aborted)
		}
	}
}
