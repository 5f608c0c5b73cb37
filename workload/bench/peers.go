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
	"github.com/exanet/pfd/workload"
)

// Numbers of the peers' suite: a run of a peer gives one sample, the median or mean that it
// prints.
const (
	peerRounds = 5
	peerTime   = 2 * time.Minute // bounds one run
)

// ErrPeer says that a program of others prints what is not understood.
var ErrPeer = errors.New("output of a peer")

// peer is a program of others that moves bytes between two processes.
type peer struct {
	row, program, remedy string
	// server and client are the words of the two, behind env.
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

// parseUCX reads the median of ucx_perftest -f -v: lines of CSV.
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

// pingPongLine is fi_pingpong's: bytes, #sent, #ack, total, time, MB/sec, usec/xfer, Mxfers/sec.
var pingPongLine = regexp.MustCompile(`(?m)^\w+ +\w+ +=\w+ +[\w.]+ +\S+s +\S+ +(\S+) +\S+$`)

func parsePingPong(out string) (float64, error) {
	return figure("fi_pingpong", out, submatch(pingPongLine, out))
}

// faultLine is stress-ng's: bogo ops, which are faults here, seconds of real, user and system
// time, and bogo ops a second of real time.
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
	if err != nil || !(v >= 1e-6 && v <= 1e12) { // not a number, either
		return 0, fmt.Errorf("%w: %s prints %q", ErrPeer, program, out)
	}
	return v, nil
}

// installed looks for a program. Where it is missing the row says so, and how to get it.
func (r *run) installed(t *Table, row, column, program, remedy string) bool {
	_, err := exec.LookPath(program)
	if err != nil {
		t.cell(row+": not installed: "+remedy, column)
		r.missing = append(r.missing, program+": "+remedy)
	}
	return err == nil
}

// placed are processors that the measuring thread, and what it starts, is put on.
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

// of has a turn taken at its place.
func (p placed) of(t *turn) *turn {
	do := t.do
	t.do = func(add func(*Cell, ...float64)) error { return errors.Join(p.on(), do(add)) }
	return t
}

// places gives the first and the last processor that this thread may use, and all.
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

// peers is what others' software does on this machine, beside ours, on the same processors:
// whoever serves on the first one, whoever measures on the last.
func (r *run) peers() (err error) {
	first, last, all, err := places()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.on()) }()
	return errors.Join(r.transports(first, last, all), r.userfaultfd(first, last, all), r.servers(first, last))
}

// transports is bytes that get from one process into another.
func (r *run) transports(first, last, all placed) error {
	t := r.table("peers", "Bytes into another process, by others' software", "us", "software", "ours, pinned alike")
	t.note("UCX: half a round trip of puts into memory that UCX allocates, shared where it can. libfabric: half a round trip of messages; its test of RMA (fabtests) Debian has not. Both reuse one buffer, touched before, and their bytes are not checked: what absent memory costs them neither measures.")
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

// turn is the case of one run of a peer, which gives one sample. One that fails is told of
// and not run again.
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
	// libfabric's figure is a mean, the setting up of its connection included: over many.
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
		_ = server.Wait() // it ends with its client, or is told to end
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
		case <-ended: // it was there: this is no server that does not listen yet
			return 0, fmt.Errorf("%s: %w: %s", p.client, err, out)
		case <-ctx.Done():
			return 0, fmt.Errorf("%s: %w: %w: %s", p.client, ctx.Err(), err, out)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// userfaultfd is pages that a process brings in by userfaultfd.
func (r *run) userfaultfd(first, last, all placed) error {
	t := r.table("userfaultfd", "A page by userfaultfd", "us", "software", "")
	t.note("stress-ng: a fault of its own process, resolved by a thread of it. Ours: a whole transfer, in which pfd resolves a fault of another process (uffd, p1); asleep on one processor.")
	if err := first.on(); err != nil {
		return err
	}
	return r.with(2, func(d *pfd) error {
		p := r.open(d, 0, 1, "uffd", "p1")
		var turns []*turn
		for _, at := range []placed{last, first} {
			// On one processor whoever polls has others wait.
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

// servers is a register that is read over vfio-user, by who serves it.
func (r *run) servers(first, last placed) error {
	if err := first.on(); err != nil {
		return err
	}
	t := r.table("servers", "A register read over vfio-user, by who serves it", "us", "", echoRow)
	t.note("By messages over a socket, from the same client: whoever serves, and echoes, is on the first processor, the client on the last, or on the same.")
	return r.served(func(dir string) error {
		list := []registerServer{{"ours", serve.SocketPath(dir, 0), 0, 0, 4}}
		const row, sample = "libvfio-user", "gpio-pci-idio-16"
		if r.installed(t, row, last.name, sample, "build its sources, which Debian has not, and put build/samples on PATH") {
			path := filepath.Join(dir, "peer.sock")
			ctx, stop := context.WithCancel(r.ctx)
			server, err := helper(ctx, sample, nil, path)
			if err != nil {
				stop()
				return err
			}
			defer func() {
				stop()
				_ = server.Wait()   // it was told to end
				_ = os.Remove(path) // it is gone where the server took it
			}()
			list = append(list, registerServer{row, path, 2, 1, 1}) // BAR 2: input pins
		}
		return r.register(t, list, last, first)
	})
}
