package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/live"
)

// What the page gets, and how much of it (ours).
const (
	// feedBatch is the time between two batches of faults, and feedDetail how many of
	// the newest are in one with all that is known of them.
	feedBatch  = 100 * time.Millisecond
	feedDetail = 200
	// feedRead is how many are read of pfd in that time. pfd counts those above.
	feedRead = 1000
	// feedLook is the time between two looks at all else.
	feedLook = 500 * time.Millisecond
	// feedQueue are events that wait for a reader; one that is slower misses some, and
	// sees by their numbers that it did.
	feedQueue = 32
	// Buckets of the histograms: the first one is up to bucketFrom, then bucketsAnOctave
	// to each octave.
	buckets         = 192
	bucketsAnOctave = 8
	bucketFrom      = 64 // ns
)

// faultBatch is an event "faults": what was new since the one before.
type faultBatch struct {
	Number int             `json:"number"` // of batches, one by one
	Faults []control.Fault `json:"faults"` // the newest, oldest first
	// Since the feed began: faults read, and those that pfd left out because they came
	// too fast.
	Seen uint64 `json:"seen"`
	Lost uint64 `json:"lost"`
	// Histograms by stage: how many of the faults seen took how long.
	Histograms map[string]*[buckets]uint64 `json:"histograms"`
}

// feed follows pfd for all pages that are open, and not at all where none is.
type feed struct {
	ctx    context.Context
	client *control.Client

	mu      sync.Mutex
	readers map[chan []byte]bool
	stop    context.CancelFunc // of what feeds the readers
	batch   faultBatch
	newest  []control.Fault // for who comes later
	view    []byte          // the last event "view", or "trouble" in place of it
}

func newFeed(ctx context.Context, c *control.Client) *feed {
	return &feed{ctx: ctx, client: c, readers: map[chan []byte]bool{}}
}

// join gives a channel of events, first what is known already.
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

// event writes one (HTML, "Server-sent events").
func event(name string, v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		body, name = []byte(`"an event has no JSON form"`), "trouble"
	}
	return append(append([]byte("event: "+name+"\ndata: "), body...), "\n\n"...)
}

// send gives an event to all readers that have room for it. f.mu is locked.
func (f *feed) send(e []byte) {
	for ch := range f.readers {
		select {
		case ch <- e:
		default:
		}
	}
}

// looks sends the views; a pfd that is gone is waited for.
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

// faults follows the faults, again where pfd has ended in between. An event "unfollowed"
// says why it cannot, with "" that it can.
func (f *feed) faults(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.followFaults(ctx)
		if err != nil && !errors.Is(err, control.ErrNoDaemon) && !errors.Is(err, control.ErrEnded) { // looks tells of that
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
	var old []control.Fault // from the log: some of them come a second time
	tick := time.NewTicker(feedBatch)
	defer tick.Stop()
	return f.client.MonitorFaults(ctx, control.AllNodes, func(e control.FaultEvent) error {
		switch {
		case e.Fault == nil && e.Lost == 0:
			// From here on none is missed: what was before is in the log.
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

// sameFault reports whether two answers are of one fault: their ages differ.
func sameFault(x, y *control.Fault) bool {
	f, g := *x, *y
	f.AgeNS, f.UnixNS, g.AgeNS, g.UnixNS = 0, 0, 0, 0
	return f == g
}

// take counts a fault.
func (f *feed) take(ctx context.Context, fault *control.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return // others may be at work already
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

// bucket is where a time is counted.
func bucket(ns int64) int {
	if ns <= bucketFrom {
		return 0
	}
	return min(int(math.Ceil(bucketsAnOctave*math.Log2(float64(ns)/bucketFrom))), buckets-1)
}

// batches sends what is new of the faults.
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
