package serve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/vfio/user"
)

// roleEnv makes the test's program serve two nodes in the directory that it names.
const roleEnv = "EXANET_TEST_SERVE"

func TestMain(m *testing.M) {
	dir := os.Getenv(roleEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	s, err := New(Config{Nodes: 2})
	if err == nil {
		err = errors.Join(s.Run(ctx, dir, func() { fmt.Println("ready") }), s.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startProcess serves two nodes in a process of their own, and returns its pid.
func startProcess(t testing.TB) (pid int, dir string) {
	t.Helper()
	dir = t.TempDir()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), roleEnv+"="+dir)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Process.Signal(unix.SIGTERM), c.Wait()); err != nil {
			t.Error(err)
		}
	})
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid, dir
}

// usage describes the resources of a process.
type usage struct{ rss, fds, files int }

func usageOf(t testing.TB, pid int) (u usage) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	statm, err := os.ReadFile(dir + "statm")
	maps, err2 := os.ReadFile(dir + "maps")
	fds, err3 := os.ReadDir(dir + "fd")
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
	if err != nil {
		t.Fatal(err)
	}
	return usage{pages * os.Getpagesize(), len(fds), strings.Count(string(maps), "memfd:")}
}

// rawConn sends raw bytes to a server.
type rawConn struct {
	*net.UnixConn
	id uint16
}

func dialRaw(path string) (*rawConn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &rawConn{UnixConn: c}, nil
}

const noReply = 1 << 4 // of a header's flags (spec, "Header")

// message appends a message.
func (c *rawConn) message(b []byte, cmd user.Command, flags uint32, body []byte) []byte {
	c.id++
	b = user.Header{ID: c.id, Command: cmd, Flags: flags, Size: uint32(user.HeaderSize + len(body))}.Append(b)
	return append(b, body...)
}

func (c *rawConn) send(b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// agree negotiates the protocol and enables the device.
func (c *rawConn) agree() error {
	b := c.message(nil, user.CmdVersion, 0, user.Version{Major: user.Major, Minor: user.Minor}.Append(nil))
	access := user.RegionAccess{Offset: 4, Region: user.RegionConfig, Count: 2}.Append(nil)
	b = c.message(b, user.CmdRegionWrite, 0, append(access, user.CommandMemory|user.CommandMaster, 0))
	if err := c.send(b); err != nil {
		return err
	}
	return c.answers(2)
}

// answers reads n answers.
func (c *rawConn) answers(n int) error {
	var h [user.HeaderSize]byte
	for range n {
		if _, err := io.ReadFull(c, h[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.NativeEndian.Uint32(h[4:]))-user.HeaderSize); err != nil {
			return err
		}
	}
	return nil
}

// floods are messages that a client of node 0 sends until stop, each as one round with its number of
// answers.
var floods = []struct {
	name  string
	round func(c *rawConn, fd int) (b []byte, fds []int, answers int)
}{
	{"reads", func(c *rawConn, _ int) (b []byte, _ []int, n int) {
		for range 500 {
			b = c.message(b, user.CmdRegionRead, 0, user.RegionAccess{Offset: device.PLTimeoutUS, Region: uint32(device.PL), Count: 4}.Append(nil))
		}
		return b, nil, 500
	}},
	{"large reads", func(c *rawConn, _ int) ([]byte, []int, int) {
		return c.message(nil, user.CmdRegionRead, 0, user.RegionAccess{Region: uint32(device.BTCM), Count: uint32(device.BTCM.Size())}.Append(nil)), nil, 1
	}},
	{"posted writes", func(c *rawConn, _ int) (b []byte, _ []int, n int) {
		body := append(user.RegionAccess{Offset: device.PLTimeoutUS, Region: uint32(device.PL), Count: 4}.Append(nil), 1, 2, 3, 4)
		for range 500 {
			b = c.message(b, user.CmdRegionWrite, noReply, body)
		}
		return b, nil, 0
	}},
	{"large writes", func(c *rawConn, _ int) ([]byte, []int, int) {
		a := user.RegionAccess{Region: uint32(device.SMMU), Count: uint32(device.SMMU.Size())}
		return c.message(nil, user.CmdRegionWrite, 0, append(a.Append(nil), make([]byte, a.Count)...)), nil, 1
	}},
	{"multi-writes", func(c *rawConn, _ int) ([]byte, []int, int) {
		ws := make([]user.Write, 43000)
		for i := range ws {
			ws[i] = user.Write{Offset: device.PLTimeoutUS, Region: uint32(device.PL), Count: 4}
		}
		return c.message(nil, user.CmdWriteMulti, 0, user.AppendWrites(nil, ws)), nil, 1
	}},
	{"maps", func(c *rawConn, fd int) (b []byte, fds []int, n int) {
		for i := range uint64(300) {
			b = c.message(b, user.CmdDMAMap, 0, user.DMAMap{ArgSize: 32, Flags: user.DMARead | user.DMAWrite, Address: i << 13, Size: 4096}.Append(nil))
		}
		b = c.message(b, user.CmdDMAUnmap, 0, user.DMAUnmap{ArgSize: 24, Size: 1 << 40}.Append(nil))
		return b, []int{fd}, 301
	}},
	{"resets", func(c *rawConn, _ int) (b []byte, _ []int, n int) {
		for range 100 {
			b = c.message(b, user.CmdReset, 0, nil)
		}
		return b, nil, 100
	}},
	{"CTRL.reset", func(c *rawConn, _ int) (b []byte, _ []int, n int) {
		body := append(user.RegionAccess{Offset: device.PLCtrl, Region: uint32(device.PL), Count: 4}.Append(nil), device.CtrlReset, 0, 0, 0)
		for range 100 {
			b = c.message(b, user.CmdRegionWrite, 0, body)
		}
		return b, nil, 100
	}},
	{"nonsense", func(c *rawConn, fd int) (b []byte, fds []int, n int) {
		for i := range 300 {
			b = c.message(b, user.Command(i), 0, []byte{1, 2, 3, 4, 5, 6, 7, 8})
		}
		return b, []int{fd, fd, fd}, 300
	}},
}

// flood sends rounds until stop, counts them, and reports when some were sent.
func flood(path string, fd int, round func(*rawConn, int) ([]byte, []int, int), stop *atomic.Bool, rounds *atomic.Int64, begun func()) error {
	defer begun()
	c, err := dialRaw(path)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.agree(); err != nil {
		return err
	}
	due := make(chan int, 8) // this many are always in flight
	failed := make(chan error, 1)
	go func() {
		for n := range due {
			if err := c.answers(n); err != nil {
				failed <- err
				for range due {
				}
				return
			}
		}
		failed <- nil
	}()
	b, fds, n := round(c, fd) // built once: the load must be in the server, not here
	for !stop.Load() && err == nil {
		if err = c.send(b, fds...); err == nil {
			due <- n
			if rounds.Add(1) == 8 {
				begun()
			}
		}
	}
	close(due)
	return errors.Join(err, <-failed)
}

// reads returns the median time of a register read, and the 99th percentile.
func reads(t testing.TB, c *user.Client) (p50, p99 time.Duration) {
	t.Helper()
	d := make([]time.Duration, 2000)
	for i := range d {
		start := time.Now()
		if _, err := c.Read(int(device.PL), device.PLTimeoutUS, 4); err != nil {
			t.Fatal(err)
		}
		d[i] = time.Since(start)
	}
	slices.Sort(d)
	return d[len(d)/2], d[len(d)*99/100]
}

// flooded starts two nodes in a process of their own and a client of node 1, and returns the means to
// measure a flood of node 0.
func flooded(t testing.TB) (pid int, measure func(t testing.TB, round func(*rawConn, int) ([]byte, []int, int)) (quiet, busy time.Duration, text string)) {
	t.Helper()
	pid, dir := startProcess(t)
	other, err := user.Redial(t.Context(), SocketPath(dir, 1), user.Options{}, func(c *user.Client) error { return c.SetCommand(user.CommandMemory) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	fd, err := unix.MemfdCreate("dma", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, 4096)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	reads(t, other)
	return pid, func(t testing.TB, round func(*rawConn, int) ([]byte, []int, int)) (quiet, busy time.Duration, text string) {
		t.Helper()
		quiet, _ = reads(t, other)
		var stop atomic.Bool
		var rounds atomic.Int64
		begun, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- flood(SocketPath(dir, 0), fd, round, &stop, &rounds, sync.OnceFunc(func() { close(begun) }))
		}()
		<-begun
		busy, p99 := reads(t, other)
		stop.Store(true)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return quiet, busy, fmt.Sprintf("p50 of a read on the other node: %v without, %v with %d rounds: %.2f times (p99 %v)",
			quiet, busy, rounds.Load(), float64(busy)/float64(quiet), p99)
	}
}

// TestFloods: while the client of one node sends any message without end, another node answers. Its
// latency is printed. When the client is gone the server holds no more resources than before.
func TestFloods(t *testing.T) {
	pid, measure := flooded(t)
	before := usageOf(t, pid)
	for _, f := range floods {
		t.Run(f.name, func(t *testing.T) {
			for range 2 {
				_, _, text := measure(t, f.round)
				t.Log(text)
			}
			// The server detects the end of a client a moment later, and its memory shrinks with the
			// next garbage collection: at most two minutes later.
			after := usageOf(t, pid)
			for deadline := time.Now().Add(5 * time.Minute); after.over(before) && time.Now().Before(deadline); after = usageOf(t, pid) {
				time.Sleep(10 * time.Millisecond)
			}
			if after.over(before) {
				t.Errorf("%+v after it, %+v before", after, before)
			}
		})
	}
}

// BenchmarkFloods times a register read of another node under each flood: the median of some rounds'
// medians without and with it, and their ratio. The goal is at most 3.
func BenchmarkFloods(b *testing.B) {
	_, measure := flooded(b)
	for _, f := range floods {
		b.Run(f.name, func(b *testing.B) {
			var quiet, busy []time.Duration
			for b.Loop() {
				q, u, _ := measure(b, f.round)
				quiet, busy = append(quiet, q), append(busy, u)
			}
			slices.Sort(quiet)
			slices.Sort(busy)
			q, u := quiet[len(quiet)/2], busy[len(busy)/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(q.Nanoseconds())/1e3, "us-without")
			b.ReportMetric(float64(u.Nanoseconds())/1e3, "us-with")
			b.ReportMetric(float64(u)/float64(q), "times")
		})
	}
}

// over reports whether a process holds more than before.
func (u usage) over(before usage) bool {
	return u.rss > before.rss+rssSlack || u.fds > before.fds || u.files > before.files
}
