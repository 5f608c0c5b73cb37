package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/internal/workload"
)

// Parameters of the peers suite. Values are defined by this project.
const (
	peerRounds = 5               // runs of a peer; each is one sample, the median or mean that it prints
	peerTime   = 2 * time.Minute // bounds one run
)

// ErrPeer means that the output of another project's program cannot be parsed.
var ErrPeer = errors.New("output of a peer")

// peer is another project's program that copies bytes between two processes.
type peer struct {
	row, program, remedy string
	// server and client are arguments of env(1).
	server, client string
	parse          func(out string) (us float64, err error)
}

func peers() (list []peer) {
	for _, k := range []struct{ row, tls string }{{"UCX, shared memory", "shm"}, {"UCX, TCP", "tcp"}} {
		common := "UCX_TLS=" + k.tls + " ucx_perftest -p PORT"
		list = append(list, peer{k.row, "ucx_perftest", "apt-get install ucx-utils", common, common + " 127.0.0.1 -t ucp_put_lat -s SIZE -n COUNT -w 10 -f -v", parseUCX})
	}
	for _, k := range []struct{ row, provider string }{{"libfabric, shared memory", "shm"}, {"libfabric, TCP", "tcp"}} {
		common := "fi_pingpong -e rdm -S SIZE -I COUNT -p " + k.provider
		list = append(list, peer{k.row, "fi_pingpong", "apt-get install libfabric-bin", common + " -B PORT", common + " -P PORT 127.0.0.1", parsePingPong})
	}
	return list
}

// parseUCX returns the median from the output of ucx_perftest -f -v, which is CSV.
func parseUCX(out string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) >= 2 {
		names, values := strings.Split(lines[len(lines)-2], ","), strings.Split(lines[len(lines)-1], ",")
		if len(names) == len(values) && len(names) > 1 && names[1] == "50.0_percentile_lat" {
			return figure("ucx_perftest", out, values[1])
		}
	}
	return figure("ucx_perftest", out, "")
}

// pingPongLine is a line of fi_pingpong: bytes, #sent, #ack, total, time, MB/sec, usec/xfer,
// Mxfers/sec.
var pingPongLine = regexp.MustCompile(`(?m)^\w+ +\w+ +=\w+ +[\w.]+ +\S+s +\S+ +(\S+) +\S+$`)

func parsePingPong(out string) (float64, error) {
	return figure("fi_pingpong", out, submatch(pingPongLine, out))
}

// faultLine is a line of stress-ng: bogo ops (faults here), seconds of real, user and system
// time, and bogo ops per second of real time.
var faultLine = regexp.MustCompile(`(?m)^stress-ng: .* userfaultfd +\d+ +\S+ +\S+ +\S+ +(\S+) `)

func parseStress(out string) (float64, error) {
	rate, err := figure("stress-ng", out, submatch(faultLine, out))
	if err != nil {
		return 0, err
	}
	return 1e6 / rate, nil
}

func submatch(r *regexp.Regexp, text string) string {
	if m := r.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

func figure(program, out, text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 1e-6 && v <= 1e12) { // also refuses NaN
		return 0, fmt.Errorf("%w: %s prints %q", ErrPeer, program, out)
	}
	return v, nil
}

// installed reports whether a program is installed. If not, it adds a row that says how to
// install it.
func (r *run) installed(t *Table, row, column, program, remedy string) bool {
	_, err := exec.LookPath(program)
	if err != nil {
		t.cell(row+": not installed: "+remedy, column)
		r.missing = append(r.missing, program+": "+remedy)
	}
	return err == nil
}

// placed is a set of processors for the measuring thread and the processes that it starts.
type placed struct {
	name string
	set  unix.CPUSet
}

func (p placed) on() error {
	if err := unix.SchedSetaffinity(0, &p.set); err != nil {
		return fmt.Errorf("processors of this thread: %w", err)
	}
	return nil
}

// of returns the turn with its rounds run on the processors of p.
func (p placed) of(t *turn) *turn {
	do := t.do
	t.do = func(add func(*Cell, ...float64)) error { return errors.Join(p.on(), do(add)) }
	return t
}

// places returns the first and the last processor that this thread may use, and all of them.
func places() (first, last, all placed, err error) {
	first.name, last.name, all.name = "one processor", "two processors", "not pinned"
	if err := unix.SchedGetaffinity(0, &all.set); err != nil {
		return first, last, all, fmt.Errorf("processors of this thread: %w", err)
	}
	found := 0
	for n := 0; found < all.set.Count(); n++ {
		if !all.set.IsSet(n) {
			continue
		}
		if found++; found == 1 {
			first.set.Set(n)
		}
		if found == all.set.Count() {
			last.set.Set(n)
		}
	}
	return first, last, all, nil
}

// peers compares other projects' software with ours on the same processors: the server runs
// on the first one, the measuring process on the last.
func (r *run) peers() (err error) {
	first, last, all, err := places()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.on()) }()
	return errors.Join(r.transports(first, last, all), r.userfaultfd(first, last, all), r.servers(first, last))
}

// transports measures copying bytes from one process into another.
func (r *run) transports(first, last, all placed) error {
	t := r.table("peers", "Bytes into another process, by others' software", "us", "software", "ours, pinned alike")
	t.note("UCX: half a round trip of puts into memory that UCX allocates, shared if possible. libfabric: half a round trip of messages; Debian does not package its test of RMA (fabtests). Both reuse one buffer that was touched before, and do not check its bytes. Neither measures the cost of absent memory.")
	return r.each(2, [][]string{nil}, func(free []*pfd) error {
		if err := first.on(); err != nil {
			return err
		}
		return r.with(2, func(pinned *pfd) error {
			var turns []*turn
			for _, k := range []struct {
				row   string
				d     *pfd
				start placed
				at    placed
			}{{"ours, pinned alike", pinned, first, last}, {"ours, not pinned", free[0], all, all}} {
				if err := k.start.on(); err != nil {
					return err
				}
				for _, s := range []struct {
					size   uint64
					policy string
				}{{smallSize, "p1"}, {largeSize, "pa"}} {
					p := r.open(k.d, 0, 1, "gup", s.policy)
					for absent, state := range []string{"present", "absent"} {
						turns = append(turns, k.at.of(r.transfers(p, workload.PerfRun{Size: s.size, Dst: float64(absent)}, t.cell(k.row, sizeText(s.size)+" "+state), nil)))
					}
				}
			}
			for _, p := range peers() {
				if !r.installed(t, p.row, "4 KiB present", p.program, p.remedy) {
					continue
				}
				for _, size := range []uint64{smallSize, largeSize} {
					turns = append(turns, p.turn(r, t, first, last, size))
				}
			}
			return r.takeTurns(turns...)
		})
	})
}

// turn returns the case of a peer: each run is one sample. If a run fails, a note says so and
// the peer is not run again.
func (p peer) turn(r *run, t *Table, first, last placed, size uint64) *turn {
	c := t.cell(p.row, sizeText(size)+" present")
	k := &turn{count: peerRounds}
	k.do = func(add func(*Cell, ...float64)) error {
		us, err := p.once(r, first, last, size)
		if err != nil && r.ctx.Err() == nil {
			k.count = 0
			r.missing = append(r.missing, err.Error())
			t.note("%s: %v.", p.row, err)
			return nil
		}
		add(c, us)
		return err
	}
	return k
}

func (p peer) once(r *run, first, last placed, size uint64) (us float64, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("a port for %s: %w", p.program, err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err = errors.Join(err, l.Close()); err != nil {
		return 0, err
	}
	// libfabric's figure is a mean that includes the setup of its connection: use a high count.
	words := func(s string) []string {
		return strings.Fields(strings.NewReplacer("PORT", port, "SIZE", fmt.Sprint(size), "COUNT", fmt.Sprint(max(8*r.count(size), 10))).Replace(s))
	}
	ctx, stop := context.WithTimeout(r.ctx, peerTime)
	defer stop()
	if err := first.on(); err != nil {
		return 0, err
	}
	server, err := helper(ctx, "env", nil, words(p.server)...)
	if err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait() // it ends with its client or because of SIGTERM
		close(ended)
	}()
	defer func() { stop(); <-ended }()
	if err := last.on(); err != nil {
		return 0, err
	}
	for {
		out, err := exec.CommandContext(ctx, "env", words(p.client)...).CombinedOutput()
		if err == nil {
			return p.parse(string(out))
		}
		select {
		case <-ended: // the server had started: the client did not fail because it came too early
			return 0, fmt.Errorf("%s: %w: %s", p.client, err, out)
		case <-ctx.Done():
			return 0, fmt.Errorf("%s: %w: %w: %s", p.client, ctx.Err(), err, out)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// userfaultfd measures resolving a fault with userfaultfd.
func (r *run) userfaultfd(first, last, all placed) error {
	t := r.table("userfaultfd", "A page by userfaultfd", "us", "software", "")
	t.note("stress-ng: a fault of its own process, resolved by one of its threads. Ours: a whole transfer, in which pfd resolves a fault of another process (uffd, p1). On one processor the initiator sleeps.")
	if err := first.on(); err != nil {
		return err
	}
	return r.with(2, func(d *pfd) error {
		p := r.open(d, 0, 1, "uffd", "p1")
		var turns []*turn
		for _, at := range []placed{last, first} {
			// On one processor a polling initiator keeps pfd from running.
			q := workload.PerfRun{Size: smallSize, Sleep: at.name == first.name}
			absent := q
			absent.Dst = 1
			turns = append(turns, at.of(r.transfers(p, q, t.cell("ours: a write of 4 KiB, present", at.name), nil)),
				at.of(r.transfers(p, absent, t.cell("ours: a write of 4 KiB, absent", at.name), nil)))
		}
		const row = "stress-ng --userfaultfd"
		if r.installed(t, row, last.name, "stress-ng", "apt-get install stress-ng") {
			for _, at := range []placed{{last.name, all.set}, first} {
				turns = append(turns, at.of(&turn{count: peerRounds, do: func(add func(*Cell, ...float64)) error {
					ctx, stop := context.WithTimeout(r.ctx, peerTime)
					defer stop()
					out, err := exec.CommandContext(ctx, "stress-ng", "--userfaultfd", "1", "--userfaultfd-ops", fmt.Sprint(20*r.Count), "--metrics").CombinedOutput()
					if err != nil {
						return fmt.Errorf("stress-ng: %w: %s", err, out)
					}
					us, err := parseStress(string(out))
					add(t.cell(row, at.name), us)
					return err
				}}))
			}
		}
		return r.takeTurns(turns...)
	})
}

// servers measures reading a register over vfio-user from our server and from others'.
func (r *run) servers(first, last placed) error {
	if err := first.on(); err != nil {
		return err
	}
	t := r.table("servers", "A register read over vfio-user, by server", "us", "", echoRow)
	t.note("By messages over a socket, from the same client. The server and the echo run on the first processor, the client on the last or on the same one.")
	return r.served(func(dir string) error {
		list := []registerServer{{"ours", serve.SocketPath(dir, 0), 0, 0, 4}}
		const row, sample = "libvfio-user", "gpio-pci-idio-16"
		if r.installed(t, row, last.name, sample, "build it from source (Debian has no package) and put build/samples on PATH") {
			path := filepath.Join(dir, "peer.sock")
			ctx, stop := context.WithCancel(r.ctx)
			server, err := helper(ctx, sample, nil, path)
			if err != nil {
				stop()
				return err
			}
			defer func() {
				stop()
				_ = server.Wait()   // fails because of SIGTERM
				_ = os.Remove(path) // fails if the server has removed it
			}()
			list = append(list, registerServer{row, path, 2, 1, 1}) // BAR 2: input pins
		}
		return r.register(t, list, last, first)
	})
}
