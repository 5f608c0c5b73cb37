package daemon

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
	add := func(s stage, from, to int64) {
		if from != 0 && to >= from {
			t.of[s][side][kind].Observe(to - from)
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
