package daemon

import (
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
)

// buckets are the upper bounds of the stages' histograms, nanoseconds (ours): a
// minor fault takes a few microseconds, a disk milliseconds.
var buckets = [...]int64{
	1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 200e3, 500e3,
	1e6, 2e6, 5e6, 10e6, 50e6, 100e6, 1e9,
}

// stage is a part of a fault's way.
type stage int

// The stages: from the interrupt to the entry read, to the page-in's begin, to
// its end, to the RAPF or the question to the process; and all of it.
const (
	stageDrain stage = iota
	stageQueue
	stagePageIn
	stageAnswer
	stageTotal
	stages
)

var stageNames = [stages]string{"drain", "queue", "page_in", "answer", "total"}

// sideNames are the ends of a transfer that fault.
var sideNames = [2]string{"local", "remote"}

// kindNames are gup.Kind's, and none where nothing was paged in.
var kindNames = [kinds]string{"none", gup.Minor.String(), gup.Major.String(), gup.Permission.String()}

const kinds = 4

// stageTimes are the histograms of one node, on the owning goroutine.
type stageTimes struct {
	of [stages][2][kinds]histogram
}

type histogram struct {
	count uint64
	sum   int64 // ns
	in    [len(buckets)]uint64
}

func (h *histogram) observe(ns int64) {
	h.count++
	h.sum += ns
	for i, b := range buckets {
		if ns <= b {
			h.in[i]++
			return
		}
	}
}

// observe takes the stages that a fault has reached.
func (t *stageTimes) observe(rec *fault.Record) {
	side, kind := 0, 0
	if rec.Write {
		side = 1
	}
	if rec.Resident != 0 {
		switch rec.Kind {
		case gup.Minor:
			kind = 1
		case gup.Major:
			kind = 2
		case gup.Permission:
			kind = 3
		}
	}
	add := func(s stage, from, to int64) {
		if from != 0 && to >= from {
			t.of[s][side][kind].observe(to - from)
		}
	}
	start := began(rec)
	last := max(rec.Drained, rec.Resident)
	add(stageDrain, start, rec.Drained)
	add(stageQueue, rec.Drained, rec.Started)
	add(stagePageIn, rec.Started, rec.Resident)
	add(stageAnswer, last, rec.Answered)
	add(stageTotal, start, max(last, rec.Answered))
}
