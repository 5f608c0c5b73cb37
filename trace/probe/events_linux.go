package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf/ringbuf"
)

// Event is one fault with its stages.
type Event struct {
	PID         uint32 `json:"pid"` // of pfd
	Node        uint32 `json:"node"`
	Source      uint32 `json:"source"`
	PDID        uint16 `json:"pdid"`
	Slot        uint8  `json:"slot"`
	Channel     uint8  `json:"channel"`
	Transaction uint16 `json:"transaction"`
	Sequence    uint16 `json:"sequence"`
	Page        uint64 `json:"page"`
	Side        string `json:"side"`
	Method      string `json:"method"`
	Kind        string `json:"kind"`
	Outcome     string `json:"outcome"`
	Status      uint16 `json:"status"` // of the block; 0: acknowledged
	Again       uint32 `json:"retransmissions"`
	StartNS     uint64 `json:"start_ns"` // CLOCK_MONOTONIC
	TotalNS     uint64 `json:"total_ns"`
	// StagesNS has the duration of each stage by name; unknown ones are missing.
	StagesNS map[string]int64 `json:"stages_ns"`
	// PreemptedNS and SleptNS are the parts of the stages during which pfd's thread was
	// preempted or asleep.
	PreemptedNS map[string]int64 `json:"preempted_ns,omitempty"`
	SleptNS     map[string]int64 `json:"slept_ns,omitempty"`
	// Shared: an attached process ran on the processor of pfd's thread during the fault.
	Shared bool `json:"shared,omitempty"`
	// Half is HalfDriver or HalfSender if only that half of a fault of a device elsewhere is
	// known. In a sender's half the stage resend begins with raise.
	Half string `json:"half,omitempty"`
}

// The halves.
const (
	HalfDriver = "driver"
	HalfSender = "sender"
)

func eventOf(e *probeFaultEvent) Event {
	v := Event{
		PID: e.Pid, Node: e.Node, Source: e.Source, PDID: e.Pdid, Slot: e.Slot, Channel: e.Channel,
		Transaction: e.Transaction, Sequence: e.Sequence, Page: e.Page, Side: "source",
		Method: nameOf(methodNames[:], uint32(e.Method)), Kind: nameOf(kindNames[:], uint32(e.Kind)),
		Outcome: nameOf(outcomeNames[:], uint32(e.Outcome)), Status: e.Status, Again: e.Again,
		StartNS: e.StartNs, TotalNS: e.TotalNs, StagesNS: map[string]int64{},
		PreemptedNS: map[string]int64{}, SleptNS: map[string]int64{}, Shared: e.Shared != 0,
		Half: nameOf(halfNames[:], uint32(e.Half)),
	}
	if e.Flags&1 != 0 {
		v.Side = "destination"
	}
	for i, ns := range e.Stages {
		if ns >= 0 {
			v.StagesNS[stageNames[i]] = ns
		}
		if ns := e.PreemptedNs[i]; ns > 0 {
			v.PreemptedNS[stageNames[i]] = int64(ns)
		}
		if ns := e.SleptNs[i]; ns > 0 {
			v.SleptNS[stageNames[i]] = int64(ns)
		}
	}
	return v
}

// Slowest returns the slowest faults in descending order.
func (m *Maps) Slowest() ([]Event, error) {
	var list []Event
	var i uint32
	var e probeFaultEvent
	it := m.maps[slowestMap].Iterate()
	for it.Next(&i, &e) {
		if e.TotalNs > 0 {
			list = append(list, eventOf(&e))
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("map %s: %w", slowestMap, err)
	}
	slices.SortFunc(list, func(a, b Event) int { return cmp.Compare(b.TotalNS, a.TotalNS) })
	return list, nil
}

// Filter selects events; nil selects any.
type Filter struct {
	Node, PDID *uint32
	Kind       string // "": any
	SlowerNS   uint64
}

// Kinds returns the kinds of faults that a Filter accepts.
func Kinds() []string { return kindNames[:] }

// Events calls f with each event until ctx ends. Only one process can read: if another one
// reads, the error matches os.ErrExist. Events that are not read in time are counted.
func (m *Maps) Events(ctx context.Context, want Filter, f func(Event) error) error {
	settings := m.maps[settingsMap]
	var s probeSettings
	if err := settings.Lookup(uint32(0), &s); err != nil {
		return fmt.Errorf("map %s: %w", settingsMap, err)
	}
	if s.Events != 0 && int(s.Events) != os.Getpid() {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", s.Events)); err == nil {
			return fmt.Errorf("process %d is reading the events: %w", s.Events, os.ErrExist)
		}
	}
	s = probeSettings{Events: uint32(os.Getpid()), Node: anyValue, Pdid: anyValue, Kind: anyValue, SlowerNs: want.SlowerNS, SlowestFloor: s.SlowestFloor}
	if want.Node != nil {
		s.Node = *want.Node
	}
	if want.PDID != nil {
		s.Pdid = *want.PDID
	}
	if want.Kind != "" {
		i := slices.Index(kindNames[:], want.Kind)
		if i < 0 {
			return fmt.Errorf("unknown kind of fault %q: want one of %v", want.Kind, kindNames)
		}
		s.Kind = uint32(i)
	}
	r, err := ringbuf.NewReader(m.maps[eventsMap])
	if err != nil {
		return fmt.Errorf("map %s: %w", eventsMap, err)
	}
	defer r.Close()
	// A killed reader may have left its filter and its events.
	if err := errors.Join(settings.Put(uint32(0), &probeSettings{SlowestFloor: s.SlowestFloor}), drain(r)); err != nil {
		return fmt.Errorf("map %s: %w", eventsMap, err)
	}
	if err := settings.Put(uint32(0), &s); err != nil {
		return fmt.Errorf("map %s: %w", settingsMap, err)
	}
	defer func() {
		s.Events = 0
		_ = settings.Put(uint32(0), &s) // fails if tracing was switched off meanwhile
	}()
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	for {
		rec, err := r.Read()
		if errors.Is(err, ringbuf.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("map %s: %w", eventsMap, err)
		}
		e, err := decodeEvent(rec.RawSample)
		if err != nil {
			return err
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// drain discards the content of a ring buffer.
func drain(r *ringbuf.Reader) error {
	r.SetDeadline(time.Unix(1, 0)) // do not wait
	defer r.SetDeadline(time.Time{})
	for {
		if _, err := r.Read(); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// decodeEvent decodes one event of the ring buffer.
func decodeEvent(b []byte) (Event, error) {
	var e probeFaultEvent
	if want := binary.Size(&e); len(b) < want {
		return Event{}, fmt.Errorf("an event of %d bytes, want %d: another version may have written it", len(b), want)
	}
	if err := binary.Read(bytes.NewReader(b), binary.NativeEndian, &e); err != nil {
		return Event{}, fmt.Errorf("an event: %w", err)
	}
	return eventOf(&e), nil
}
