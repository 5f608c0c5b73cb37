package api

import (
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/tally"
)

// stage is a part of the handling of a fault.
type stage int

// The stages end when the entry is read, when the page-in begins, when it ends, and when the RAPF
// or the question to the process is sent; the first begins with the interrupt.
const (
	stageDrain stage = iota
	stageQueue
	stagePageIn
	stageAnswer
	stageTotal
	stages
)

var stageNames = [stages]string{"drain", "queue", "page_in", "answer", "total"}

// sideNames name the end of the transfer that faulted.
var sideNames = [2]string{"local", "remote"}

// kindNames name gup.Kind, and none if nothing was paged in.
var kindNames = [kinds]string{"none", gup.Minor.String(), gup.Major.String(), gup.Permission.String()}

const kinds = 4

// stageTimes are the histograms of one node. They belong to the owning goroutine.
type stageTimes struct {
	of [stages][2][kinds]tally.Histogram
}

// observe adds the stages that a fault has reached.
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
	for st, took := range stagesOf(rec) {
		if took >= 0 {
			t.of[st][side][kind].Observe(took)
		}
	}
}

// stagesOf returns how long each stage of a fault took; -1: it was not reached.
func stagesOf(rec *fault.Record) (took [stages]int64) {
	start, last := rec.Began(), max(rec.Drained, rec.Resident)
	for st, b := range [stages]struct{ from, to int64 }{
		stageDrain:  {start, rec.Drained},
		stageQueue:  {rec.Drained, rec.Started},
		stagePageIn: {rec.Started, rec.Resident},
		stageAnswer: {last, rec.Answered},
		stageTotal:  {start, max(last, rec.Answered)},
	} {
		if took[st] = -1; b.from != 0 && b.to >= b.from {
			took[st] = b.to - b.from
		}
	}
	return took
}
