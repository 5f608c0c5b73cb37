package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/workload"
)

// transferResult is the JSON of write and read: the result, and with --parallel the order of
// completion.
type transferResult struct {
	workload.Result
	Completions []workload.Completion `json:"completions,omitempty"`
}

// transfers returns the transfers that run at once. It cycles through the lists of sizes and
// classes.
func (w *writeFlags) transfers() ([]workload.Parallel, error) {
	if w.parallel < 1 || w.parallel > workload.MaxParallel {
		return nil, fmt.Errorf("--parallel %d: want 1 to %d", w.parallel, workload.MaxParallel)
	}
	sizes, classes := strings.Split(w.size, ","), strings.Split(w.class, ",")
	if w.parallel == 1 && len(sizes)+len(classes) > 2 {
		return nil, errors.New("a list of sizes or classes needs --parallel")
	}
	set := make([]workload.Parallel, w.parallel)
	for i := range set {
		var err error
		if set[i].Size, err = config.ParseSize(sizes[i%len(sizes)]); err != nil {
			return nil, err
		}
		switch class := classes[i%len(classes)]; class {
		case workload.ClassNormal:
		case workload.ClassUrgent:
			set[i].Urgent = true
			if w.Read {
				return nil, errors.New("--class urgent: a read request has no class; its size determines it")
			}
		default:
			return nil, fmt.Errorf("--class %q: want %s or %s", class, workload.ClassNormal, workload.ClassUrgent)
		}
	}
	return set, nil
}

// printOrder prints transfers that ran at once in the order of completion.
func (a *app) printOrder(r workload.Result, order []workload.Completion) error {
	t := a.table("PLACE", "TRANSFER", "SIZE", "CLASS", "LATENCY_US", "OUTCOME")
	for i, c := range order {
		outcome := "done"
		if !c.Done {
			outcome = c.Error
		}
		t.add(i+1, c.Transfer, bytesCell(c.Size), c.Class, micros(int64(c.LatencyUS*1e3)), outcome)
	}
	if err := t.flush(); err != nil {
		return err
	}
	verified := "every byte is right"
	if !r.Verified {
		verified = "NOT verified: see the error"
	}
	return a.remark("%d transfers, %d failed, %d bytes arrived, %s", r.Transfers, r.Failed, r.Bytes, verified)
}
