package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/vfio/user"
)

// Parameters of the device suite. Values are defined by this project.
const (
	registerRound = 500 // register reads in a round
	pingSize      = 64  // bytes of a message
)

// EchoCommand is the command of Lab.Program that runs Echo.
const EchoCommand = "test-echo"

// Echo sends back the messages that it reads from descriptor 3, until the other end closes.
func Echo() {
	var b [pingSize]byte
	for exchange(3, unix.Read, b[:]) == nil && exchange(3, unix.Write, b[:]) == nil {
	}
}

// served runs f while another process serves two nodes at sockets in dir.
func (r *run) served(f func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "exanet-")
	if err != nil {
		return fmt.Errorf("directory for sockets: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, stop := context.WithCancel(r.ctx)
	server, err := helper(ctx, r.Program, nil, "emu", "serve", "--nodes", "2", "--socket-dir", dir)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		_ = server.Wait() // fails because of SIGTERM
	}()
	return f(dir)
}

// device compares writes of 4 KiB by a pfd whose nodes are in another process, with queues in
// memory and with registers alone, to those by a pfd that contains its nodes.
func (r *run) device() error { return r.served(r.devices) }

func (r *run) devices(dir string) error {
	_, _, all, err := places()
	if err != nil {
		return err
	}
	all.name = "time"
	t := r.table("register", "A register read over vfio-user", "us", "", echoRow)
	if err := r.register(t, []registerServer{{"register read over the socket", serve.SocketPath(dir, 0), 0, 0, 4}}, all); err != nil {
		return err
	}
	device := fmt.Sprintf("vfio-user:%s,%s", serve.SocketPath(dir, 0), serve.SocketPath(dir, 1))
	w := r.table("device", "Writes of 4 KiB with the device in a process of its own (gup, p1)", "us", "device", "present")
	m := r.table("messages", "What a fault over vfio-user takes", "", "", "")
	for _, k := range []struct {
		row  string
		args []string
	}{{"vfio-user", []string{"--device", device}}, {"vfio-user, by registers alone", []string{"--device", device, "--registers"}}, {"in pfd", nil}} {
		// One after the other: a device has one driver.
		if err := r.with(2, func(d *pfd) error {
			p := r.open(d, 0, 1, "gup", "p1")
			if err := r.takeTurns(r.transfers(p, workload.PerfRun{Size: smallSize}, w.cell(k.row, "present"), nil),
				r.transfers(p, workload.PerfRun{Size: smallSize, Dst: 1}, w.cell(k.row, "absent"), nil)); err != nil {
				return err
			}
			if k.row == "vfio-user" {
				return r.messages(d, m)
			}
			return nil
		}, k.args...); err != nil {
			return err
		}
	}
	return nil
}

// exchange reads or writes all of b.
func exchange(fd int, call func(int, []byte) (int, error), b []byte) error {
	for len(b) > 0 {
		n, err := call(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return unix.EPIPE
		default:
			b = b[n:]
		}
	}
	return nil
}

// helperGrace is the time from SIGTERM until a helper is killed. Defined by this project.
const helperGrace = 2 * time.Second

// helper starts a process that ends with this one, and with ctx.
func helper(ctx context.Context, program string, files []*os.File, args ...string) (*exec.Cmd, error) {
	c := exec.CommandContext(ctx, program, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = helperGrace // fi_pingpong may hang in its signal handler
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	c.ExtraFiles, c.Stderr = files, os.Stderr
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	return c, nil
}

// registerServer is a device of vfio-user and a register of it.
type registerServer struct {
	row, path      string
	region, offset int
	size           int
}

// echoRow is the row that register reads are compared with.
const echoRow = "64 bytes there and back between two processes"

// register measures reads of registers and plain exchanges of messages, with the reader at
// each place of at. They take turns, so that a disturbance affects all of them.
func (r *run) register(t *Table, servers []registerServer, at ...placed) (err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), EchoCommand)
	echoCtx, stop := context.WithCancel(r.ctx)
	echo, err := helper(echoCtx, r.Program, []*os.File{theirs}, EchoCommand)
	_ = theirs.Close() // the helper has it
	defer func() {
		err = errors.Join(err, unix.Close(fds[0]))
		stop()
		if echo != nil {
			_ = echo.Wait() // it ends because its socket is closed or because of SIGTERM
		}
	}()
	if err != nil {
		return err
	}
	var buf [pingSize]byte
	var turns []*turn
	rounds := func(row string, f func() error) {
		for _, p := range at {
			c := t.cell(row, p.name)
			turns = append(turns, p.of(&turn{count: registerRound * max(r.Count/50, 1), do: func(add func(*Cell, ...float64)) error {
				took := make([]float64, registerRound)
				for i := range took {
					start := time.Now()
					if err := f(); err != nil {
						return err
					}
					took[i] = float64(time.Since(start).Nanoseconds()) / 1e3
				}
				add(c, took...)
				return nil
			}}))
		}
	}
	rounds(echoRow, func() error {
		return errors.Join(exchange(fds[0], unix.Write, buf[:]), exchange(fds[0], unix.Read, buf[:]))
	})
	for _, s := range servers {
		client, err := user.Redial(r.ctx, s.path, user.Options{}, func(c *user.Client) error { return c.SetCommand(user.CommandMemory) })
		if err != nil {
			return fmt.Errorf("the device %s: %w", s.path, err)
		}
		defer client.Close()
		rounds(s.row, func() error {
			_, err := client.Read(s.region, uint64(s.offset), s.size)
			return err
		})
	}
	return r.takeTurns(turns...)
}

// remoteFaults is the number of faults over which messages averages. Defined by this project.
const remoteFaults = 64

// messages counts the messages and mapped pages that a fault of 4 KiB adds with a device in
// another process.
func (r *run) messages(d *pfd, t *Table) (err error) {
	ctx := r.ctx
	idle, err := d.metrics(ctx)
	if err != nil {
		return err
	}
	put := func(row string, v float64) { t.cell(row, "count").Samples = []float64{v} }
	put("bytes pinned by an idle pfd of two nodes", idle.sum("exanet_pinned_bytes"))
	put("KiB of its tables and queues, which the kernel's VFIO pins", idle.sum("exanet_window_tables_bytes")/1024)
	var ends [2]*rdma.Endpoint
	var bufs [2]*rdma.Buffer
	defer func() {
		for _, e := range ends {
			if e != nil {
				err = errors.Join(err, e.Close())
			}
		}
	}()
	const apart = 4 // pages from one fault to the next, so that no fault maps the next one's page
	for i := range ends {
		if ends[i], err = rdma.Attach(ctx, rdma.Options{
			Socket: d.process.Socket(), Node: device.NodeID(i), Group: "remote", Method: rdma.MethodGUP, Policy: rdma.PolicyPIO,
		}); err != nil {
			return err
		}
		if bufs[i], err = ends[i].Alloc((1 + apart*remoteFaults) * device.PageSize); err != nil {
			return err
		}
	}
	bufs[0].Bytes()[0] = 1
	write := func(page int) error {
		to, err := ends[1].ExportVA(bufs[1].VA()+device.VA(page)<<device.PageShift, device.PageSize)
		if err != nil {
			return err
		}
		defer ends[1].Unexport(to)
		t, err := ends[0].Write(ctx, rdma.WriteRequest{Src: bufs[0].Bytes()[:device.PageSize], Dst: to})
		if err == nil {
			err = t.Wait(ctx)
		}
		return err
	}
	// each returns the messages sent and awaited and the pages mapped, per transfer.
	each := func() (sent, awaited, mapped float64, err error) {
		if err := write(0); err != nil { // so that the source is mapped
			return 0, 0, 0, err
		}
		before, err := d.metrics(ctx)
		if err != nil {
			return 0, 0, 0, err
		}
		for i := range remoteFaults {
			if err := write(1 + apart*i); err != nil {
				return 0, 0, 0, err
			}
		}
		after, err := d.metrics(ctx)
		since := func(name string) float64 { return (after.sum(name) - before.sum(name)) / remoteFaults }
		return since("exanet_device_messages_total"), since("exanet_device_messages_awaited_total"), since("exanet_window_mapped_bytes") / device.PageSize, err
	}
	sent, awaited, mapped, err := each()
	if err != nil {
		return err
	}
	sentThere, awaitedThere, mappedThere, err := each()
	if err != nil {
		return err
	}
	if mappedThere != 0 {
		return fmt.Errorf("a write into a present page mapped %.2f pages, want 0", mappedThere)
	}
	put("messages that a fault adds", sent-sentThere)
	put("those of them that are awaited", awaited-awaitedThere)
	put("further pages that a fault maps", mapped-1)
	return nil
}

// metrics are a pfd's metrics by name and labels.
type metrics map[string]float64

func (d *pfd) metrics(ctx context.Context) (metrics, error) {
	text, err := d.client.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	m := metrics{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			m[name] = v
		}
	}
	return m, nil
}

// sum returns the sum of a metric over its labels.
func (m metrics) sum(name string) (sum float64) {
	for k, v := range m {
		if k == name || strings.HasPrefix(k, name+"{") {
			sum += v
		}
	}
	return sum
}
