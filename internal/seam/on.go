//go:build faultpoints

package seam

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

type plan struct {
	point Point
	nth   int64
	errno syscall.Errno
}

var (
	planned = sync.OnceValue(func() plan {
		var p plan
		name, rest, _ := strings.Cut(os.Getenv(EnvName), ":")
		for p.point = 0; p.point < Points && p.point.String() != name; p.point++ {
		}
		if n, err := fmt.Sscanf(rest, "%d:%d", &p.nth, &p.errno); n != 2 || err != nil {
			p.point = Points
		}
		return p
	})
	calls atomic.Int64
)

// Fail gives the error with which this call of a point is to fail, 0 not at all.
func Fail(p Point) syscall.Errno {
	plan := planned()
	if plan.point != p || calls.Add(1) != plan.nth {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s%v, call %d, %v\n", HitText, p, plan.nth, plan.errno)
	return plan.errno
}
