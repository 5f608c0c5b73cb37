package emu

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/threads"
)

// The line about a slow process names its user: lines are limited by user.
func TestOverLeaseNamesTheProcess(t *testing.T) {
	var own, all bytes.Buffer
	e := &Engine{base: time.Now(), log: slog.New(slog.NewTextHandler(&all, nil)), slowUsers: map[uint32]int64{}, lateOf: map[uint32]int{}, threads: threads.New()}
	s := &slot{node: &node{}, index: 3, att: &Attachment{Log: slog.New(slog.NewTextHandler(&own, nil)).With("pid", 7, "uid", 8)}}
	e.overtaken(&call{slot: s})
	if !strings.Contains(own.String(), "over its lease") || !strings.Contains(own.String(), "uid=8") || all.Len() > 0 || !e.slow(s) {
		t.Errorf("says %q, and %q", own.String(), all.String())
	}
	// The slot stays slow until the late call ends, however long that takes.
	if s.slowUntil = 0; !e.slow(s) || e.lateOf[0] != 1 {
		t.Errorf("slow: %v, with %d late calls of its user", e.slow(s), e.lateOf[0])
	}
	s.att.Log = nil
	e.overtaken(&call{slot: s})
	if !strings.Contains(all.String(), "node=0 slot=3") {
		t.Errorf("without a log of the process: %q", all.String())
	}
}
