package user

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// le builds a payload: integers by their size, byte slices as they are.
func le(v ...any) []byte {
	var b []byte
	for _, x := range v {
		switch x := x.(type) {
		case int: // a 32-bit field, the usual one
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		case uint16:
			b = binary.LittleEndian.AppendUint16(b, x)
		case uint64:
			b = binary.LittleEndian.AppendUint64(b, x)
		case string:
			b = append(b, x...)
		case []byte:
			b = append(b, x...)
		}
	}
	return b
}

// raw encodes a message.
func raw(id uint16, cmd Command, flags int, payload []byte) []byte {
	return le(id, uint16(cmd), HeaderSize+len(payload), flags, 0, payload)
}

// rawSession is a session that sends and receives bytes.
type rawSession struct {
	t testing.TB
	*session
	sock *socket
	in   *inbox
}

func rawConnect(t testing.TB, s *Server) *rawSession {
	ses := connect(t, s)
	r := &rawSession{t, ses, newSocket(ses.fd), newInbox(2 << 20)}
	if err := r.sock.timeouts(20*time.Second, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	return r
}

// close ends the session and waits until the server has ended it.
func (r *rawSession) close() error {
	r.in.drop(r.sock)
	r.sock.close()
	return <-r.ended
}

func (r *rawSession) send(b []byte, fds ...int) {
	r.t.Helper()
	if err := r.sock.send(b, fds); err != nil {
		r.t.Fatal(err)
	}
}

// receive returns the next message; ok is false at the end of the stream.
func (r *rawSession) receive() (message, bool) {
	r.t.Helper()
	for {
		m, ok, err := r.in.next()
		if err != nil {
			r.t.Fatal(err)
		}
		if ok {
			return m, true
		}
		if err := r.in.receive(r.sock, 0); err != nil {
			if errors.Is(err, ErrGone) {
				return m, false
			}
			r.t.Fatal(err)
		}
	}
}

// call sends a command and returns its reply.
func (r *rawSession) call(cmd Command, payload []byte, fds ...int) message {
	r.t.Helper()
	r.send(raw(77, cmd, 0, payload), fds...)
	m, ok := r.receive()
	if !ok {
		r.t.Fatalf("%v: connection closed", cmd)
	}
	if m.ID != 77 || m.Command != cmd || !m.isReply() {
		r.t.Fatalf("%v: reply %+v", cmd, m.Header)
	}
	return m
}

// must is like call, for a request that must succeed.
func (r *rawSession) must(cmd Command, payload []byte, fds ...int) message {
	r.t.Helper()
	m := r.call(cmd, payload, fds...)
	if m.isError() {
		r.t.Fatalf("%v refused: %v", cmd, unix.Errno(m.Error))
	}
	return m
}

func hello(caps string) []byte { return le(uint16(0), uint16(1), caps, "\x00") }

func (r *rawSession) agree(caps string) message {
	r.t.Helper()
	return r.must(CmdVersion, hello(caps))
}

func (r *rawSession) command(bits uint16) {
	r.t.Helper()
	r.must(CmdRegionWrite, le(uint64(cfgCommand), RegionConfig, 2, le(bits)))
}

// TestGoldenExchange compares whole exchanges, in both directions, with bytes that were derived
// by hand from the specification's tables (testdata/exchange.txt).
func TestGoldenExchange(t *testing.T) {
	if order.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the golden bytes are for a little-endian host")
	}
	text, err := os.ReadFile("testdata/exchange.txt")
	if err != nil {
		t.Fatal(err)
	}
	s, d := newServer(t)
	r := rawConnect(t, s)
	defer func() { _ = r.close() }()
	n := 0
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		var fds []int
		dir, rest := line[:1], line[1:]
		for _, f := range strings.Fields(rest) {
			switch f {
			case "+eventfd":
				fds = append(fds, eventfd(t))
			case "+memfd":
				fds = append(fds, memfd(t, 1<<16, 0))
			}
		}
		b := unhex(t, rest)
		switch dir {
		case ">":
			r.send(b, fds...)
		case "<":
			n++
			m, ok := r.receive()
			if !ok {
				t.Fatalf("line %d: connection closed", i+1)
			}
			got := append(m.Header.Append(nil), m.body...)
			if !bytes.Equal(got, b) {
				t.Errorf("line %d:\ngot  %x\nwant %x", i+1, got, b)
			}
			if want := strings.Count(rest, "+fd"); len(m.fds) != want {
				t.Errorf("line %d: %d descriptors, want %d", i+1, len(m.fds), want)
			}
			closeFDs(m.fds)
		default:
			t.Fatalf("line %d: %q", i+1, line)
		}
	}
	if n < 15 {
		t.Errorf("only %d replies compared", n)
	}
	if len(d.taken()) == 0 {
		t.Error("no access reached the device")
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	var b []byte
	for _, f := range strings.Fields(s) {
		if f[0] == '+' {
			continue
		}
		if f[0] == '\'' { // text, then a NUL
			b = append(append(b, f[1:]...), 0)
			continue
		}
		for i := 0; i+1 < len(f); i += 2 {
			var v byte
			for _, c := range []byte(f[i : i+2]) {
				x := strings.IndexByte("0123456789abcdef", c)
				if x < 0 {
					t.Fatalf("not hexadecimal: %q", f)
				}
				v = v<<4 | byte(x)
			}
			b = append(b, v)
		}
	}
	return b
}

// refusals are requests that must be answered by an error and have no effect. Columns: name,
// command, payload, descriptors (m memfd, e eventfd, p pipe), errno.
var refusals = []struct {
	name    string
	cmd     Command
	payload []byte
	fds     string
	errno   unix.Errno
}{
	{"unknown command", 99, nil, "", unix.EINVAL},
	{"unassigned command 14", 14, nil, "", unix.EINVAL},
	{"second VERSION", CmdVersion, hello("{}"), "", unix.EINVAL},
	{"descriptors with GET_INFO", CmdDeviceInfo, le(16, 0, 0, 0), "em", unix.EINVAL},

	{"GET_INFO short", CmdDeviceInfo, le(0, 0), "", unix.EINVAL},
	{"GET_INFO argsz", CmdDeviceInfo, le(8, 0, 0, 0), "", unix.EINVAL},
	{"REGION_INFO short", CmdRegionInfo, le(0, 0), "", unix.EINVAL},
	{"REGION_INFO argsz", CmdRegionInfo, le(8, 0, 1, 0, uint64(0), uint64(0)), "", unix.EINVAL},
	{"REGION_INFO index", CmdRegionInfo, le(32, 0, 9, 0, uint64(0), uint64(0)), "", unix.EINVAL},
	{"REGION_INFO with a capability out of reach", CmdRegionInfo, le(32, 8, 1, 4096, uint64(0), uint64(0)), "", unix.EINVAL},
	{"REGION_IO_FDS short", CmdRegionIOFDs, le(16, 0, 1), "", unix.EINVAL},
	{"REGION_IO_FDS argsz", CmdRegionIOFDs, le(15, 0, 1, 0), "", unix.EINVAL},
	{"REGION_IO_FDS flags", CmdRegionIOFDs, le(512, 1, 1, 0), "", unix.EINVAL},
	{"REGION_IO_FDS count", CmdRegionIOFDs, le(512, 0, 1, 1), "", unix.EINVAL},
	{"REGION_IO_FDS absent BAR", CmdRegionIOFDs, le(512, 0, 3, 0), "", unix.EINVAL},
	{"REGION_IO_FDS index", CmdRegionIOFDs, le(512, 0, 512, 0), "", unix.EINVAL},
	{"IRQ_INFO short", CmdIRQInfo, le(0, 0), "", unix.EINVAL},
	{"IRQ_INFO argsz", CmdIRQInfo, le(8, 0, 2, 0), "", unix.EINVAL},
	{"IRQ_INFO index", CmdIRQInfo, le(16, 0, 5, 0), "", unix.EINVAL},

	{"SET_IRQS empty", CmdSetIRQs, nil, "", unix.EINVAL},
	{"SET_IRQS short", CmdSetIRQs, le(0, 0), "", unix.EINVAL},
	{"SET_IRQS argsz", CmdSetIRQs, le(3, 0x21, 4, 0, 0), "", unix.EINVAL},
	{"SET_IRQS index", CmdSetIRQs, le(20, 0x21, 5, 0, 0), "", unix.EINVAL},
	{"SET_IRQS no data kind", CmdSetIRQs, le(20, 0x20, 2, 0, 1), "", unix.EINVAL},
	{"SET_IRQS no action", CmdSetIRQs, le(20, 0x01, 2, 0, 1), "", unix.EINVAL},
	{"SET_IRQS mask and unmask", CmdSetIRQs, le(20, 0x19, 2, 0, 1), "", unix.EINVAL},
	{"SET_IRQS none and bool", CmdSetIRQs, le(20, 0x0b, 2, 0, 1), "", unix.EINVAL},
	{"SET_IRQS unknown flag", CmdSetIRQs, le(20, 0x61, 2, 0, 1), "", unix.EINVAL},
	{"SET_IRQS range", CmdSetIRQs, le(20, 0x09, 2, testVectors-1, 2), "", unix.EINVAL},
	{"SET_IRQS start", CmdSetIRQs, le(20, 0x09, 2, testVectors+1, 1), "", unix.EINVAL},
	{"SET_IRQS count wraps", CmdSetIRQs, le(20, 0x24, 2, 284, 0xffffffff), "", unix.EINVAL},
	{"SET_IRQS mask ERR", CmdSetIRQs, le(20, 0x09, 3, 0, 1), "", unix.EINVAL},
	{"SET_IRQS mask REQ", CmdSetIRQs, le(20, 0x09, 4, 0, 1), "", unix.EINVAL},
	{"SET_IRQS two ERR", CmdSetIRQs, le(20, 0x21, 3, 0, 2), "", unix.EINVAL},
	{"SET_IRQS two REQ", CmdSetIRQs, le(20, 0x21, 4, 0, 2), "", unix.EINVAL},
	{"SET_IRQS INTx", CmdSetIRQs, le(20, 0x24, 0, 0, 1), "e", unix.EINVAL},
	{"SET_IRQS MSI", CmdSetIRQs, le(20, 0x24, 1, 0, 1), "e", unix.EINVAL},
	{"SET_IRQS none with start", CmdSetIRQs, le(20, 0x21, 2, 1, 0), "", unix.EINVAL},
	{"SET_IRQS none to mask", CmdSetIRQs, le(20, 0x09, 2, 0, 0), "", unix.EINVAL},
	{"SET_IRQS none with bool", CmdSetIRQs, le(20, 0x22, 2, 0, 0), "", unix.EINVAL},
	{"SET_IRQS bool and descriptor", CmdSetIRQs, le(20, 0x22, 2, 0, 1, []byte{0}), "e", unix.EINVAL},
	{"SET_IRQS none and descriptor", CmdSetIRQs, le(20, 0x21, 2, 0, 1), "e", unix.EINVAL},
	{"SET_IRQS one descriptor for two", CmdSetIRQs, le(20, 0x24, 2, 0, 2), "e", unix.EINVAL},
	{"SET_IRQS two descriptors for one", CmdSetIRQs, le(20, 0x24, 2, 0, 1), "ee", unix.EINVAL},
	{"SET_IRQS bool too short", CmdSetIRQs, le(21, 0x22, 2, 0, 2, []byte{0}), "", unix.EINVAL},
	{"SET_IRQS bool too long", CmdSetIRQs, le(23, 0x22, 2, 0, 2, []byte{0, 0, 0}), "", unix.EINVAL},
	{"SET_IRQS memfd", CmdSetIRQs, le(20, 0x24, 2, 0, 1), "m", unix.EINVAL},
	{"SET_IRQS pipe", CmdSetIRQs, le(20, 0x24, 2, 0, 2), "ep", unix.EINVAL},
	{"SET_IRQS nine descriptors", CmdSetIRQs, le(20, 0x24, 2, 0, 8), "eeeeeeeee", unix.EINVAL},

	{"REGION_READ short", CmdRegionRead, le(uint64(0)), "", unix.EINVAL},
	{"REGION_READ with data", CmdRegionRead, le(uint64(0), 0, 4, 0), "", unix.EINVAL},
	{"REGION_READ past the end", CmdRegionRead, le(uint64(4093), 0, 4), "", unix.EINVAL},
	{"REGION_READ offset wraps", CmdRegionRead, le(^uint64(0), 7, 256), "", unix.EINVAL},
	{"REGION_READ absent BAR", CmdRegionRead, le(uint64(0), 3, 4), "", unix.EINVAL},
	{"REGION_READ upper half of a BAR", CmdRegionRead, le(uint64(0), 3, 4), "", unix.EINVAL},
	{"REGION_READ ROM", CmdRegionRead, le(uint64(0), 6, 4), "", unix.EINVAL},
	{"REGION_READ VGA", CmdRegionRead, le(uint64(0), 8, 1), "", unix.EINVAL},
	{"REGION_READ region", CmdRegionRead, le(uint64(0), 0x80000000, 4), "", unix.EINVAL},
	{"REGION_READ too much", CmdRegionRead, le(uint64(0), 7, 1<<20+8), "", unix.EINVAL},
	{"REGION_WRITE short", CmdRegionWrite, le(uint64(0)), "", unix.EINVAL},
	{"REGION_WRITE less data", CmdRegionWrite, le(uint64(0), 0, 8, 0), "", unix.EINVAL},
	{"REGION_WRITE more data", CmdRegionWrite, le(uint64(0), 0, 2, 0), "", unix.EINVAL},
	{"REGION_WRITE past the end", CmdRegionWrite, le(uint64(4096), 0, 4, 0), "", unix.EINVAL},
	{"REGION_WRITE descriptor", CmdRegionWrite, le(uint64(0), 0, 4, 0), "e", unix.EINVAL},
	{"WRITE_MULTI short", CmdWriteMulti, le(1), "", unix.EINVAL},
	{"WRITE_MULTI count", CmdWriteMulti, le(uint64(2), uint64(0), 0, 4, uint64(1)), "", unix.EINVAL},
	{"WRITE_MULTI count wraps", CmdWriteMulti, le(uint64(1)<<61, uint64(0), 0, 4, uint64(1)), "", unix.EINVAL},
	{"WRITE_MULTI nine bytes", CmdWriteMulti, le(uint64(1), uint64(0), 0, 9, uint64(1)), "", unix.EINVAL},
	{"WRITE_MULTI second bad", CmdWriteMulti, le(uint64(2), uint64(0), 0, 4, uint64(1), uint64(4096), 0, 4, uint64(1)), "", unix.EINVAL},

	{"DMA_MAP short", CmdDMAMap, le(0, 0), "", unix.EINVAL},
	{"DMA_MAP long", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10000), uint64(4096), 0), "", unix.EINVAL},
	{"DMA_MAP argsz", CmdDMAMap, le(31, 3, uint64(0), uint64(0x10000), uint64(4096)), "m", unix.EINVAL},
	{"DMA_MAP no right", CmdDMAMap, le(32, 0, uint64(0), uint64(0x10000), uint64(4096)), "m", unix.EINVAL},
	{"DMA_MAP unknown flag", CmdDMAMap, le(32, 0xb, uint64(0), uint64(0x10000), uint64(4096)), "m", unix.EINVAL},
	{"DMA_MAP empty", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10000), uint64(0)), "m", unix.EINVAL},
	{"DMA_MAP wraps", CmdDMAMap, le(32, 3, uint64(0), ^uint64(0xfff), uint64(8192)), "m", unix.EINVAL},
	{"DMA_MAP address not of a page", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10010), uint64(4096)), "m", unix.EINVAL},
	{"DMA_MAP size not of a page", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10000), uint64(4095)), "m", unix.EINVAL},
	{"DMA_MAP offset not of a page", CmdDMAMap, le(32, 3, uint64(8), uint64(0x10000), uint64(4096)), "m", unix.EINVAL},
	{"DMA_MAP past the file", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10000), uint64(0x11000)), "m", unix.EINVAL},
	{"DMA_MAP offset past the file", CmdDMAMap, le(32, 3, uint64(1)<<62, uint64(0x10000), uint64(4096)), "m", unix.EINVAL},
	{"DMA_MAP offset without descriptor", CmdDMAMap, le(32, 3, uint64(4096), uint64(0x10000), uint64(4096)), "", unix.EINVAL},
	{"DMA_MAP two descriptors", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10000), uint64(4096)), "mm", unix.EINVAL},
	{"DMA_MAP eventfd", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10000), uint64(4096)), "e", unix.EINVAL},
	{"DMA_MAP pipe", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10000), uint64(4096)), "p", unix.EINVAL},
	{"DMA_MAP over another", CmdDMAMap, le(32, 3, uint64(0), uint64(0x800000), uint64(8192)), "m", unix.EEXIST},
	{"DMA_MAP the very same", CmdDMAMap, le(32, 3, uint64(0), uint64(0x801000), uint64(4096)), "", unix.EEXIST},
	{"DMA_MAP read-only for writing", CmdDMAMap, le(32, 3, uint64(0), uint64(0x10000), uint64(4096)), "r", unix.EACCES},
	{"DMA_UNMAP short", CmdDMAUnmap, le(0, 0), "", unix.EINVAL},
	{"DMA_UNMAP argsz", CmdDMAUnmap, le(8, 0, uint64(4096), uint64(4096)), "", unix.EINVAL},
	{"DMA_UNMAP empty", CmdDMAUnmap, le(24, 0, uint64(4096), uint64(0)), "", unix.EINVAL},
	{"DMA_UNMAP wraps", CmdDMAUnmap, le(24, 0, ^uint64(0xfff), uint64(8192)), "", unix.EINVAL},
	{"DMA_UNMAP dirty bitmap", CmdDMAUnmap, le(48, 1, uint64(4096), uint64(4096), uint64(4096), uint64(8), uint64(0)), "", unix.EINVAL},
	{"DMA_UNMAP flags", CmdDMAUnmap, le(24, 4, uint64(4096), uint64(4096)), "", unix.EINVAL},
	{"DMA_UNMAP all and a range", CmdDMAUnmap, le(24, 2, uint64(0x10000), uint64(4096)), "", unix.EINVAL},
	{"DMA_UNMAP all and dirty", CmdDMAUnmap, le(24, 3, uint64(0), uint64(0)), "", unix.EINVAL},
	{"DMA_UNMAP begins inside a page", CmdDMAUnmap, le(24, 0, uint64(0x802800), uint64(0x800)), "", unix.EINVAL},
	{"DMA_UNMAP ends inside a page", CmdDMAUnmap, le(24, 0, uint64(0x800000), uint64(0x1fff)), "", unix.EINVAL},
	{"DMA_READ to the server", CmdDMARead, le(uint64(0), uint64(8)), "", unix.EINVAL},
	{"DMA_WRITE to the server", CmdDMAWrite, le(uint64(0), uint64(8), uint64(0)), "", unix.EINVAL},
	{"RESET with payload", CmdReset, le(0), "", unix.EINVAL},
	{"FEATURE short", CmdFeature, le(8), "", unix.EINVAL},
	{"FEATURE argsz", CmdFeature, le(7, 1<<16|1), "", unix.EINVAL},
	{"FEATURE get and set", CmdFeature, le(8, 3<<16|1), "", unix.EINVAL},
	{"FEATURE nothing asked", CmdFeature, le(8, 1), "", unix.EINVAL},
	{"FEATURE migration", CmdFeature, le(16, 1<<16|1), "", unix.ENOTTY},
	{"FEATURE probe", CmdFeature, le(8, 5<<16|1), "", unix.ENOTTY},
	{"MIG_DATA_READ", CmdMigDataRead, le(16, 8), "", unix.EOPNOTSUPP},
	{"MIG_DATA_WRITE", CmdMigDataWrite, le(16, 8, uint64(0)), "", unix.EOPNOTSUPP},
}

// TestRefusals sends each refusal and checks that the answer is only the errno, that descriptors
// are closed, that nothing reached the device, and that the connection still works. A command
// with the no-reply bit must be refused without an answer.
func TestRefusals(t *testing.T) {
	s, d := newServer(t)
	r := rawConnect(t, s)
	defer func() { _ = r.close() }()
	r.agree("{}")
	r.command(CommandMemory)
	r.must(CmdDMAMap, le(32, 3, uint64(0), uint64(0x801000), uint64(4096)))
	r.must(CmdDMAMap, le(32, 3, uint64(0), uint64(0x802000), uint64(8192)), memfd(t, 1<<16, 0))
	maps, files := s.DMA().Mappings()
	d.taken()
	ro := readOnly(t)
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			var fds []int
			for _, k := range c.fds {
				switch k {
				case 'm':
					fds = append(fds, memfd(t, 1<<16, 0))
				case 'e':
					fds = append(fds, eventfd(t))
				case 'p':
					fds = append(fds, pipe(t))
				case 'r':
					fds = append(fds, ro)
				}
			}
			before := openFDs(t)
			m := r.call(c.cmd, c.payload, fds...)
			if !m.isError() || unix.Errno(m.Error) != c.errno || len(m.body) != 0 {
				t.Fatalf("reply %+v with %d bytes, want %v", m.Header, len(m.body), c.errno)
			}
			r.send(raw(78, c.cmd, flagNoReply, c.payload), fds...)
			if m := r.must(CmdDeviceInfo, le(16, 0, 0, 0)); len(m.body) != deviceInfoSize {
				t.Fatalf("GET_INFO after it: %x", m.body)
			}
			if after := fdsAfter(t, before); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			if a := d.taken(); len(a) != 0 {
				t.Errorf("the device saw %+v", a)
			}
			if m, f := s.DMA().Mappings(); m != maps || f != files {
				t.Errorf("%d mappings of %d files, before %d of %d", m, f, maps, files)
			}
		})
	}
	if want := uint64(2 * len(refusals)); s.Stats().Refused != want {
		t.Errorf("%d refusals counted, want %d", s.Stats().Refused, want)
	}
}

func pipe(t testing.TB) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return int(w.Fd())
}

// readOnly returns a memfd that is sealed against writing.
func readOnly(t testing.TB) int {
	t.Helper()
	fd := memfd(t, 1<<16, 0)
	f, err := os.Open("/proc/self/fd/" + itoa(fd))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

// TestFatal sends messages that end a connection: with an error reply if one is possible, and
// without leaks.
func TestFatal(t *testing.T) {
	agreed := raw(1, CmdVersion, 0, hello("{}"))
	for _, c := range []struct {
		name  string
		first []byte // sent and answered before
		bytes []byte
		fds   int
		reply unix.Errno // 0: the connection just closes
	}{
		{"size below the header", agreed, le(uint16(7), uint16(4), 15, 0, 0), 1, unix.EINVAL},
		{"size zero", agreed, le(uint16(7), uint16(4), 0, 0, 0), 0, unix.EINVAL},
		{"size too large", agreed, le(uint16(7), uint16(8), 1<<20+16+17, 0, 0), 1, unix.EINVAL},
		{"size of all ones", agreed, le(uint16(7), uint16(8), 0xffffffff, 0, 0), 0, unix.EINVAL},
		{"reply that nobody waits for", agreed, raw(2, CmdSetIRQs, flagReply, nil), 1, 0},
		{"command before VERSION", nil, raw(2, CmdDeviceInfo, 0, le(16, 0, 0, 0)), 1, unix.EINVAL},
		{"unknown command before VERSION", nil, raw(2, 999, 0, le(uint16(0), uint16(1))), 0, unix.EINVAL},
		{"VERSION empty", nil, raw(2, CmdVersion, 0, nil), 0, unix.EINVAL},
		{"VERSION with a descriptor", nil, raw(2, CmdVersion, 0, hello("{}")), 1, unix.EINVAL},
		{"VERSION major", nil, raw(2, CmdVersion, 0, le(uint16(999), uint16(1))), 0, unix.EINVAL},
		{"VERSION without NUL", nil, raw(2, CmdVersion, 0, le(uint16(0), uint16(1), "{}")), 0, unix.EINVAL},
		{"VERSION NUL inside", nil, raw(2, CmdVersion, 0, hello("{}\x00{}")), 0, unix.EINVAL},
		{"VERSION brace", nil, raw(2, CmdVersion, 0, hello("{")), 0, unix.EINVAL},
		{"VERSION quote", nil, raw(2, CmdVersion, 0, hello(`"`)), 0, unix.EINVAL},
		{"VERSION capabilities", nil, raw(2, CmdVersion, 0, hello(`{"capabilities":"23"}`)), 0, unix.EINVAL},
		{"VERSION max_msg_fds text", nil, raw(2, CmdVersion, 0, hello(`{"capabilities":{"max_msg_fds":"foo"}}`)), 0, unix.EINVAL},
		{"VERSION max_msg_fds negative", nil, raw(2, CmdVersion, 0, hello(`{"capabilities":{"max_msg_fds":-1}}`)), 0, unix.EINVAL},
		{"VERSION max_data_xfer_size zero", nil, raw(2, CmdVersion, 0, hello(`{"capabilities":{"max_data_xfer_size":0}}`)), 0, unix.EINVAL},
		{"VERSION pgsizes text", nil, raw(2, CmdVersion, 0, hello(`{"capabilities":{"pgsizes":"foo"}}`)), 0, unix.EINVAL},
		{"VERSION pgsizes", nil, raw(2, CmdVersion, 0, hello(`{"capabilities":{"pgsizes":8192}}`)), 0, unix.EINVAL},
		{"VERSION twin_socket", nil, raw(2, CmdVersion, 0, hello(`{"capabilities":{"twin_socket":true}}`)), 0, unix.EINVAL},
		{"VERSION data too long", nil, raw(2, CmdVersion, 0, hello(strings.Repeat(" ", maxVersionData))), 0, unix.EINVAL},
		{"VERSION as a reply", nil, raw(2, CmdVersion, flagReply, hello("{}")), 0, 0},
		{"half a header", nil, raw(2, CmdVersion, 0, nil)[:9], 1, 0},
		{"half a message", agreed, raw(2, CmdSetIRQs, 0, le(20, 0x24, 2, 0, 1))[:30], 1, 0},
		{"nothing", nil, nil, 0, 0},
		{"more descriptors than can be", agreed, raw(2, CmdSetIRQs, 0, le(20, 0x24, 2, 0, 8)), recvFDs + 1, 0},
		{"far more descriptors than can be", agreed, raw(2, CmdSetIRQs, 0, le(20, 0x24, 2, 0, 8)), 100, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, d := newServer(t)
			var fds []int
			for range c.fds {
				fds = append(fds, eventfd(t))
			}
			before := openFDs(t)
			r := rawConnect(t, s)
			if c.first != nil {
				r.send(c.first)
				if m, ok := r.receive(); !ok || m.isError() {
					t.Fatalf("VERSION: %+v", m.Header)
				}
			}
			if len(c.bytes) > 0 {
				r.send(c.bytes, fds...)
			}
			if c.reply == 0 {
				// Only the end of our side can end an incomplete message.
				_ = unix.Shutdown(r.fd, unix.SHUT_WR)
			} else {
				m, ok := r.receive()
				if !ok || unix.Errno(m.Error) != c.reply || !m.isError() || len(m.body) != 0 {
					t.Fatalf("reply %+v %v, want %v", m.Header, ok, c.reply)
				}
			}
			if m, ok := r.receive(); ok {
				t.Fatalf("unexpected %+v", m.Header)
			}
			if err := r.close(); err == nil {
				t.Error("no reason for the end")
			}
			if after := fdsAfter(t, before); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			if a := d.taken(); len(a) != 0 {
				t.Errorf("the device saw %+v", a)
			}
			// The next client is served.
			r = rawConnect(t, s)
			r.agree("{}")
			if err := r.close(); !errors.Is(err, ErrGone) {
				t.Error(err)
			}
		})
	}
}

// TestSilent: a client that sends nothing does not stay connected.
func TestSilent(t *testing.T) {
	s, _ := newServer(t, func(c *Config) { c.Timeout = 10 * time.Millisecond })
	r := rawConnect(t, s)
	if m, ok := r.receive(); ok {
		t.Fatalf("unexpected %+v", m.Header)
	}
	if err := r.close(); !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
}

// TestSplit sends the same requests byte by byte, and in one piece with a descriptor at each end.
func TestSplit(t *testing.T) {
	s, d := newServer(t)
	r := rawConnect(t, s)
	defer func() { _ = r.close() }()
	var all []byte
	all = append(all, raw(1, CmdVersion, 0, hello("{}"))...)
	all = append(all, raw(2, CmdRegionWrite, 0, le(uint64(4), 7, 2, le(uint16(2))))...)
	all = append(all, raw(3, CmdRegionWrite, flagNoReply, le(uint64(8), 0, 4, 0x55667788))...)
	all = append(all, raw(4, CmdRegionRead, 0, le(uint64(8), 0, 4))...)
	check := func() {
		t.Helper()
		for _, id := range []uint16{1, 2, 4} {
			m, ok := r.receive()
			if !ok || m.ID != id || m.isError() {
				t.Fatalf("reply %+v, want id %d", m.Header, id)
			}
			if id == 4 && !bytes.Equal(m.body[16:], le(0x55667788)) {
				t.Fatalf("read %x", m.body)
			}
		}
	}
	for i := range all {
		r.send(all[i : i+1])
	}
	check()
	_ = d
	// In one piece, whose last message brings a descriptor.
	ev := eventfd(t)
	burst := all[len(all)-36-32:]
	r.send(burst)
	r.send(raw(5, CmdSetIRQs, 0, le(20, 0x24, 2, 0, 1)), ev)
	r.send(burst)
	for _, id := range []uint16{4, 5, 4} {
		m, ok := r.receive()
		if !ok || m.ID != id || m.isError() {
			t.Fatalf("reply %+v, want id %d", m.Header, id)
		}
	}
	r.command(CommandMemory | CommandMaster)
	if err := s.Interrupt(0); err != nil || count(t, ev) != 1 {
		t.Fatalf("the descriptor did not reach its message: %v", err)
	}
}

// FuzzStream sends any bytes to a server, with a descriptor on the first: it must answer or
// close, and must leak nothing.
func FuzzStream(f *testing.F) {
	v := raw(1, CmdVersion, 0, hello("{}"))
	f.Add([]byte{})
	f.Add(v)
	seed := append([]byte(nil), v...)
	seed = append(seed, raw(2, CmdRegionWrite, 0, le(uint64(4), 7, 2, le(uint16(6))))...)
	for i, c := range refusals {
		f.Add(append(append([]byte(nil), seed...), raw(uint16(i), c.cmd, i%2*flagNoReply, c.payload)...))
	}
	for _, p := range [][]byte{
		raw(2, CmdDMAMap, 0, le(32, 3, uint64(0), uint64(0x10000), uint64(4096))),
		raw(2, CmdDMAUnmap, 0, le(24, 2, uint64(0), uint64(0))),
		raw(2, CmdRegionRead, 0, le(uint64(0), 0, 4096)),
		raw(2, CmdRegionWrite, 0, le(uint64(expDevControl), 7, 2, le(uint16(0x8000)))),
		raw(2, CmdWriteMulti, 0, le(uint64(1), uint64(0), 4, 4, uint64(1))),
		raw(2, CmdReset, 0, nil),
		raw(2, CmdRegionWrite, 0, le(uint64(regGo), 1, 4, 0)),
	} {
		f.Add(append(append([]byte(nil), seed...), p...))
	}
	fd := memfd(f, 1<<16, 0)
	s, _ := newServer(f, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	f.Fuzz(func(t *testing.T, stream []byte) {
		before := openFDs(t)
		r := rawConnect(t, s)
		go func() { // read whatever it says
			_, _ = io.Copy(io.Discard, fdReader(r.fd))
		}()
		if len(stream) > 0 {
			_ = r.sock.send(stream, []int{fd}) // it may hang up before the end
		}
		_ = unix.Shutdown(r.fd, unix.SHUT_WR)
		err := <-r.ended
		r.sock.close()
		if err == nil {
			t.Error("no reason for the end")
		}
		if after := fdsAfter(t, before); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
		if m, n := s.DMA().Mappings(); m != 0 || n != 0 {
			t.Errorf("%d mappings of %d files left", m, n)
		}
	})
}

type fdReader int

func (r fdReader) Read(p []byte) (int, error) {
	n, err := unix.Read(int(r), p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}
