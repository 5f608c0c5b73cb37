package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/live"
)

// Parameters of the events. Values are defined by this project.
const (
	// feedBatch is the time between two batches of faults. A batch has details of the
	// newest feedDetail faults.
	feedBatch  = 100 * time.Millisecond
	feedDetail = 200
	// feedRead bounds the faults that are read from pfd in feedBatch. pfd counts the rest.
	feedRead = 1000
	// feedLook is the time between two views.
	feedLook = 500 * time.Millisecond
	// feedQueue bounds the events that wait for a reader. A slow reader misses batches and
	// detects it by their numbers.
	feedQueue = 32
	// Buckets of the histograms: the first one ends at bucketFrom; then each octave has
	// bucketsAnOctave.
	buckets         = 192
	bucketsAnOctave = 8
	bucketFrom      = 64 // ns
)

// faultBatch is an event "faults": the new faults since the previous one.
type faultBatch struct {
	Number int             `json:"number"` // consecutive
	Faults []control.Fault `json:"faults"` // the newest ones, in ascending order of time
	// Seen and Lost count, since the feed began, the faults that were read and those that
	// pfd omitted because they came too fast.
	Seen uint64 `json:"seen"`
	Lost uint64 `json:"lost"`
	// Histograms has, for each stage, the number of faults by time.
	Histograms map[string]*[buckets]uint64 `json:"histograms"`
}

// feed follows pfd for all open pages. Without open pages it sends no requests.
type feed struct {
	ctx    context.Context
	client *control.Client

	mu      sync.Mutex
	readers map[chan []byte]bool
	stop    context.CancelFunc // stops the goroutines that feed the readers
	batch   faultBatch
	newest  []control.Fault // sent first to a new reader
	view    []byte          // the last event "view" or "trouble"
}

func newFeed(ctx context.Context, c *control.Client) *feed {
	return &feed{ctx: ctx, client: c, readers: map[chan []byte]bool{}}
}

// join adds a reader and returns its channel of events. The first ones are the last view and
// the newest faults.
func (f *feed) join() chan []byte {
	ch := make(chan []byte, feedQueue)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.readers) == 0 {
		ctx, stop := context.WithCancel(f.ctx)
		f.stop = stop
		f.view, f.newest = nil, nil
		f.batch = faultBatch{Faults: []control.Fault{}, Histograms: map[string]*[buckets]uint64{}}
		go f.looks(ctx)
		go f.faults(ctx)
		go f.batches(ctx)
	}
	f.readers[ch] = true
	if f.view != nil {
		ch <- f.view
	}
	known := f.batch
	known.Faults = append([]control.Fault{}, f.newest...)
	ch <- event("faults", known)
	return ch
}

func (f *feed) leave(ch chan []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.readers, ch)
	if len(f.readers) == 0 {
		f.stop()
	}
}

// event returns an event as text (HTML, "Server-sent events").
func event(name string, v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		body, name = []byte(`"an event has no JSON form"`), "trouble"
	}
	return append(append([]byte("event: "+name+"\ndata: "), body...), "\n\n"...)
}

// send sends an event to all readers whose channel has room. The caller must hold f.mu.
func (f *feed) send(e []byte) {
	for ch := range f.readers {
		select {
		case ch <- e:
		default:
		}
	}
}

// looks sends views, or an event "trouble" while pfd does not answer.
func (f *feed) looks(ctx context.Context) {
	follower := live.Follow(f.client)
	tick := time.NewTicker(feedLook)
	defer tick.Stop()
	for {
		v, err := follower.Next(ctx)
		e := event("view", v)
		if err != nil {
			e = event("trouble", err.Error())
		}
		f.mu.Lock()
		if ctx.Err() == nil {
			f.view = e
			f.send(e)
		}
		f.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// faults follows the faults, also after pfd has restarted. An event "unfollowed" has the reason
// if it cannot, and "" if it can.
func (f *feed) faults(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.followFaults(ctx)
		if err != nil && !errors.Is(err, control.ErrNoDaemon) && !errors.Is(err, control.ErrEnded) { // looks reports those
			f.mu.Lock()
			f.send(event("unfollowed", err.Error()))
			f.mu.Unlock()
		}
		select {
		case <-time.After(feedLook):
		case <-ctx.Done():
		}
	}
}

func (f *feed) followFaults(ctx context.Context) error {
	read := 0
	var old []control.Fault // from the log; some of them come a second time
	tick := time.NewTicker(feedBatch)
	defer tick.Stop()
	return f.client.MonitorFaults(ctx, control.AllNodes, func(e control.FaultEvent) error {
		switch {
		case e.Fault == nil && e.Lost == 0:
			// From here on pfd sends all faults. The earlier ones are in the log.
			var err error
			if old, err = f.client.Faults(ctx, control.AllNodes, feedDetail); err != nil {
				return err
			}
			for i := range old {
				f.take(ctx, &old[i])
			}
			f.mu.Lock()
			f.send(event("unfollowed", ""))
			f.mu.Unlock()
			return nil
		case e.Fault == nil:
			f.mu.Lock()
			f.batch.Lost += e.Lost
			f.mu.Unlock()
			return nil
		}
		if n := len(old); n > 0 && e.Fault.TimeNS <= old[n-1].TimeNS && slices.ContainsFunc(old, func(f control.Fault) bool { return sameFault(&f, e.Fault) }) {
			return nil
		}
		f.take(ctx, e.Fault)
		select {
		case <-tick.C:
			read = 0
		default:
			if read++; read < feedRead {
				return nil
			}
			select {
			case <-tick.C:
				read = 0
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
}

// sameFault reports whether two answers describe the same fault. Their ages may differ.
func sameFault(x, y *control.Fault) bool {
	f, g := *x, *y
	f.AgeNS, f.UnixNS, g.AgeNS, g.UnixNS = 0, 0, 0, 0
	return f == g
}

// take adds a fault to the batch and the histograms.
func (f *feed) take(ctx context.Context, fault *control.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return // join may have started new goroutines
	}
	f.batch.Seen++
	f.batch.Faults = append(f.batch.Faults, *fault)
	if len(f.batch.Faults) > 2*feedDetail {
		f.batch.Faults = append(f.batch.Faults[:0], f.batch.Faults[feedDetail:]...)
	}
	for _, s := range live.Stages([]control.Fault{*fault}) {
		h := f.batch.Histograms[s.Name]
		if h == nil {
			h = &[buckets]uint64{}
			f.batch.Histograms[s.Name] = h
		}
		h[bucket(s.P50NS)]++
	}
}

// bucket returns the bucket of a time.
func bucket(ns int64) int {
	if ns <= bucketFrom {
		return 0
	}
	return min(int(math.Ceil(bucketsAnOctave*math.Log2(float64(ns)/bucketFrom))), buckets-1)
}

// batches sends the new faults.
func (f *feed) batches(ctx context.Context) {
	tick := time.NewTicker(feedBatch)
	defer tick.Stop()
	var lost uint64
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		f.mu.Lock()
		b := &f.batch
		if ctx.Err() == nil && (len(b.Faults) > 0 || b.Lost != lost) {
			lost = b.Lost
			b.Faults = b.Faults[max(len(b.Faults)-feedDetail, 0):]
			b.Number++
			f.send(event("faults", b))
			f.newest = append(f.newest, b.Faults...)
			f.newest = append([]control.Fault(nil), f.newest[max(len(f.newest)-feedDetail, 0):]...)
			b.Faults = []control.Fault{}
		}
		f.mu.Unlock()
	}
}
