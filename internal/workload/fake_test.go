package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// fakeEnv makes the test binary a test process. Its value is the fabric's
// behaviour.
const fakeEnv = "EXANET_WORKLOAD_FAKE"

// liveFabric makes the test process attach to a pfd.
const liveFabric = "none"

func TestMain(m *testing.M) {
	if how := os.Getenv(fakeEnv); how != "" {
		if how == liveFabric {
			if err := Process(context.Background(), os.Stdin, os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
		err := serve(context.Background(), os.Stdin, os.Stdout, func(_ context.Context, a attachment) (endpoint, error) {
			if how == "refuse" {
				return nil, errors.New("no slot is free: close a process")
			}
			if how == fmt.Sprintf("lock %d", a.Node) {
				if _, err := lock(3); err != nil {
					return nil, err
				}
			}
			return &fakeEndpoint{how: how, node: a.Node}, nil
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeEndpoint is a fabric in one system call: process_vm_writev, which brings absent pages
// in and fails on pages that may not be written.
type fakeEndpoint struct {
	how    string
	node   uint32
	writes int
	stats  uint64
}

func (f *fakeEndpoint) slot() int            { return int(f.node) - 0x100 + 3 }
func (f *fakeEndpoint) pages() uint64        { f.stats++; return f.stats * f.stats }
func (f *fakeEndpoint) rdma() *rdma.Endpoint { return nil }
func (f *fakeEndpoint) close() error         { return nil }

// The generation of an exported name is the process number.
func (f *fakeEndpoint) export(va device.VA, size uint64) (rdma.Remote, error) {
	return rdma.Remote{Node: device.NodeID(f.node), Generation: device.Generation(os.Getpid()), VA: va, Len: max(size, 1)}, nil
}

func (f *fakeEndpoint) start(va device.VA, size uint64, target target, _ uint64, _ bool) (transfer, error) {
	pid, to := int(target.Remote.Generation), uint64(target.Remote.VA)
	if size == 0 {
		return nil, errors.New("a transfer has at least one byte")
	}
	f.writes++
	t := &fakeTransfer{how: f.how}
	switch f.how {
	case "die":
		if f.writes == 2 {
			fmt.Fprintln(os.Stderr, "something broke")
			os.Exit(7)
		}
	case "forget":
		return t, nil
	case "half":
		size /= 2
		t.err = errors.New("no more of it")
	case "beyond":
		size++
	}
	for done := uint64(0); done < size; {
		// Memory of this process is read by its address.
		n := min(size-done, 1<<20)
		local := []unix.Iovec{{Base: (*byte)(unsafe.Add(nil, uintptr(va)+uintptr(done))), Len: n}}
		at := []unix.RemoteIovec{{Base: uintptr(to + done), Len: int(n)}}
		m, err := unix.ProcessVMWritev(pid, local, at, 0)
		if err != nil {
			t.err = fmt.Errorf("process_vm_writev: %w", err)
			break
		}
		done += uint64(m)
	}
	return t, nil
}

type fakeTransfer struct {
	how   string
	err   error
	polls int
}

func (t *fakeTransfer) Poll() rdma.Status {
	t.polls++
	switch {
	case t.how == "stuck" || t.polls <= 3:
		return rdma.Ongoing
	case t.err != nil:
		return rdma.Failed
	}
	return rdma.Finished
}

func (t *fakeTransfer) Err() error { return t.err }

func (t *fakeTransfer) Wait(ctx context.Context) error {
	if t.how == "stuck" {
		<-ctx.Done()
		return ctx.Err()
	}
	return t.err
}

func (t *fakeTransfer) Abort() error { return nil }

// fakeDaemon is a daemon with a process number, this process's by default, and with counters
// that a test changes.
type fakeDaemon struct {
	pid    int
	calls  uint64
	err    error
	plain  bool // hides the hardware's counters
	hidden bool // hides one of the two domains
	others int  // number of further domains
	gone   func() bool
}

// ends makes the daemon another process that ends during the run of q.
func (d *fakeDaemon) ends(t *testing.T, q *Request) *fakeDaemon {
	t.Helper()
	pfd := exec.Command("sleep", "600")
	if err := pfd.Start(); err != nil {
		t.Fatal(err)
	}
	d.pid = pfd.Process.Pid
	d.gone = func() bool {
		_, err := pinned(d.pid) // also of a zombie
		return err != nil
	}
	end := time.AfterFunc(20*time.Millisecond, func() { _ = pfd.Process.Kill() })
	t.Cleanup(func() {
		end.Stop()
		_ = pfd.Process.Kill()
		_ = pfd.Wait()
	})
	return d
}

func (d *fakeDaemon) Status(context.Context) (control.Status, error) {
	if d.gone != nil && d.gone() {
		return control.Status{}, control.ErrNoDaemon
	}
	return control.Status{PID: cmp.Or(d.pid, os.Getpid())}, d.err
}

func (d *fakeDaemon) Nodes(context.Context, int) ([]control.Node, error) {
	return []control.Node{{Index: 0, ID: 0x100}, {Index: 1, ID: 0x101}}, nil
}

// Each call returns higher counters: ten times their first values.
func (d *fakeDaemon) Faults(context.Context, int, int) ([]control.Fault, error) { return nil, nil }

func (d *fakeDaemon) Domains(context.Context, int) ([]control.Domain, error) {
	if d.calls == 0 {
		d.calls = 1
	} else {
		d.calls *= 10
	}
	list := []control.Domain{
		{Node: 0, Slot: 3, Faults: 1 * d.calls, PagesIn: 2 * d.calls},
		{Node: 1, Slot: 4, Faults: 4 * d.calls, PagesIn: 8 * d.calls},
		{Node: 1, Slot: 3, Faults: 100 * d.calls, PagesIn: 100 * d.calls},
	}
	if d.hidden {
		list = list[:1]
	}
	for i := range d.others {
		list = append(list, control.Domain{Node: 0, Slot: 8 + i})
	}
	return list, nil
}

func (d *fakeDaemon) Counters(context.Context, int) ([]control.Counter, error) {
	if d.plain {
		return []control.Counter{{Node: 0, Name: control.CounterFaults, Value: d.calls}}, nil
	}
	return []control.Counter{
		{Node: 0, Name: "rapf_rx_total", Value: 3 * d.calls},
		{Node: 0, Name: "retransmits_total", Value: 5 * d.calls},
		{Node: 0, Name: "timeouts_total", Value: 7 * d.calls},
		{Node: 0, Name: "guards_total", Value: 11 * d.calls},
		{Node: 1, Name: "rapf_rx_total", Value: 1000 * d.calls},
		{Node: control.AllNodes, Name: "timeouts_total", Value: 1000 * d.calls},
	}, nil
}
