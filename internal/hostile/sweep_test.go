package hostile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/exanet/pfd/internal/seam"
)

var pfdThatFails = build("pfd-faultpoints", "-tags", "faultpoints")

// nths are which calls of a point fail, one in each run: the first ones, which
// start pfd, and those that attach and transfer.
var nths = []int{1, 2, 3, 5, 8, 13, 40}

// Every system call of pfd on the way of an attachment and of a transfer fails
// once in turn, with each error that matters. Then pfd either does not start,
// with one line that says why, or refuses an attachment with its reason, or fails
// a transfer with its code, or nothing is to be seen of it; and what comes after
// works, byte for byte, and pfd ends in good order.
func TestEverySystemCallFailsOnce(t *testing.T) {
	for point := range seam.Points {
		for _, errno := range point.Errnos() {
			t.Run(fmt.Sprintf("%v/%s", point, errnoName(errno)), func(t *testing.T) {
				hit := false
				for _, nth := range nths {
					if !sweep(t, point, errno, nth) {
						break // it is not called so often
					}
					hit = true
				}
				if !hit {
					t.Error("the call was never made: the sweep says nothing of it")
				}
			})
		}
	}
}

func errnoName(e syscall.Errno) string { return strings.ReplaceAll(e.Error(), " ", "_") }

// sweep makes one run and tells whether the call was made.
func sweep(t *testing.T, point seam.Point, errno syscall.Errno, nth int) bool {
	t.Helper()
	method := "gup"
	switch point {
	case seam.NetlinkSend:
		method = []string{"touch", "populate"}[nth%2]
	case seam.UffdIoctl, seam.UffdRead:
		method = "uffd"
	}
	// Short times: what only a time-out brings back comes back soon.
	w := prepareAs(t, pfdThatFails, []string{fmt.Sprintf("%s=%v:%d:%d", seam.EnvName, point, nth, int(errno))}, "--guard-us", "5000", "--timeout-us", "5000")
	w.during(t)
	name := fmt.Sprintf("call %d of %v fails with %v", nth, point, errno)
	hit := func() bool { return strings.Contains(w.stderr.String(), seam.HitText) }
	if err := w.run(); err != nil {
		exit := <-w.ended
		w.cmd = nil
		var code *exec.ExitError
		if !errors.As(exit, &code) || code.ExitCode() != 1 || !strings.Contains(w.stderr.String(), "pfd: ") || !hit() {
			t.Errorf("%s: pfd does not start, and not well: %v\n%s", name, exit, w.stderr)
		}
		return true
	}
	defer w.stop()
	const size = 256 << 10
	attach := func(who string, node uint32) *proxy {
		p := w.spawn(who, 0)
		o := order{Op: "attach", Attach: attachOrder{Socket: w.socket(), Node: node, Group: "g", Method: method, Policy: "p4"}}
		r, err := p.do(o)
		if err == nil && r.Err != "" {
			// Once only: the second attempt has to work.
			if !strings.Contains(r.Err, "refused by") {
				t.Errorf("%s: no reason: %s", name, r.Err)
			}
			w.until("the call has failed: "+r.Err, hit)
			r, err = p.do(o)
		}
		if err != nil || r.Err != "" {
			t.Fatalf("%s: attaching again: %s, %v\n%s", name, r.Err, err, w.stderr)
		}
		return p
	}
	p := pair{attach("initiator", 0), attach("target", 1)}
	defer p.kill()
	make := func(side *proxy, id string, seed uint64) reply {
		o := order{Op: "buffer", ID: id, Size: size, Seed: seed}
		r, err := side.do(o)
		if err == nil && r.Err != "" && hit() {
			r, err = side.do(o)
		}
		if err != nil || r.Err != "" {
			t.Fatalf("%s: a buffer: %s, %v\n%s", name, r.Err, err, w.stderr)
		}
		return r
	}
	make(p.from, "src", 5)
	make(p.from, "empty", 0)
	for i, src := range []string{"src", "empty", "src", "src"} {
		dst := make(p.to, fmt.Sprint("dst", i), 0)
		id := fmt.Sprint(i)
		before := hit() // not yet told is not yet happened: then it is told below
		p.from.write(id, src, dst.Remote, size)
		r := p.from.wait(id)
		seed := uint64(5)
		if src == "empty" {
			seed = 0
		}
		switch {
		case r.Done:
			p.to.holds(fmt.Sprint("dst", i), seed, 0, size)
		case before || r.Code == 0 || r.Text == "":
			t.Errorf("%s: transfer %d: %+v (had the call failed before: %v)\n%s", name, i, r, before, w.stderr)
		default:
			p.to.must(order{Op: "either", ID: fmt.Sprint("dst", i), Seed: seed})
		}
	}
	if _, err := w.Status(w.ctx()); err != nil {
		t.Errorf("%s: status: %v", name, err)
	}
	p.kill()
	w.until("both slots are free", func() bool { return w.domains() == 0 })
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid)); err != nil || len(fds) > 40 {
		t.Errorf("%s: %d descriptors are open, %v", name, len(fds), err)
	}
	return hit()
}
