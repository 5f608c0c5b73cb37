package hostile

import (
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
)

// window sends WINDOW or UNWINDOW and returns the code of its refusal, 0 if there is none.
func (r *raw) window(typ attach.Type, w device.MemoryWindow) (attach.Code, error) {
	m := attach.Window{Type: typ, MemoryWindow: w}
	if err := r.Send(m.Append(nil)); err != nil {
		return 0, err
	}
	var b [attach.MaxMessage]byte
	n, _, err := r.Receive(r.w.ctx(), b[:])
	if err != nil {
		return 0, err
	}
	if e, err := attach.DecodeRefused(b[:n]); err == nil {
		return e.Code, nil
	}
	_, err = attach.DecodeShared(b[:n])
	return 0, err
}

// Processes open and close windows as fast as they can, beyond the maximum, of wild ranges, and one
// reads no answer: others keep their share, and each has its 64 windows afterwards.
func TestWindowFlood(t *testing.T) { onEach(t, floodWindows) }

func floodWindows(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	var requests [2]atomic.Int64
	var stop atomic.Bool
	var flood sync.WaitGroup
	for k := range requests {
		r := w.raw(attach.Hello{Group: "flood", Node: device.NodeID(k)})
		flood.Go(func() {
			for i := uint64(0); !stop.Load(); i++ {
				m := device.MemoryWindow{VA: device.VA(i * 0x9e3779b97f4a7c15 >> 17), Bytes: 1 + i%7*0x1003, Peer: device.PDID(i % 3), Rights: device.Rights(1 + i%15)}
				code, err := r.window(attach.TypeWindow, m)
				switch {
				case err != nil:
					t.Error(err)
					return
				case code == 0 && i%2 == 0:
					code, err = r.window(attach.TypeUnwindow, m)
				}
				if err != nil || code != 0 && code != attach.CodeLimit && code != attach.CodeMemory {
					t.Errorf("window %d: code %d, %v", i, code, err)
					return
				}
				requests[k].Add(1)
			}
		})
	}
	deaf := w.raw(attach.Hello{Group: "deaf"})
	flood.Go(func() {
		m := attach.Window{Type: attach.TypeWindow, MemoryWindow: device.MemoryWindow{VA: 1, Bytes: 1, Rights: device.RightRead}}
		for !stop.Load() && deaf.Send(m.Append(nil)) == nil { // pfd ends it
		}
	})
	b.some()
	w.until("windows are opened", func() bool { return requests[0].Load() > 300 && requests[1].Load() > 300 })
	b.some()
	stop.Store(true)
	flood.Wait()
	list, err := w.Domains(w.ctx(), control.AllNodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.Group == "flood" && len(d.Windows) != device.WindowsPerSlot {
			t.Errorf("domain %d/%d has %d windows after %d and %d requests", d.Node, d.Slot, len(d.Windows), requests[0].Load(), requests[1].Load())
		}
	}
	t.Logf("%d and %d requests", requests[0].Load(), requests[1].Load())
	b.fine()
}

// A process opens all addresses to everyone, and ends: the next one in its slot is not open, and the
// PDID of a window gives no right to another process's memory.
func TestWindowsEndWithTheirProcess(t *testing.T) { onEach(t, endWindows) }

func endWindows(t *testing.T, w *world) {
	everything := device.MemoryWindow{Bytes: 1 << 39, Rights: device.AllRights}
	guest := w.raw(attach.Hello{Group: "guest"})
	src := w.memory(device.PageSize, guest)
	for node := range device.NodeID(2) {
		slot := -1
		for round := range 3 {
			r := w.raw(attach.Hello{Group: "open", Node: node})
			if slot >= 0 && int(r.Slot) != slot {
				t.Logf("node %d: slot %d, and the process before had slot %d", node, r.Slot, slot)
			}
			slot = int(r.Slot)
			dst := w.memory(device.PageSize, r)
			write := func() uint8 {
				guest.ring(0, device.Descriptor{
					Src: device.VA(uintptr(unsafe.Pointer(&src[0]))), Dst: device.VA(uintptr(unsafe.Pointer(&dst[0]))), Size: 64, DstNode: node, DstPDID: r.PDID, DstGeneration: r.Generation,
				})
				_, status := guest.end(0)
				return status
			}
			if status := write(); status != device.StatusDomain {
				t.Errorf("node %d, round %d: a write before there is a window ends with status %d", node, round, status)
			}
			everything.VA = device.VA(uintptr(unsafe.Pointer(&dst[0]))) &^ (1<<39 - 1)
			if code, err := r.window(attach.TypeWindow, everything); code != 0 || err != nil {
				t.Fatalf("code %d, %v", code, err)
			}
			if status := write(); status != 0 {
				t.Errorf("node %d, round %d: a write to the window ends with status %d", node, round, status)
			}
			_ = r.Close()
			w.until("its domain ends", func() bool { return r.generation(node, r.PDID) != r.Generation })
		}
	}
}
