package mediate_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// likeQEMU is a proxy between a driver and a vfio-user server that behaves as QEMU 11.1 does for
// a guest with memory-backend-ram. It posts no writes. It takes a lock before it sends a request,
// releases it with the answer, and answers the server's DMA_READ and DMA_WRITE only under that
// lock. The server gets no descriptor of the memory that the driver maps.
type likeQEMU struct {
	driver *net.UnixConn
	server *net.UnixConn

	how     *atomic.Int32 // a behaviour
	big     sync.Mutex    // QEMU's BQL
	answers chan packet
	asked   chan packet
	ram     map[uint64]ram // under big, by DMA address
}

// How it answers the server's accesses.
const (
	answers int32 = iota
	isMute
	refuses
	lies   // about the address
	isSlow // 5 ms each
)

type ram struct {
	size, at uint64
	b        []byte
}

type packet struct {
	b   []byte
	fds []int
}

func (p packet) command() user.Command { return user.Command(binary.NativeEndian.Uint16(p.b[2:])) }

// The header's fields (spec, "Header").
const (
	flagsAt              = 8
	reply, noReply, fail = 1, 1 << 4, 1 << 5
)

func (p packet) flags() uint32 { return binary.NativeEndian.Uint32(p.b[flagsAt:]) }

func receive(c *net.UnixConn) (packet, error) {
	p := packet{b: make([]byte, user.HeaderSize)}
	oob := make([]byte, 256)
	for got, size := 0, user.HeaderSize; got < size; {
		n, oobn, _, _, err := c.ReadMsgUnix(p.b[got:], oob)
		if n == 0 && err == nil {
			err = io.EOF
		}
		if err != nil {
			return p, err
		}
		if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
			for i := range msgs {
				if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
					p.fds = append(p.fds, fds...)
				}
			}
		}
		if got += n; got == user.HeaderSize && size == user.HeaderSize {
			size = int(binary.NativeEndian.Uint32(p.b[4:]))
			p.b = append(p.b, make([]byte, size-user.HeaderSize)...)
		}
	}
	return p, nil
}

func send(c *net.UnixConn, p packet) error {
	var oob []byte
	if len(p.fds) > 0 {
		oob = unix.UnixRights(p.fds...)
	}
	n, _, err := c.WriteMsgUnix(p.b, oob, nil)
	if err == nil && n < len(p.b) {
		_, err = c.Write(p.b[n:])
	}
	for _, fd := range p.fds {
		_ = unix.Close(fd)
	}
	return err
}

// guest is the socket on which the driver of a node connects to likeQEMU.
type guest struct {
	path string
	how  atomic.Int32
	last atomic.Pointer[likeQEMU]
}

// startLikeQEMU listens for the driver of a node.
func startLikeQEMU(t testing.TB, server string) *guest {
	t.Helper()
	g := &guest{path: filepath.Join(t.TempDir(), "qemu.sock")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: g.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			all.Go(func() {
				s, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: server, Net: "unix"})
				if err != nil {
					_ = c.Close()
					return
				}
				q := &likeQEMU{driver: c, server: s, how: &g.how, answers: make(chan packet), asked: make(chan packet, 1), ram: map[uint64]ram{}}
				g.last.Store(q)
				q.run()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return g
}

// inject sends an additional request of its own.
func (g *guest) inject(command user.Command, body []byte) error {
	b := user.Header{ID: 1, Command: command, Flags: noReply, Size: uint32(user.HeaderSize + len(body))}.Append(nil)
	return g.last.Load().request(packet{b: append(b, body...)})
}

func (q *likeQEMU) run() {
	var all sync.WaitGroup
	over := func() { _ = q.driver.Close(); _ = q.server.Close() }
	all.Go(func() { // the I/O thread
		defer over()
		defer close(q.answers)
		defer close(q.asked)
		for {
			p, err := receive(q.server)
			if err != nil {
				return
			}
			if p.flags()&reply != 0 {
				q.answers <- p
			} else {
				q.asked <- p
			}
		}
	})
	all.Go(func() { // the main loop
		for p := range q.asked {
			q.big.Lock()
			err := q.dma(p)
			q.big.Unlock()
			if err != nil {
				over()
			}
		}
	})
	for {
		p, err := receive(q.driver)
		if err != nil {
			break
		}
		if err := q.request(p); err != nil {
			break
		}
	}
	over()
	for range q.answers { // so that the I/O thread ends
	}
	all.Wait()
	for _, r := range q.ram {
		_ = unix.Munmap(r.b)
	}
}

// request forwards a request, under the lock.
func (q *likeQEMU) request(p packet) error {
	q.big.Lock()
	defer q.big.Unlock()
	posted := p.flags()&noReply != 0
	binary.NativeEndian.PutUint32(p.b[flagsAt:], p.flags()&^noReply)
	command, body := p.command(), p.b[user.HeaderSize:]
	var m ram
	if command == user.CmdDMAMap && len(p.fds) == 1 {
		d, err := user.DecodeDMAMap(body)
		if err != nil {
			return err
		}
		b, err := unix.Mmap(p.fds[0], int64(d.Offset), int(d.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		m = ram{d.Size, d.Address, b}
		_ = unix.Close(p.fds[0])
		p.fds, d.Offset = nil, 0
		p.b = d.Append(p.b[:user.HeaderSize])
	}
	if err := send(q.server, p); err != nil {
		return err
	}
	answer, ok := <-q.answers
	if !ok {
		return io.EOF
	}
	done := answer.flags()&fail == 0
	if command == user.CmdDMAMap && m.b != nil && done {
		q.ram[m.at] = m
	}
	if command == user.CmdDMAUnmap && done {
		u, err := user.DecodeDMAUnmap(body)
		if err != nil {
			return err
		}
		for at, r := range q.ram {
			if at >= u.Address && at-u.Address < u.Size {
				_ = unix.Munmap(r.b)
				delete(q.ram, at)
			}
		}
	}
	if posted {
		return nil
	}
	return send(q.driver, answer)
}

// dma answers the server's access to the guest's memory.
func (q *likeQEMU) dma(p packet) error {
	a, data, err := user.DecodeDMAAccess(p.b[user.HeaderSize:])
	if err != nil {
		return err
	}
	how := q.how.Load()
	switch how {
	case isMute:
		return nil
	case isSlow:
		time.Sleep(5 * time.Millisecond)
	}
	out := a.Append(make([]byte, user.HeaderSize))
	h := user.Header{ID: binary.NativeEndian.Uint16(p.b), Command: p.command(), Flags: reply}
	held := false
	for at, r := range q.ram {
		if a.Address >= at && a.Address-at < r.size && a.Count <= r.size-(a.Address-at) {
			held = true
			if b := r.b[a.Address-at:][:a.Count]; h.Command == user.CmdDMARead {
				out = append(out, b...)
			} else {
				copy(b, data)
			}
		}
	}
	if how == lies {
		out[user.HeaderSize]++
	}
	if !held || how == refuses {
		h.Flags, h.Error, out = reply|fail, uint32(unix.EFAULT), out[:user.HeaderSize]
	}
	h.Size = uint32(len(out))
	h.Append(out[:0])
	return send(q.server, packet{b: out})
}

// TestFaultSuiteLikeQEMU is the suite for a driver in a guest whose memory the server cannot map:
// every walk and every byte is a message, and none is answered while the guest waits for a
// register.
func TestFaultSuiteLikeQEMU(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the suite over messages takes a while")
	}
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine {
		s, dir := startServer(t, bare)
		var connect []mediate.Connect
		for n := range 2 {
			g := startLikeQEMU(t, serve.SocketPath(dir, n))
			connect = append(connect, mediate.VFIOUser(g.path, user.Options{NoTwin: true}))
		}
		return drive(t, s, connect, bare)
	})
}

// drive makes the driver of nodes.
func drive(t *testing.T, s *serve.Machine, connect []mediate.Connect, workers bool) *machine {
	t.Helper()
	return &machine{Mediated: suite.Mediated{Machine: running(t, mediate.Config{Connect: connect, Workers: workers})}, server: s}
}

// readTime is the median time of a register read.
func readTime(t *testing.T, c *user.Client) time.Duration {
	t.Helper()
	d := make([]time.Duration, 1000)
	for i := range d {
		start := time.Now()
		if _, err := c.Read(int(device.PL), device.PLTimeoutUS, 4); err != nil {
			t.Fatal(err)
		}
		d[i] = time.Since(start)
	}
	slices.Sort(d)
	return d[len(d)/2]
}

// TestHostileGuests: whatever a guest does to its memory or its device during transfers delays no
// other node, and the node's next driver is served.
func TestHostileGuests(t *testing.T) {
	if testing.Short() {
		t.Skip("short: an unanswered access takes 5 s to be given up")
	}
	config := func(offset uint64, v uint16) []byte {
		a := user.RegionAccess{Offset: offset, Region: user.RegionConfig, Count: 2}.Append(nil)
		return binary.LittleEndian.AppendUint16(a, v)
	}
	const command, pm, exp = 4, 0x44, 0x68 // configuration space: the command register, PM control, device control
	for _, x := range []struct {
		name string
		how  int32
		act  func(g *guest) error
	}{
		{"mute", isMute, nil},
		{"refuses", refuses, nil},
		{"lies", lies, nil},
		{"slow", isSlow, nil},
		{"reset", answers, func(g *guest) error { return g.inject(user.CmdReset, nil) }},
		{"FLR", answers, func(g *guest) error { return g.inject(user.CmdRegionWrite, config(exp, 1<<15)) }},
		{"D3hot", answers, func(g *guest) error { return g.inject(user.CmdRegionWrite, config(pm, 3)) }},
		{"bus mastering off", isSlow, func(g *guest) error { return g.inject(user.CmdRegionWrite, config(command, user.CommandMemory)) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			s, dir := startServer(t, false, 3)
			other, err := user.Redial(t.Context(), serve.SocketPath(dir, 2), user.Options{}, func(c *user.Client) error { return c.SetCommand(user.CommandMemory) })
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			var guests []*guest
			var connect []mediate.Connect
			for n := range 2 {
				g := startLikeQEMU(t, serve.SocketPath(dir, n))
				guests = append(guests, g)
				connect = append(connect, mediate.VFIOUser(g.path, user.Options{NoTwin: true}))
			}
			t.Run("transfers", func(t *testing.T) {
				r := suite.NewRig(t, drive(t, s, connect, false), fault.PIA, false)
				src, dst := r.Map(t, 1<<20), r.Map(t, 1<<20)
				src[0] = 1
				quiet := readTime(t, other)
				guests[1].how.Store(x.how)
				for ch := range 8 {
					r.Start(ch, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst), Size: 1 << 20, DstNode: 1})
				}
				if x.act != nil {
					for range 20 {
						if err := x.act(guests[1]); err != nil {
							t.Fatal(err)
						}
					}
				}
				busy := readTime(t, other)
				t.Logf("p50 of a read on another node: %v without, %v with: %.2f times", quiet, busy, float64(busy)/float64(quiet))
			})
			c, err := user.Redial(t.Context(), serve.SocketPath(dir, 1), user.Options{}, func(c *user.Client) error {
				// The device keeps its configuration space, including D3hot.
				return errors.Join(c.PowerOn(), c.SetCommand(user.CommandMemory))
			})
			if err != nil {
				t.Fatal(err)
			}
			if v, err := c.Read(int(device.PL), device.PLNodeID, 4); err != nil || v != 1 {
				t.Errorf("the next driver reads ID %#x, %v", v, err)
			}
			c.Close()
			if ranges, files := s.Server(1).DMA().Mappings(); ranges+files != 0 {
				t.Errorf("%d mappings of %d files left", ranges, files)
			}
		})
	}
}
