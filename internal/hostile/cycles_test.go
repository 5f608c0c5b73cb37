package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

const (
	cyclesVA   = 0x7300_0000_0000 // of the memory of each target, beside own's
	cyclesSize = 48 << 10         // three blocks
	cyclesMark = 0x5afe << 48     // pattern that a target writes itself
	cyclesData = 0xda7a << 48     // pattern that a transfer writes
)

func stamp(b []byte, w uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], w)
	}
}

// target makes the process the target number Seed: it writes its mark to every other page,
// leaves the rest absent, attaches and exports all. The memory has the same address in each
// target.
func (a *obedient) target(o order) (r reply, err error) {
	m := a.buffers["target"]
	if m == nil {
		m = &area{fd: -1, va: cyclesVA}
		if m.b, err = fixed(cyclesVA, cyclesSize); err != nil {
			return r, err
		}
		a.buffers["target"] = m
	}
	if err = unix.Madvise(m.b, unix.MADV_DONTNEED); err != nil {
		return r, err
	}
	for i := 0; i < cyclesSize; i += 2 * device.PageSize {
		stamp(m.b[i:i+device.PageSize], cyclesMark|o.Seed)
	}
	if a.ep, err = a.attach(o.Attach); err != nil {
		return r, err
	}
	if !a.ep.Caps().SVA { // a file of its own, at the same address
		if err := m.share(a.ep, cyclesMark|o.Seed); err != nil {
			return r, err
		}
	}
	remote, err := a.ep.Export(m.b)
	r.Remote, r.Info = remote.String(), a.ep.Info()
	return r, err
}

// share replaces the area by a new file with a mark in every other page, and shares it.
func (m *area) share(ep *rdma.Endpoint, mark uint64) error {
	fd, err := rdma.MakeMemory(uint64(len(m.b)), device.PageSize)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p, err := unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(m.b)), uintptr(len(m.b)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return err
	}
	m.b = unsafe.Slice((*byte)(p), len(m.b))
	for i := 0; i < len(m.b); i += 2 * device.PageSize {
		stamp(m.b[i:i+device.PageSize], mark)
	}
	return ep.Share(m.va, uint64(len(m.b)), fd, 0, true)
}

// foreign counts the bytes of the target's memory that are neither its mark, nor from a
// transfer to it, nor zero. It compares byte by byte because transfers may be in flight.
func (a *obedient) foreign(o order) (r reply) {
	m := a.buffers["target"]
	var mark, data [8]byte
	stamp(mark[:], cyclesMark|o.Seed)
	stamp(data[:], cyclesData|o.Seed)
	for i, c := range m.b {
		if c == 0 || c == mark[i%8] || c == data[i%8] {
			continue
		}
		if r.Wrong++; r.Wrong == 1 {
			r.First = int64(i)
			r.Text = fmt.Sprintf("%#x", binary.LittleEndian.Uint64(m.b[i&^7:]))
		}
	}
	return r
}

// named is a target as the initiator addresses it.
type named struct {
	number  uint64
	remote  rdma.Remote
	data    []byte
	left    atomic.Bool   // no data may arrive any more
	arrived chan struct{} // receives a value when a transfer has arrived
}

// recent has the last targets; the current one is the last.
type recent struct {
	mu   sync.Mutex
	list []*named
}

func (r *recent) add(n *named) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.list = append(r.list, n); len(r.list) > 4 {
		r.list = r.list[1:]
	}
}

// choose returns the current target in two of three turns, otherwise an earlier one.
func (r *recent) choose(turn int) *named {
	r.mu.Lock()
	defer r.mu.Unlock()
	back := 0
	if turn%3 == 2 {
		back = turn / 3 % len(r.list)
	}
	return r.list[len(r.list)-1-back]
}

// initiator writes to current and former targets until it is stopped.
type initiator struct {
	ep *rdma.Endpoint
	recent
	arrived, failed, late atomic.Int64 // late: begun when the target had left
	why                   atomic.Value // error of the last failure
}

func (in *initiator) run(ctx context.Context) error {
	for turn := 0; ctx.Err() == nil; turn++ {
		to := in.choose(turn)
		left := to.left.Load()
		if left {
			in.late.Add(1)
		}
		wait, cancel := context.WithTimeout(context.Background(), patience)
		t, err := in.ep.Write(wait, rdma.WriteRequest{Src: to.data, Dst: to.remote, Wait: true})
		if err == nil {
			err = t.Wait(wait)
		}
		cancel()
		var failed *rdma.TransferError
		switch {
		case errors.As(err, &failed):
			in.failed.Add(1)
			in.why.Store(fmt.Sprintf("target %d: %v", to.number, err))
		case err != nil:
			return fmt.Errorf("a transfer to target %d: %w", to.number, err)
		case left:
			return fmt.Errorf("a transfer to target %d arrived after the target had ended", to.number)
		default:
			in.arrived.Add(1)
			select {
			case to.arrived <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

// Targets follow each other in one slot with the same PDID and address. They end by close, by
// death and by exec, while an initiator writes to current and former targets. No byte of a
// transfer reaches a target that it does not name, and no transfer that starts after its target
// has ended arrives. PFD_CYCLES is the number of targets (10000 take some minutes); by default
// as many as 5 s allow with each device.
func TestTransfersEndWhereTheyWereNamed(t *testing.T) {
	cycles, limit := 1<<31, 5*time.Second // with each device
	if v := os.Getenv("PFD_CYCLES"); v != "" {
		var err error
		if cycles, err = strconv.Atoi(v); err != nil {
			t.Fatal("PFD_CYCLES: ", err)
		}
		limit = time.Hour // go test's own timeout expires first
	}
	onEach(t, func(t *testing.T, w *world) { transfersEndWhereTheyWereNamed(t, w, cycles, limit) })
}

func transfersEndWhereTheyWereNamed(t *testing.T, w *world, cycles int, limit time.Duration) {
	image, err := self()
	if err != nil {
		t.Fatal(err)
	}
	by := w.bystander(attachOrder{})
	at := attachOrder{Socket: w.socket(), Group: "cycles", Method: "gup"}
	here := &obedient{buffers: map[string]*area{}} // targets in this process
	t.Cleanup(func() { _, _ = here.obey(order{Op: "drop"}) })
	in := &initiator{}
	if in.ep, err = here.attach(at); err != nil {
		t.Fatal(err)
	}
	// There are more sources than targets that are written to.
	const sources = 64
	data, err := in.ep.Alloc(sources * cyclesSize)
	if err != nil {
		t.Fatal(err)
	}
	// While pfd has not noticed the end of a killed target, the next one gets another PDID.
	at.Socket, at.Node, at.All = w.socketOf(1), 1, true

	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	errs := make(chan error, 8)
	t.Cleanup(func() {
		stop()
		writers.Wait()
		if err := in.ep.Close(); err != nil {
			t.Error(err)
		}
	})
	local := func(o order) reply {
		t.Helper()
		r, err := here.obey(o)
		if err != nil {
			t.Fatalf("order %s: %v", o.Op, err)
		}
		return r
	}
	began := time.Now()
	var p *proxy
	var last rdma.Info
	ended := map[int]*named{} // by slot
	same, ways := 0, map[string]int{}
	for k := 0; k < cycles && time.Since(began) < limit; k++ {
		do, way := local, "close"
		switch k % 40 { // processes: one executes and is killed, the next closes twice
		case 0:
			if p == nil {
				p = w.spawn("target", 0)
			}
			do, way = p.must, "exec"
		case 1:
			do, way = p.must, "kill"
		case 2, 3:
			do, way = p.must, "close of a process"
		}
		var next *proxy
		if way == "kill" {
			next = w.spawn("target", 0) // attaches as soon as the other has ended
		}
		number := uint64(k + 1)
		r := do(order{Op: "target", Attach: at, Seed: number})
		if r.Info.PDID == last.PDID && r.Info.Slot == last.Slot {
			same++
		}
		if r.Info.PDID == last.PDID && r.Info.Generation == last.Generation {
			t.Fatalf("target %d has the generation of the one before: %+v", number, r.Info)
		}
		last = r.Info
		n := &named{number: number, data: data.Bytes()[k%sources*cyclesSize:][:cyclesSize], arrived: make(chan struct{}, 1)}
		stamp(n.data, cyclesData|number)
		if n.remote, err = rdma.ParseRemote(r.Remote); err != nil {
			t.Fatal(err)
		}
		in.add(n)
		if k == 0 {
			for range cap(errs) {
				writers.Go(func() { errs <- in.run(ctx) })
			}
		}
		select {
		case <-n.arrived:
		case err := <-errs:
			t.Fatal(err)
		case <-time.After(patience):
			t.Fatalf("no transfer arrives at target %d (%s), %+v; %d transfers arrived, %d failed, the last of %v", number, way, r.Info, in.arrived.Load(), in.failed.Load(), in.why.Load())
		}
		check := func() {
			if r := do(order{Op: "foreign", Seed: number}); r.Wrong != 0 {
				t.Fatalf("target %d (%s): %d foreign bytes, the first at %d of %s", number, way, r.Wrong, r.First, r.Text)
			}
		}
		check()
		if former := ended[r.Info.Slot]; former != nil { // killed or executed: pfd has noticed
			former.left.Store(true)
		}
		ended[r.Info.Slot] = n
		switch way {
		case "exec":
			p.must(order{Op: "exec", Path: image})
		case "kill":
			p.kill()
			p = next
		default:
			do(order{Op: "close"})
			check()
			n.left.Store(true)
		}
		ways[way]++
	}
	took := time.Since(began)
	stop()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	theirs := by.fine()
	all := 0
	for _, n := range ways {
		all += n
	}
	t.Logf("%d targets in %v (%v), %d in the slot and with the PDID of the one before; transfers: %d arrived, %d failed, %d begun after their target left; the bystander made %d",
		all, took, ways, same, in.arrived.Load(), in.failed.Load(), in.late.Load(), theirs.Count)
	if same < all/2 || in.late.Load() == 0 {
		t.Error("the test has made no transfers")
	}
}
