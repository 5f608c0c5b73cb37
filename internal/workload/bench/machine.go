package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Machine describes the machine of the measurements. A value that cannot be read is empty.
type Machine struct {
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	Kernel     string `json:"kernel"`
	Governor   string `json:"governor"` // of cpu0's frequency
	// Load is the load average of the minute before (proc_loadavg(5)).
	Load float64 `json:"load"`
}

func firstWord(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	word, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	return word
}

func machine() Machine {
	m := Machine{Processors: runtime.NumCPU(), Kernel: firstWord("/proc/sys/kernel/osrelease"), Governor: "none"}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.Processor = strings.TrimSpace(v)
				break
			}
		}
	}
	if g := firstWord("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"); g != "" {
		m.Governor = g
	}
	m.Load, _ = strconv.ParseFloat(firstWord("/proc/loadavg"), 64) // 0 if it is not a number
	return m
}

// ticks are the processors' times since boot (proc_stat(5)), in clock ticks.
type ticks struct{ busy, steal, all float64 }

func readTicks() (t ticks) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, word := range strings.Fields(line) {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil || i > 8 {
			continue // the name, or a guest's time, which user time includes
		}
		t.all += v
		switch i {
		case 4, 5: // idle, iowait
		case 8:
			t.steal += v
		default:
			t.busy += v
		}
	}
	return t
}

// waited returns how long this thread was runnable but not running, in ns (schedstat).
func waited() float64 {
	b, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return 0
	}
	if words := strings.Fields(string(b)); len(words) == 3 {
		v, _ := strconv.ParseFloat(words[1], 64) // 0 if it is not a number
		return v
	}
	return 0
}

// canary detects whether other programs or machines use the processors.
type canary struct {
	start  time.Time
	ticks  ticks
	waited float64
	others float64 // largest part of the processors used while nothing was measured
}

// Bounds above which a measurement counts as distorted, as parts of the processors' time or of
// the measuring thread's. Values are defined by this project.
const (
	restTime    = 200 * time.Millisecond // for which others is measured
	mostOthers  = 0.05
	mostSteal   = 0.01
	mostWaiting = 0.10
)

// rest measures for restTime how much other programs use the processors.
func (c *canary) rest(ctx context.Context) error {
	before := readTicks()
	if err := pause(ctx, restTime); err != nil {
		return err
	}
	after := readTicks()
	if all := after.all - before.all; all > 0 {
		c.others = max(c.others, (after.busy-before.busy)/all)
	}
	return nil
}

func newCanary(ctx context.Context) (*canary, error) {
	c := &canary{}
	err := c.rest(ctx)
	c.start, c.ticks, c.waited = time.Now(), readTicks(), waited()
	return c, err
}

// verdict returns the causes that distorted the measurements since newCanary, or "".
func (c *canary) verdict(ctx context.Context) (string, error) {
	after, wait := readTicks(), waited()
	elapsed := time.Since(c.start)
	if err := c.rest(ctx); err != nil {
		return "", err
	}
	var why []string
	if c.others > mostOthers {
		why = append(why, fmt.Sprintf("other programs used %.0f %% of the processors before or after it", 100*c.others))
	}
	if all := after.all - c.ticks.all; all > 0 && (after.steal-c.ticks.steal)/all > mostSteal {
		why = append(why, fmt.Sprintf("the hypervisor took %.1f %% of the processors' time", 100*(after.steal-c.ticks.steal)/all))
	}
	if part := (wait - c.waited) / float64(elapsed.Nanoseconds()); part > mostWaiting {
		why = append(why, fmt.Sprintf("the measuring thread waited for a processor %.0f %% of the time", 100*part))
	}
	return strings.Join(why, "; "), nil
}
