package serve

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/vfio/user"
)

const (
	lastCommand = 20 // higher numbers are undefined (spec, "Commands"); one of them is tried, too
	mostFDs     = 253
)

// talk connects a client, negotiates, sends b with descriptors, and reads the answers.
func talk(path string, b []byte, fds ...int) error {
	c, err := dialRaw(path)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.agree(); err != nil {
		return err
	}
	return c.hearOut(b, fds...)
}

// hearOut sends b and nothing more, and reads to the end. The server may disconnect meanwhile.
func (c *rawConn) hearOut(b []byte, fds ...int) error {
	if len(b) > 0 {
		if err := c.send(b, fds...); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			return err
		}
	}
	if err := c.CloseWrite(); err != nil && !errors.Is(err, unix.ENOTCONN) {
		return err
	}
	_, err := io.Copy(io.Discard, c)
	if errors.Is(err, unix.ECONNRESET) {
		err = nil
	}
	return err
}

// plausible is a body for a command, long enough to be parsed.
func plausible(rng *rand.Rand) []byte {
	b := make([]byte, 8*rng.IntN(9))
	for i := range b {
		if rng.IntN(3) == 0 {
			b[i] = byte(rng.Uint32())
		}
	}
	if len(b) > 0 {
		b[0] = byte(len(b)) // argsz
	}
	return b
}

// badInput are the messages of clients of node 0.
var badInput = []struct {
	name string
	say  func(path string, files map[string]int) error
}{
	{"headers cut at each byte", func(path string, _ map[string]int) (err error) {
		for cmd := range user.Command(lastCommand + 2) {
			for n := range user.HeaderSize {
				b := new(rawConn).message(nil, cmd, 0, make([]byte, 32))
				err = errors.Join(err, talk(path, b[:n]))
			}
		}
		return err
	}},
	{"sizes 0 to 2^32-1", func(path string, _ map[string]int) (err error) {
		var sizes []uint32
		for s := range uint32(40) {
			sizes = append(sizes, s)
		}
		for bit := 6; bit <= 32; bit++ {
			s := uint32(1<<bit - 1)
			sizes = append(sizes, s-1, s, s+1, s+user.HeaderSize)
		}
		for cmd := range user.Command(lastCommand + 2) {
			for _, s := range sizes {
				b := user.Header{ID: 9, Command: cmd, Size: s}.Append(nil)
				err = errors.Join(err, talk(path, append(b, make([]byte, 64)...)))
			}
		}
		return err
	}},
	{"descriptors with every command", func(path string, files map[string]int) (err error) {
		for cmd := range user.Command(lastCommand + 2) {
			for name, fd := range files {
				for _, n := range []int{1, 2, 8, 9, 64, mostFDs} {
					list := make([]int, n)
					for i := range list {
						list[i] = fd
					}
					b := new(rawConn).message(nil, cmd, 0, make([]byte, 32))
					if e := talk(path, b, list...); e != nil {
						err = errors.Join(err, fmt.Errorf("command %d with %d of %s: %w", cmd, n, name, e))
					}
				}
			}
		}
		return err
	}},
	{"messages cut at each byte, with a descriptor", func(path string, files map[string]int) (err error) {
		b := new(rawConn).message(nil, user.CmdDMAMap, 0, user.DMAMap{ArgSize: 32, Flags: user.DMARead | user.DMAWrite, Size: 4096}.Append(nil))
		b = new(rawConn).message(b, user.CmdReset, 0, nil)
		for n := 1; n <= len(b); n++ {
			err = errors.Join(err, talk(path, b[:n], files["memfd"]))
		}
		return err
	}},
	{"every VERSION", func(path string, _ map[string]int) (err error) {
		numbers := []uint16{0, 1, 2, 3, 7, 8, 255, 256, 1<<15 - 1, 1 << 15, 1<<16 - 1}
		for _, major := range numbers {
			for _, minor := range numbers {
				for _, caps := range []string{"", "{}\x00", "{}", "\x00", "{\"capabilities\":{}}\x00", "{\"capabilities\":{\"max_msg_fds\":1e99}}\x00", "[[[[[[[[[[\x00", "\xff\xfe\x00"} {
					c, e := dialRaw(path)
					if e != nil {
						return errors.Join(err, e)
					}
					body := append([]byte{byte(major), byte(major >> 8), byte(minor), byte(minor >> 8)}, caps...)
					err = errors.Join(err, c.hearOut(c.message(nil, user.CmdVersion, 0, body)), c.Close())
				}
			}
		}
		return err
	}},
	{"overlaps, edges, huge files", func(path string, files map[string]int) (err error) {
		edges := []uint64{0, 1, 4095, 4096, 8192, 1<<62 - 4096, 1 << 62, 1 << 63, ^uint64(8191), ^uint64(4095), ^uint64(0)}
		for name, fd := range files {
			c, e := dialRaw(path)
			if e != nil {
				return errors.Join(err, e)
			}
			if e := c.agree(); e != nil {
				return errors.Join(err, e)
			}
			for _, addr := range edges {
				for _, size := range edges {
					for _, off := range edges {
						b := c.message(nil, user.CmdDMAMap, 0, user.DMAMap{ArgSize: 32, Flags: user.DMARead | user.DMAWrite, Offset: off, Address: addr, Size: size}.Append(nil))
						if e := errors.Join(c.send(b, fd), c.answers(1)); e != nil {
							return errors.Join(err, fmt.Errorf("%s: map %#x+%#x of %#x: %w", name, addr, size, off, e))
						}
					}
					b := c.message(nil, user.CmdDMAUnmap, 0, user.DMAUnmap{ArgSize: 24, Address: size, Size: addr}.Append(nil))
					if e := errors.Join(c.send(b), c.answers(1)); e != nil {
						return errors.Join(err, fmt.Errorf("unmap %#x+%#x: %w", size, addr, e))
					}
				}
			}
			err = errors.Join(err, c.hearOut(nil), c.Close())
		}
		return err
	}},
	{"a thousand connects in turn", func(path string, _ map[string]int) (err error) {
		for range 1000 {
			err = errors.Join(err, talk(path, nil))
		}
		return err
	}},
	{"a thousand connects at once", func(path string, _ map[string]int) error {
		var all sync.WaitGroup
		errs := make(chan error, 1000)
		for i := range cap(errs) {
			all.Go(func() {
				c, err := dialRaw(path)
				if errors.Is(err, unix.EAGAIN) {
					return // the listener's queue is full
				}
				if err == nil {
					err = errors.Join(c.hearOut([]byte("VERSION?")[:i%9]), c.Close())
				}
				errs <- err
			})
		}
		all.Wait()
		close(errs)
		var err error
		for e := range errs {
			err = errors.Join(err, e)
		}
		return err
	}},
	{"anything", func(path string, files map[string]int) (err error) {
		for i := range uint64(500) {
			rng := rand.New(rand.NewPCG(i, 7))
			var b []byte
			c := new(rawConn)
			for range 20 {
				b = c.message(b, user.Command(rng.IntN(lastCommand+1)), uint32(rng.IntN(2)*noReply), plausible(rng))
			}
			err = errors.Join(err, talk(path, b, files["memfd"], files["eventfd"]))
		}
		return err
	}},
}

// TestBadInput: after any message of clients of one node, another node answers, the next client is
// served, and the server holds no more resources than before.
func TestBadInput(t *testing.T) {
	pid, dir := startProcess(t)
	other, err := user.Redial(t.Context(), SocketPath(dir, 1), user.Options{}, func(c *user.Client) error { return c.SetCommand(user.CommandMemory) })
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	files := map[string]int{}
	for name, size := range map[string]int64{"memfd": 1 << 20, "an empty memfd": 0, "a memfd of 2^62 bytes": 1 << 62} {
		fd, err := unix.MemfdCreate("bad", unix.MFD_CLOEXEC)
		if err == nil {
			files[name], err = fd, unix.Ftruncate(fd, size)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var ends [2]int
	if files["eventfd"], err = unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil {
		err = unix.Pipe2(ends[:], unix.O_CLOEXEC)
	}
	if err != nil {
		t.Fatal(err)
	}
	files["a pipe"], files["its other end"] = ends[1], ends[0]
	defer func() {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
	}()
	before := usageOf(t, pid)
	for _, bad := range badInput {
		t.Run(bad.name, func(t *testing.T) {
			began := time.Now()
			if err := bad.say(SocketPath(dir, 0), files); err != nil {
				t.Error(err)
			}
			if v, err := other.Read(int(device.PL), device.PLNodeID, 4); v != 1 || err != nil {
				t.Errorf("the other node reads %#x, %v", v, err)
			}
			next := client{t, connect(t, dir)}
			if v := next.read(device.PL, device.PLNodeID, 4); v != 0 {
				t.Errorf("the next client reads %#x", v)
			}
			next.Close()
			after := usageOf(t, pid)
			for end := time.Now().Add(5 * time.Minute); after.over(before) && time.Now().Before(end); after = usageOf(t, pid) {
				time.Sleep(10 * time.Millisecond)
			}
			if after.over(before) {
				t.Errorf("%+v after it, %+v before", after, before)
			}
			t.Logf("%v; %+v after it, %+v before", time.Since(began).Round(time.Millisecond), after, before)
		})
	}
}
