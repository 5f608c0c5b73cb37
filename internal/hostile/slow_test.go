package hostile

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// quietFactor is the factor by which a neighbour's trouble may lengthen a bystander's p99 on a
// quiet machine, and floor the delay that a shared machine causes by itself. On any machine the
// bystander continues: no p99 of hundreds of its transfers reaches stalled.
const (
	quietFactor = 3
	floor       = 4 * time.Millisecond
	stalled     = 2 * time.Second
)

// soaking reports whether to compare times, which needs a quiet machine (make soak).
func soaking() bool { return os.Getenv("PFD_SOAK") != "" }

// undisturbed measures a bystander's p99 during the trouble. Other tests also load the machine,
// so the best of a few attempts counts.
func undisturbed(t *testing.T, b *bystander, quiet time.Duration) {
	t.Helper()
	limit := stalled
	if soaking() {
		limit = max(quietFactor*quiet, floor)
	}
	var p99 time.Duration
	for range 5 {
		if p99 = b.p99(); p99 <= limit {
			t.Logf("p99 %v, quiet %v", p99, quiet)
			return
		}
	}
	t.Errorf("p99 %v, quiet %v, want at most %v", p99, quiet, limit)
}

// A target serves its buffer by a userfaultfd of its own, and never does: only its own
// transfers wait.
func TestTargetThatNeverServesItsFaults(t *testing.T) {
	needRoot(t, "a full-mode userfaultfd")
	for _, role := range []string{"target", "initiator"} {
		t.Run(role, func(t *testing.T) {
			w := start(t)
			b := w.bystander(attachOrder{})
			quiet := b.p99()
			target := w.attach("target", attachOrder{Node: 1, Group: "slow", Policy: "pa"})
			from := w.attach("initiator", attachOrder{Group: "slow"})
			kinds := map[string]string{"target": "anonymous", "initiator": "anonymous"}
			kinds[role] = "own userfaultfd"
			m := target.buffer("b", kinds["target"], 1<<20, 0)
			from.buffer("b", kinds["initiator"], 1<<20, 0)
			for i := range 8 {
				from.write(fmt.Sprint(i), "b", m.Remote, 1<<20)
			}
			node := 1
			if role == "initiator" {
				node = 0
			}
			w.saw(node, control.CounterLeases, 0)
			undisturbed(t, b, quiet)
			// The sleeping threads end with their process, and its slot becomes free.
			stuck := target
			if role == "initiator" {
				stuck = from
			}
			stuck.kill()
			w.until("its slot is free", func() bool { return w.domains() == 3 })
			undisturbed(t, b, quiet)
			b.fine()
		})
	}
}

// A stopped process delays only its own transfers. gup works without it; touch waits until the
// process continues.
func TestStoppedTarget(t *testing.T) { everywhere(t, stoppedTarget) }

func stoppedTarget(t *testing.T, on place) {
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w := on.start(t)
			b := w.bystander(attachOrder{})
			quiet := b.p99()
			target := w.attach("target", attachOrder{Node: 1, Group: "slow", Method: method})
			from := w.attach("initiator", attachOrder{Group: "slow"})
			m := target.buffer("b", "anonymous", 1<<20, 0)
			from.buffer("b", "anonymous", 1<<20, 7)
			target.signal(syscall.SIGSTOP)
			from.write("x", "b", m.Remote, 1<<20)
			if method == "gup" || method == "uffd" {
				from.arrives("x")
			} else {
				undisturbed(t, b, quiet)
			}
			target.signal(syscall.SIGCONT)
			from.arrives("x")
			target.holds("b", 7, 0, 1<<20)
			b.fine()
		})
	}
}
