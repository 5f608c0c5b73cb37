package user

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestDMAMappings(t *testing.T) {
	s, _, c := setUp(t, Options{})
	dma := s.DMA()
	a, b := memfd(t, 64<<10, 0), memfd(t, 64<<10, 0)
	before := openFDs(t)
	// Sixteen mappings of one file, in reverse order, and one of another.
	for i := range uint64(16) {
		ok(t, c.MapDMA(0x100000+(15-i)*4096, 4096, a, i*4096, both))
	}
	ok(t, c.MapDMA(0x200000, 8192, b, 4096, DMARead))
	ok(t, c.MapDMA(0x202000, 4096, b, 0, DMAWrite))
	ok(t, c.MapDMA(^uint64(0)-4095, 4096, a, 0, both)) // the last page there is
	if m, f := dma.Mappings(); m != 19 || f != 2 {
		t.Errorf("%d mappings of %d files", m, f)
	}
	if after := fdsAfter(t, before+2); after != before+2 {
		t.Errorf("%d descriptors before, %d after: one a file is needed", before, after)
	}
	// Accesses across mappings, translated by their offsets.
	p := make([]byte, 64<<10)
	for i := range p {
		p[i] = byte(i / 4096)
	}
	ok(t, dma.Write(0x100000, p))
	q := make([]byte, 64<<10)
	_, err := unix.Pread(a, q, 0)
	ok(t, err)
	for i := range q {
		if q[i] != byte(15-i/4096) {
			t.Fatalf("byte %#x of the file is %d", i, q[i])
		}
	}
	for _, x := range []struct {
		name string
		err  error
		want error
	}{
		{"before", dma.Read(0xff000, q[:8]), ErrUnmapped},
		{"over the end", dma.Read(0x10fff8, q[:16]), ErrUnmapped},
		{"over the end of everything", dma.Read(^uint64(0)-3, q[:8]), ErrUnmapped},
		{"write to what is readable", dma.Write(0x200000, q[:8]), ErrDenied},
		{"read of what is writable", dma.Read(0x202000, q[:8]), ErrDenied},
		{"read", dma.Read(0x200ffc, q[:8]), nil},
		{"write", dma.Write(0x202000, q[:8]), nil},
		{"nothing", dma.Read(0, nil), nil},
	} {
		if !errors.Is(x.err, x.want) {
			t.Errorf("%s: %v, want %v", x.name, x.err, x.want)
		}
	}
	if err := c.MapDMA(0x10f000, 8192, b, 0, both); !errors.Is(err, unix.EEXIST) {
		t.Errorf("overlap: %v", err)
	}
	// One unmap of a large range, as QEMU does: it removes every mapping inside, possibly none.
	ok(t, c.UnmapDMA(0x1000, 0x1000))
	ok(t, c.UnmapDMA(0x101000, 0x3000))
	if m, _ := dma.Mappings(); m != 16 {
		t.Errorf("%d mappings left", m)
	}
	if err := dma.Read(0x101000, q[:8]); !errors.Is(err, ErrUnmapped) {
		t.Errorf("unmapped: %v", err)
	}
	// A part of a mapping is removed, and the rest stays.
	ok(t, c.UnmapDMA(0x201000, 4096))
	for addr, want := range map[uint64]error{0x200ff8: nil, 0x201000: ErrUnmapped, 0x201ff8: ErrUnmapped} {
		if err := dma.Read(addr, q[:8]); !errors.Is(err, want) {
			t.Errorf("%#x beside a cut: %v, want %v", addr, err, want)
		}
	}
	if err := c.UnmapDMA(0x200800, 4096); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a cut page: %v", err)
	}
	ok(t, c.UnmapDMA(0, 1<<63))
	ok(t, c.UnmapDMA(1<<63, 1<<63))
	if m, f := dma.Mappings(); m != 0 || f != 0 {
		t.Errorf("%d mappings of %d files left", m, f)
	}
	ok(t, c.MapDMA(0x100000, 4096, a, 0, both))
	ok(t, c.UnmapAllDMA())
	ok(t, c.UnmapAllDMA())
	if m, f := dma.Mappings(); m != 0 || f != 0 {
		t.Errorf("%d mappings of %d files left", m, f)
	}
}

// TestDMALimits: the numbers of mappings, files and bytes are bounded.
func TestDMALimits(t *testing.T) {
	s := newSpace(3)
	s.maxFiles, s.maxMapped = 2, 64<<10
	defer s.clear()
	add := func(page uint64, fd int) error {
		return s.add(DMAMap{32, both, 0, page << 12, 4096}, fd)
	}
	ok(t, add(1, memfd(t, 32<<10, 0)))
	if err := add(2, memfd(t, 36<<10, 0)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("too many bytes: %v", err)
	}
	ok(t, add(2, memfd(t, 32<<10, 0)))
	if err := add(3, memfd(t, 4096, 0)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("too many files: %v", err)
	}
	ok(t, add(3, -1))
	if err := add(4, -1); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("too many mappings: %v", err)
	}
	s.clear()
	if s.mapped != 0 || len(s.files) != 0 {
		t.Errorf("%d bytes of %d files left", s.mapped, len(s.files))
	}
}

// TestDMAFileChanges: the peer may extend a file, make it writable, and shrink it at any time.
func TestDMAFileChanges(t *testing.T) {
	s := newSpace(10)
	defer s.clear()
	rw := memfd(t, 4096, 0)
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", rw), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	ok(t, err)
	defer func() { _ = unix.Close(ro) }()
	b := []byte("somewhere")
	ok(t, s.add(DMAMap{32, DMARead, 0, 0, 4096}, ro))
	ok(t, s.add(DMAMap{32, both, 0, 0x10000, 4096}, rw)) // mapped anew, for writing
	ok(t, s.access(0x10000, b, true, nil, nil))
	ok(t, unix.Ftruncate(rw, 16384))
	ok(t, s.add(DMAMap{32, both, 8192, 0x20000, 8192}, rw)) // mapped anew, longer
	ok(t, s.access(0x21000, b, true, nil, nil))
	got := make([]byte, len(b))
	ok(t, s.access(0, got, false, nil, nil))
	if string(got) != string(b) || len(s.files) != 1 || s.mapped != 16384 {
		t.Errorf("%q; %d files of %d bytes", got, len(s.files), s.mapped)
	}
	ok(t, unix.Ftruncate(rw, 4096))
	for _, write := range []bool{false, true} {
		if err := s.access(0x21000, got, write, nil, nil); !errors.Is(err, ErrLost) {
			t.Errorf("shrunk, write %v: %v", write, err)
		}
	}
	ok(t, s.access(0x10000, got, false, nil, nil))
	ok(t, unix.Ftruncate(rw, 0))
	if err := s.access(0, got, false, nil, nil); !errors.Is(err, ErrLost) {
		t.Errorf("emptied: %v", err)
	}
	ok(t, unix.Ftruncate(rw, 16384))
	ok(t, s.access(0x21000, got, false, nil, nil))
}

// TestDMAFileShrunkAndWritten: a file that is mapped for writing for the first time after it has
// shrunk keeps its length. Accesses to the part beyond its end fail; they are not out of bounds.
func TestDMAFileShrunkAndWritten(t *testing.T) {
	s := newSpace(10)
	defer s.clear()
	fd := memfd(t, 16384, 0)
	ok(t, s.add(DMAMap{32, DMARead, 12288, 0, 4096}, fd))
	ok(t, unix.Ftruncate(fd, 4096))
	ok(t, s.add(DMAMap{32, both, 0, 0x10000, 4096}, fd))
	if err := s.access(0, make([]byte, 8), false, nil, nil); !errors.Is(err, ErrLost) {
		t.Errorf("past the end: %v", err)
	}
	ok(t, s.access(0x10000, make([]byte, 8), true, nil, nil))
	ok(t, unix.Ftruncate(fd, 16384))
	ok(t, s.access(0, make([]byte, 8), false, nil, nil))
}

// TestDMALongFiles: a file that grows counts only as far as it is used.
func TestDMALongFiles(t *testing.T) {
	s := newSpace(10)
	defer s.clear()
	for i := range uint64(3) {
		fd := memfd(t, 4096, 0)
		ok(t, unix.Ftruncate(fd, defaultMaxMapped/2))
		ok(t, s.add(DMAMap{32, both, 0, i << 32, 4096}, fd))
		ok(t, s.add(DMAMap{32, both, fileStep - 4096, i<<32 + 4096, 8192}, fd))
	}
	if s.mapped != 3*2*fileStep {
		t.Errorf("%#x bytes are mapped", s.mapped)
	}
	// The first mapping for writing, at its beginning, does not shorten it.
	fd := memfd(t, 2*fileStep, 0)
	ok(t, s.add(DMAMap{32, DMARead, 2*fileStep - 4096, 3 << 32, 4096}, fd))
	ok(t, s.add(DMAMap{32, both, 0, 4 << 32, 4096}, fd))
	ok(t, s.access(3<<32, make([]byte, 8), false, nil, nil))
}

// TestUnmapWaits: after the answer to an unmap no access touches the range.
func TestUnmapWaits(t *testing.T) {
	s, _, c := setUp(t, Options{})
	fd := memfd(t, 1<<20, 0)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var done atomic.Int64
	for range 2 {
		wg.Go(func() {
			p := bytes.Repeat([]byte{0xaa}, 1<<20)
			for !stop.Load() {
				if s.DMA().Write(0, p) == nil {
					done.Add(1)
				}
			}
		})
	}
	zero := make([]byte, 1<<20)
	got := make([]byte, 1<<20)
	for range 20 {
		ok(t, c.MapDMA(0, 1<<20, fd, 0, both))
		for had := done.Load(); done.Load() == had; { // at least one access went through
			_, err := c.Read(0, 0, 4)
			ok(t, err)
		}
		ok(t, c.UnmapDMA(0, 1<<20))
		_, err := unix.Pwrite(fd, zero, 0)
		ok(t, err)
		for range 3 {
			_, err = unix.Pread(fd, got, 0)
			ok(t, err)
			if !bytes.Equal(got, zero) {
				t.Fatal("written after the unmap")
			}
		}
	}
	stop.Store(true)
	wg.Wait()
}

// TestDMAMessages: memory without a descriptor, over either socket, with and without a request of
// the client in progress.
func TestDMAMessages(t *testing.T) {
	for _, noTwin := range []bool{false, true} {
		t.Run(fmt.Sprintf("noTwin=%v", noTwin), func(t *testing.T) {
			s, d, c := setUp(t, Options{NoTwin: noTwin, MaxTransfer: 4096})
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(i * 7 / 3)
			}
			ok(t, c.MapBytes(0x10000, b, both))
			want := append([]byte(nil), b[:100001]...)
			doCopy(t, c, 0x10000, 0x10000+512<<10, 100001, 0)
			ok(t, d.lastDMA())
			_, err := c.Read(0, 0, 4) // the server's earlier requests are visible
			ok(t, err)
			if !bytes.Equal(b[512<<10:512<<10+100001], want) {
				t.Fatal("data differ")
			}
			got := make([]byte, 100001) // with no request under way
			ok(t, s.DMA().Read(0x10000, got))
			if !bytes.Equal(got, want) {
				t.Fatal("data differ")
			}
			// While requests are in progress.
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := range 200 {
					if err := s.DMA().Read(uint64(0x10000+i), got[:4097]); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for range 200 {
				if _, err := c.Read(0, 0, 4); err != nil {
					t.Fatal(err)
				}
			}
			wg.Wait()
			ok(t, c.MapBytes(0x800000, make([]byte, 4096), DMARead))
			if err := s.DMA().Write(0x800000, got[:8]); !errors.Is(err, ErrDenied) {
				t.Errorf("write to a read-only range: %v", err)
			}
			// The client refuses ranges that are not mapped any more.
			ok(t, c.space.remove(0x10000, 0x10000+1<<20-1))
			err = s.DMA().Read(0x10000, got[:8])
			var e *Error
			if !errors.As(err, &e) || e.Command != CmdDMARead || e.Errno != unix.EFAULT {
				t.Errorf("%v", err)
			}
			ok(t, c.UnmapAllDMA())
			if err := s.DMA().Read(0x10000, got[:8]); !errors.Is(err, ErrUnmapped) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestAnswersFirst: a client that answers nothing before its own request is answered gets that
// answer. It comes before any DMA message if the request came first, and without waiting if the
// request came while the client owes an answer.
func TestAnswersFirst(t *testing.T) {
	for _, twin := range []bool{false, true} {
		s, d := newServer(t)
		r := rawConnect(t, s)
		from := r
		if twin {
			m := r.agree(`{"capabilities":{"twin_socket":{"supported":true}}}`)
			from = &rawSession{t, nil, newSocket(m.fds[0]), newInbox(1 << 20)}
			defer from.sock.close()
		} else {
			r.agree("{}")
		}
		r.command(CommandMemory | CommandMaster)
		r.must(CmdDMAMap, le(32, 3, uint64(0), uint64(0), uint64(4096)))
		r.must(CmdRegionWrite, le(uint64(regLen), 1, 4, 4))
		d.taken()
		write := func(id uint16, v int) []byte { return raw(id, CmdRegionWrite, 0, le(uint64(0x30), 0, 4, v)) }
		replies := func(from, to uint16) {
			t.Helper()
			for id := from; id <= to; id++ {
				if m, more := r.receive(); !more || m.ID != id || m.isError() || !m.isReply() {
					t.Fatalf("%+v, want the reply to %d", m.Header, id)
				}
			}
		}
		// In one piece: the doorbell, and two more writes after it.
		r.send(append(append(raw(1, CmdRegionWrite, 0, le(uint64(regGo), 1, 4, 0)), write(2, 2)...), write(3, 3)...))
		replies(1, 3)
		m, _ := from.receive()
		if m.Command != CmdDMARead || !bytes.Equal(m.body, le(uint64(0), uint64(4))) {
			t.Fatalf("%+v %x", m.Header, m.body)
		}
		r.send(write(4, 4))
		replies(4, 4)
		r.send(raw(5, CmdSetIRQs, 0, le(20, 0x24, 2, 0, 1)), eventfd(t))
		r.send(raw(6, CmdRegionRead, 0, le(uint64(8), 0, 4)))
		r.send(raw(7, CmdDMAUnmap, 0, le(24, 0, uint64(0x10000), uint64(4096))))
		replies(5, 7)
		from.send(raw(m.ID, CmdDMARead, flagReply, le(uint64(0), uint64(4), "abcd")))
		m, _ = from.receive()
		if m.Command != CmdDMAWrite || !bytes.Equal(m.body, le(uint64(0), uint64(4), "abcd")) {
			t.Fatalf("%+v %x", m.Header, m.body)
		}
		r.send(write(8, 8))
		replies(8, 8)
		from.send(raw(m.ID, CmdDMAWrite, flagReply, le(uint64(0), uint64(4))))
		ok(t, d.lastDMA())
		var seen []uint64
		for _, a := range d.taken() {
			if a.offset == 0x30 {
				seen = append(seen, a.value)
			}
		}
		if fmt.Sprint(seen) != "[2 3 4 8]" {
			t.Errorf("writes in the order %v", seen)
		}
		if err := r.close(); !errors.Is(err, ErrGone) {
			t.Error(err)
		}
	}
}

// TestNoMessageAfter: a request that revokes the right to memory that is accessed by messages
// ends an access between two messages. No message is sent after its answer.
func TestNoMessageAfter(t *testing.T) {
	for _, x := range []struct {
		name string
		end  []byte
		want error
	}{
		{"unmapped", raw(9, CmdDMAUnmap, 0, le(24, 0, uint64(0), uint64(8192))), ErrUnmapped},
		{"bus mastering off", raw(9, CmdRegionWrite, 0, le(uint64(cfgCommand), RegionConfig, 2, le(uint16(CommandMemory)))), ErrBusMaster},
		{"reset", raw(9, CmdReset, 0, nil), ErrBusMaster},
		{"D3hot", raw(9, CmdRegionWrite, 0, le(uint64(pmControl), RegionConfig, 2, le(uint16(3)))), ErrBusMaster},
	} {
		t.Run(x.name, func(t *testing.T) {
			s, _ := newServer(t)
			r := rawConnect(t, s)
			r.agree(`{"capabilities":{"max_data_xfer_size":4096}}`)
			r.command(CommandMemory | CommandMaster)
			r.must(CmdDMAMap, le(32, 3, uint64(0), uint64(0), uint64(8192)))
			done := make(chan error)
			go func() { done <- s.DMA().Read(0, make([]byte, 8192)) }()
			m, _ := r.receive()
			if m.Command != CmdDMARead || !bytes.Equal(m.body, le(uint64(0), uint64(4096))) {
				t.Fatalf("%+v %x", m.Header, m.body)
			}
			id := m.ID
			r.send(x.end)
			if m, _ := r.receive(); m.ID != 9 || m.isError() {
				t.Fatalf("%+v", m.Header)
			}
			r.send(raw(id, CmdDMARead, flagReply, le(uint64(0), uint64(4096), make([]byte, 4096))))
			if err := <-done; !errors.Is(err, x.want) {
				t.Errorf("%v, want %v", err, x.want)
			}
			if m := r.must(CmdDeviceInfo, le(16, 0, 0, 0)); len(m.body) != deviceInfoSize {
				t.Errorf("%+v", m.Header)
			}
			if err := r.close(); !errors.Is(err, ErrGone) {
				t.Error(err)
			}
		})
	}
}

// selfish is a device that uses DMA during a call.
type selfish struct {
	*testDevice
	err error
}

func (d *selfish) Write(int, uint64, int, uint64) {
	err := d.srv.DMA().Read(0, make([]byte, 4))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// TestNoDMAInCalls: a device that waits for its client while the client waits for it gets an
// error, and the connection stays open.
func TestNoDMAInCalls(t *testing.T) {
	d := &selfish{testDevice: &testDevice{}}
	cfg := testConfig(d.testDevice)
	cfg.BARs[2], cfg.Timeout = BAR{}, 50*time.Millisecond
	s, err := New(cfg, d)
	ok(t, err)
	d.srv = s
	t.Cleanup(s.Close)
	c := newTestClient(t, s, Options{})
	ok(t, c.SetCommand(CommandMemory|CommandMaster))
	ok(t, c.MapBytes(0, make([]byte, 4096), both))
	ok(t, c.Write(0, 0, 4, 0))
	_, err = c.Read(0, 0, 4)
	ok(t, err)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !errors.Is(d.err, ErrTimeout) || errors.Is(d.err, ErrGone) {
		t.Error(d.err)
	}
}

// TestBadAnswers: a wrong answer to a DMA message is an error of the access.
func TestBadAnswers(t *testing.T) {
	for _, x := range []struct {
		name   string
		answer func(id uint16) []byte
		lost   bool // the connection ends
	}{
		{"error", func(id uint16) []byte { return le(id, uint16(11), 16, 0x21, 5) }, false},
		{"error without a number", func(id uint16) []byte { return le(id, uint16(11), 16, 0x21, 0) }, false},
		{"short", func(id uint16) []byte { return raw(id, CmdDMARead, 1, le(uint64(0))) }, false},
		{"less data", func(id uint16) []byte { return raw(id, CmdDMARead, 1, le(uint64(0), uint64(4), "abc")) }, false},
		{"more data", func(id uint16) []byte { return raw(id, CmdDMARead, 1, le(uint64(0), uint64(4), "abcde")) }, false},
		{"another address", func(id uint16) []byte { return raw(id, CmdDMARead, 1, le(uint64(1), uint64(4), "abcd")) }, false},
		{"another count", func(id uint16) []byte { return raw(id, CmdDMARead, 1, le(uint64(0), uint64(1)<<40, "abcd")) }, false},
		{"another id", func(id uint16) []byte { return raw(id+1, CmdDMARead, 1, le(uint64(0), uint64(4), "abcd")) }, true},
		{"another command", func(id uint16) []byte { return raw(id, CmdDMAWrite, 1, le(uint64(0), uint64(4))) }, true},
		{"no answer", func(uint16) []byte { return nil }, true},
		{"the end", nil, true},
	} {
		for _, twin := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/twin=%v", x.name, twin), func(t *testing.T) {
				s, d := newServer(t, func(c *Config) {
					if x.name == "no answer" {
						c.Timeout = 20 * time.Millisecond
					}
				})
				before := openFDs(t)
				r := rawConnect(t, s)
				from := r
				if twin {
					m := r.agree(`{"capabilities":{"twin_socket":{"supported":true}}}`)
					if len(m.fds) != 1 {
						t.Fatalf("%d descriptors", len(m.fds))
					}
					from = &rawSession{t, nil, newSocket(m.fds[0]), newInbox(1 << 20)}
				} else {
					r.agree("{}")
				}
				r.command(CommandMemory | CommandMaster)
				r.must(CmdDMAMap, le(32, 3, uint64(0), uint64(0), uint64(4096)))
				r.must(CmdRegionWrite, le(uint64(regLen), 1, 4, 4))
				r.must(CmdRegionWrite, le(uint64(regGo), 1, 4, 0))
				m, _ := from.receive()
				if m.Command != CmdDMARead {
					t.Fatalf("%+v", m.Header)
				}
				if x.answer == nil {
					from.sock.shutdown()
				} else if b := x.answer(m.ID); b != nil {
					from.send(b)
				}
				if e := d.lastDMA(); e == nil {
					t.Error("the access succeeded")
				}
				if x.lost {
					if m, more := r.receive(); more {
						t.Errorf("%+v", m.Header)
					}
				} else if m := r.must(CmdDeviceInfo, le(16, 0, 0, 0)); len(m.body) != deviceInfoSize {
					t.Errorf("%+v", m.Header)
				}
				if err := r.close(); err == nil {
					t.Error("no reason for the end")
				}
				if _, m := s.DMA().Mappings(); m != 0 {
					t.Error("mappings left")
				}
				if twin {
					from.sock.close()
				}
				if after := fdsAfter(t, before); after != before {
					t.Errorf("%d descriptors before, %d after", before, after)
				}
			})
		}
	}
}

// TestDMAFileNotDumped: a core dump contains no file that the peer has mapped here.
func TestDMAFileNotDumped(t *testing.T) {
	s := newSpace(10)
	defer s.clear()
	ok(t, s.add(DMAMap{32, both, 0, 0, 4096}, memfd(t, 4096, 0)))
	maps, err := os.ReadFile("/proc/self/smaps")
	ok(t, err)
	for _, f := range s.files {
		_, after, found := strings.Cut(string(maps), fmt.Sprintf("%x-", uintptr(unsafe.Pointer(unsafe.SliceData(f.area.b)))))
		_, flags, _ := strings.Cut(after, "VmFlags:")
		flags, _, _ = strings.Cut(flags, "\n")
		if !found || !slices.Contains(strings.Fields(flags), "dd") {
			t.Errorf("the mapping has %q, want dd (MADV_DONTDUMP)", flags)
		}
	}
}

// TestTouchHoldsNobodyUp: an access that sleeps, as to a page that is being punched out, blocks
// the unmapping of that page and nothing else. The same holds for a file that is not mapped yet.
func TestTouchHoldsNobodyUp(t *testing.T) {
	s := newSpace(10)
	defer s.clear()
	a, b := memfd(t, 8192, 0), memfd(t, 4096, 0)
	ok(t, s.add(DMAMap{32, both, 0, 0, 4096}, a))
	ok(t, s.add(DMAMap{32, both, 4096, 0x10000, 4096}, a))
	touching, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		err := s.accessBy(func(*area, uint64, []byte, bool) error { close(touching); <-release; return nil }, 0, make([]byte, 8), true, nil, nil)
		if err != nil {
			t.Error(err)
		}
	})
	<-touching
	p := []byte("somewhere")
	ok(t, s.access(0x10000, p, true, nil, nil)) // of the same file
	ok(t, s.add(DMAMap{32, both, 0, 0x20000, 4096}, b))
	ok(t, s.access(0x20000, p, true, nil, nil))
	ok(t, s.remove(0x10000, 0x10fff))
	ok(t, s.remove(0x20000, 0x20fff))
	unmapped := make(chan struct{})
	all.Go(func() { _ = s.remove(0, 4095); close(unmapped) })
	for { // until it waits
		s.mu.Lock()
		waits := s.waits
		s.mu.Unlock()
		if waits > 0 {
			break
		}
		select {
		case <-unmapped:
			t.Fatal("memory was unmapped during an access")
		default:
		}
	}
	close(release)
	<-unmapped

	// A file that is not mapped yet: accesses wait for it.
	slow := newArea(4096, true)
	s.mu.Lock()
	f := &memory{id: fileID{1, 1}, area: slow, size: 4096, writable: true, mapped: 4096}
	s.files[f.id] = f
	s.enlist(f)
	s.mapped += f.size
	s.table.insert(mapping{0x30000, 0x30fff, 0, f.index, both})
	s.mu.Unlock()
	all.Go(func() {
		if err := s.access(0x30000, make([]byte, 8), false, nil, nil); !errors.Is(err, ErrLost) || !errors.Is(err, unix.ENOMEM) {
			t.Errorf("memory that could not be mapped: %v", err)
		}
	})
	ok(t, s.add(DMAMap{32, both, 0, 0x20000, 4096}, b))
	ok(t, s.access(0x20000, p, true, nil, nil))
	slow.err = unix.ENOMEM
	close(slow.ready)
	all.Wait()

	// The same by a system call.
	q := make([]byte, len(p))
	ok(t, s.accessBy(touchAside, 0x20010, p, true, nil, nil))
	ok(t, s.accessBy(touchAside, 0x20010, q, false, nil, nil))
	if !bytes.Equal(p, q) {
		t.Errorf("read %q, want %q", q, p)
	}
	ok(t, unix.Ftruncate(b, 0))
	for _, write := range []bool{false, true} {
		if err := s.accessBy(touchAside, 0x20010, q, write, nil, nil); !errors.Is(err, ErrLost) {
			t.Errorf("a file that was emptied, write %v: %v", write, err)
		}
	}
}
