package workload

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/maybe"
)

// live is a pfd of two nodes, built from this source, for one test.
type live struct {
	client *control.Client
	socket string
}

func startLive(t *testing.T, args ...string) *live {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pfd")
	build := append([]string{"build", "-buildvcs=false", "-o", program}, raceFlags...)
	if out, err := exec.CommandContext(t.Context(), "go", append(build, "../../cmd/pfd")...).CombinedOutput(); err != nil {
		t.Fatalf("build pfd: %v\n%s", err, out)
	}
	runtime.LockOSThread() // pfd ends with this thread: see StartDaemon
	t.Cleanup(runtime.UnlockOSThread)
	d, err := StartDaemon(t.Context(), program, 2, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := control.New(d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &live{client: c, socket: d.Socket()}
}

func (l *live) options(t *testing.T, method, policy string) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Socket: l.socket, From: 0, To: 1, Method: method, Policy: policy,
		Command: []string{self}, Env: []string{fakeEnv + "=" + liveFabric, "GORACE=atexit_sleep_ms=0"},
	}
}

func (l *live) open(t *testing.T, o Options) *Session {
	t.Helper()
	s, err := Open(t.Context(), l.client, o, 11)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// one makes one transfer.
func (s *Session) one(q Request, dstOffset uint64) (Outcome, error) {
	out, err := s.do(&q, []Parallel{{q.Size, q.Urgent}}, dstOffset)
	return out[0], err
}

// arrive makes a transfer and fails the test if it does not arrive.
func arrive(t *testing.T, s *Session, x Request, dstOffset uint64) Outcome {
	t.Helper()
	x.Timeout = time.Minute
	x.Waiting = Auto.resolve(x.Size)
	out, err := s.one(x, dstOffset)
	if err != nil {
		t.Fatalf("%+v: %v", x, err)
	}
	if !out.Done || out.Wrong != "" || out.Pinned != 0 {
		t.Errorf("%+v: arrived %v %s, wrong %q, %v bytes pinned", x, out.Done, out.Error, out.Wrong, out.Pinned)
	}
	return out
}

// liveSizes are sizes around words, pages and blocks, and large ones.
var liveSizes = []uint64{1, 15, 16, 4095, 4096, 4097, 16383, 16384, 16385, 64 << 10, 1 << 20, 4 << 20}

// liveOffsets are misalignments relative to words, packets, pages and blocks.
var liveOffsets = []struct{ src, dst uint64 }{
	{0, 0}, {1, 1}, {0, 1}, {3, 0}, {8, 16}, {255, 257}, {4095, 4095}, {4096, 1}, {1, 16383}, {16380, 4100},
}

// liveStates are absent pages at either end, at both, at every second page,
// and copy-on-write.
var liveStates = []struct{ src, dst State }{
	{Present, Present}, {Present, Absent}, {Absent, Present}, {Absent, Absent},
	{Alternate, Alternate}, {Present, COW}, {COW, COW}, {ReadOnly, Alternate},
}

// Initiator, target and daemon are three processes; every size, alignment and
// state arrives byte for byte, and nothing is ever pinned.
func TestLiveArrives(t *testing.T) {
	l := startLive(t)
	for _, method := range []string{"gup", "touch"} {
		for _, policy := range []string{"p1", "p4", "pa"} {
			t.Run(method+"/"+policy, func(t *testing.T) {
				s := l.open(t, l.options(t, method, policy))
				for _, size := range liveSizes {
					for i, offset := range liveOffsets {
						for _, state := range liveStates {
							if size >= 1<<20 && i > 1 {
								continue // small sizes cover the alignments
							}
							arrive(t, s, Request{Size: size, Offset: offset.src, Src: state.src, Dst: state.dst}, offset.dst)
						}
					}
				}
			})
		}
	}
}

// Absent memory faults, page by page under p1; present memory does not.
func TestLiveCounts(t *testing.T) {
	l := startLive(t)
	const pages = 16
	for _, c := range []struct {
		method, policy string
		src, dst       State
		faults         uint64 // at least, in each transfer
		pages          uint64 // exactly, in each transfer
	}{
		{"gup", "p1", Present, Present, 0, 0},
		{"gup", "p1", Present, Absent, pages, pages},
		{"gup", "pa", Present, Absent, 1, pages},
		{"touch", "p1", Present, Absent, pages, pages},
		{"touch", "pa", Present, Absent, 1, pages},
		{"populate", "pa", Present, Absent, 1, pages},
		{"populate", "p1", Present, Absent, pages, pages},
		{"uffd", "pa", Present, Absent, 1, pages},
		{"gup", "p1", Absent, Present, 1, pages},
		{"gup", "p1", Present, Alternate, pages / 2, pages / 2},
		// Pages that were resident before are requested, too, and not counted.
		{"gup", "pa", Present, Alternate, 1, pages / 2},
		{"uffd", "pa", Present, Alternate, 1, pages / 2},
		{"touch", "pa", Present, Alternate, 1, pages / 2},
		{"populate", "pa", Present, Alternate, 1, pages / 2},
		{"gup", "p1", Present, COW, pages, pages},
	} {
		t.Run(fmt.Sprintf("%s/%s/%s to %s", c.method, c.policy, c.src, c.dst), func(t *testing.T) {
			const count = 5
			r, err := Run(t.Context(), l.client, Request{Options: l.options(t, c.method, c.policy), Count: count, Size: pages * pageSize, Src: c.src, Dst: c.dst, Waiting: Auto, Seed: 3})
			if err != nil || !r.OK() || r.PinnedBytes != 0 {
				t.Fatalf("%+v %s, %v", r, deref(r.Error), err)
			}
			if r.Faults < maybe.Number(c.faults*count) || (c.faults == 0) != (r.Faults == 0) {
				t.Errorf("%v faults in %v transfers, want at least %v each", r.Faults, count, c.faults)
			}
			if r.PagesPagedIn != maybe.Number(c.pages*count) {
				t.Errorf("%v pages paged in in %v transfers, want %v each", r.PagesPagedIn, count, c.pages)
			}
			if c.faults > 0 && (r.RAPF == 0 || r.Retransmits == 0) {
				t.Errorf("%v RAPF, %v retransmissions", r.RAPF, r.Retransmits)
			}
		})
	}
}

// A transfer to pages that cannot be brought in fails with a reason. The target survives, and
// its other transfers and those of other processes continue.
func TestLiveUnresolvable(t *testing.T) {
	l := startLive(t)
	for _, method := range []string{"gup", "touch"} {
		t.Run(method, func(t *testing.T) {
			other := l.open(t, l.options(t, "gup", "p1"))
			s := l.open(t, l.options(t, method, "p1"))
			for _, size := range []uint64{1, 4096, 100000} {
				for _, states := range []struct{ src, dst State }{{Present, ReadOnly}, {Present, Unmapped}, {Unmapped, Present}, {Absent, ReadOnly}} {
					out, err := s.one(Request{Size: size, Src: states.src, Dst: states.dst, Waiting: Wait, Timeout: time.Minute}, 0)
					if err != nil {
						t.Fatal(err)
					}
					if out.Done || !strings.Contains(out.Error, "mapped") || out.Wrong != "" || out.Pinned != 0 {
						t.Errorf("%d bytes from %s to %s: %+v", size, states.src, states.dst, out)
					}
					arrive(t, s, Request{Size: size, Src: Present, Dst: Absent}, 0)
					arrive(t, other, Request{Size: size, Src: Present, Dst: Absent}, 0)
				}
			}
		})
	}
}

// A size of 0 and an unknown node are errors at once.
func TestLiveRefusals(t *testing.T) {
	l := startLive(t)
	q := Request{Options: l.options(t, "gup", "p1"), Count: 1, Src: Present, Dst: Present, Waiting: Auto}
	r, err := Run(t.Context(), l.client, q)
	if err != nil || r.Failed != 1 || r.Error == nil || !strings.Contains(*r.Error, "0 bytes") {
		t.Errorf("size 0: %+v %s, %v", r, deref(r.Error), err)
	}
	q.Size, q.To = 4096, 2
	if r, err = Run(t.Context(), l.client, q); !errors.Is(err, ErrNode) {
		t.Errorf("node 2 of 2: %+v, %v", r, err)
	}
	q.To = 0 // both on one node
	if r, err = Run(t.Context(), l.client, q); err != nil || !r.OK() {
		t.Errorf("on one node: %+v %s, %v", r, deref(r.Error), err)
	}
}

// Without a TXFIFO the sender's time-out retransmits after a source fault.
func TestLiveSourceTimeout(t *testing.T) {
	l := startLive(t, "--source-faults", "timeout", "--timeout-us", "1000")
	r, err := Run(t.Context(), l.client, Request{Options: l.options(t, "gup", "p1"), Count: 5, Size: 4096, Src: Absent, Dst: Present, Waiting: Wait})
	if err != nil || !r.OK() {
		t.Fatalf("%+v %s, %v", r, deref(r.Error), err)
	}
	if r.Timeouts == 0 || r.Faults == 0 {
		t.Errorf("%v time-outs, %v faults: want some of both", r.Timeouts, r.Faults)
	}
}
