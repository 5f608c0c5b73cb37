package attach

import (
	"os"
	"testing"
)

func TestEnding(t *testing.T) {
	for _, tt := range []struct {
		name, status string
		want         bool
	}{
		{"runs", "Name:\tpfd\nState:\tR (running)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n", false},
		{"is about to be killed", "Name:\tpfd\nState:\tD (disk sleep)\nSigPnd:\t0000000000000100\n", true},
		{"has another signal", "State:\tD (disk sleep)\nSigPnd:\t0000000000000200\n", false},
		{"is a zombie", "State:\tZ (zombie)\nSigPnd:\t0000000000000000\n", true},
		{"is dead", "State:\tX (dead)\n", true},
		{"says nothing", "", false},
		{"has a name that lies", "Name:\tx\\nState:\tZ\nState:\tS (sleeping)\nSigPnd:\t0\n", false},
		{"has no state", "State:\nSigPnd:\n", false},
	} {
		if got := threadEnding([]byte(tt.status)); got != tt.want {
			t.Errorf("a thread that %s: %v", tt.name, got)
		}
	}
	if Killed(os.Getpid()) || Killed(0) || Killed(1<<30) {
		t.Error("a process that was not killed")
	}
}
