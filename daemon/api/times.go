package api

import (
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/tally"
)

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
	of [stages][2][kinds]tally.Histogram
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
	for st, took := range stagesOf(rec) {
		if took >= 0 {
			t.of[st][side][kind].Observe(took)
		}
	}
}

// stagesOf gives how long each stage of a fault took; -1: it was not reached.
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
