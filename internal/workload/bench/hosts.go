package bench

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/netns"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/link/hosts"
)

// Values of the suite hosts, defined by this project.
const (
	hostsTable  = "hosts" // and hostsStream: they have a section of their own in docs/benchmarks.md
	hostsStream = "hosts-stream"
	hostsGroup  = "bench"
	hostsPDID   = 0x10 // below the blocks of the hosts
	linkWait    = 30 * time.Second
)

// hosts measures transfers between two machines, network namespaces with a pfd and an
// exanet-hostd each, beside transfers within one of the pfds and a bare TLS connection between the same
// machines.
func (r *run) hosts() (err error) {
	hostd := filepath.Join(filepath.Dir(r.PFD), "exanet-hostd")
	if _, err := os.Stat(hostd); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s: run `make build`", workload.ErrSkipped, hostd)
	}
	mesh, err := netns.New(2)
	if errors.Is(err, netns.ErrUnsupported) {
		return fmt.Errorf("%w: %w", workload.ErrSkipped, err)
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "exanet-hosts-")
	if err != nil {
		return errors.Join(err, mesh.Close())
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir), mesh.Close()) }()
	var list []hosts.New
	for i, name := range []string{"a", "b"} {
		list = append(list, hosts.New{Name: name, Address: mesh.Machine(i).Addr().String(), Nodes: 2})
	}
	if _, err := hosts.Init(dir, "bench", list, time.Now()); err != nil {
		return err
	}
	groups := filepath.Join(dir, "bench.groups")
	if err := outfile.Write(groups, fmt.Appendf(nil, "%d %s %#x\n", os.Getuid(), hostsGroup, hostsPDID)); err != nil {
		return err
	}
	var args [][]string
	for _, h := range list {
		args = append(args, []string{"--config", filepath.Join(dir, h.Name+".pfd.toml"), "--groups", groups})
	}
	return r.each(2, args, func(d []*pfd) (err error) {
		for i, h := range list {
			c := exec.Command(hostd, "--hosts", filepath.Join(dir, hosts.FileName), "--name", h.Name, "--pfd", d[i].process.Socket(), "--log-level", "error")
			c.Stderr, c.SysProcAttr = os.Stderr, &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
			if err := mesh.Machine(i).Start(c); err != nil {
				return err
			}
			defer func() {
				_ = c.Process.Signal(unix.SIGTERM) // fails only if it has ended
				err = errors.Join(err, c.Wait())
			}()
		}
		if err := awaitLink(r.ctx, d[0].client); err != nil {
			return err
		}
		x, y, err := tlsPair(mesh)
		if err != nil {
			return err
		}
		defer func() { _, _ = x.Close(), y.Close() }()
		return r.overHosts(mesh, d[0], d[1], x, y)
	})
}

// overHosts fills the tables of the suite hosts. x and y are the ends of the bare connection.
func (r *run) overHosts(mesh *netns.Mesh, a, b *pfd, x, y net.Conn) error {
	t := r.table(hostsTable, "Writes between two machines (gup, pa)", "us", "transfer", "present, in one pfd")
	one, two := r.open(a, 0, 1, "gup", "pa"), r.openAcross(a, b)
	type row struct{ size, times int }
	echo := make(chan row) // each size is answered with 64 bytes
	defer close(echo)
	go func() {
		for r := range echo {
			for range r.times {
				if _, err := io.CopyN(io.Discard, y, int64(r.size)); err != nil {
					return
				}
				if _, err := y.Write(make([]byte, 64)); err != nil {
					return
				}
			}
		}
	}()
	bare := func(size uint64, c *Cell) *turn {
		out, in := make([]byte, size), make([]byte, 64)
		return &turn{count: r.count(size), do: func(add func(*Cell, ...float64)) error {
			echo <- row{len(out), smallRow}
			for range smallRow {
				began := time.Now()
				if _, err := x.Write(out); err != nil {
					return err
				}
				if _, err := io.ReadFull(x, in); err != nil {
					return err
				}
				add(c, float64(time.Since(began))/float64(time.Microsecond))
			}
			return nil
		}}
	}
	turns := []*turn{bare(64, t.cell("64 bytes and back over TLS", "4 KiB"))}
	for _, k := range []struct {
		column string
		size   uint64
	}{{"4 KiB", smallSize}, {"64 KiB", 64 << 10}, {"1 MiB", largeSize}} {
		q := workload.PerfRun{Size: k.size}
		absent := q
		absent.Dst = 1
		turns = append(turns,
			r.transfers(one, q, t.cell("present, in one pfd", k.column), nil),
			r.transfers(two, q, t.cell("present, to the other machine", k.column), nil),
			r.transfers(one, absent, t.cell("absent, in one pfd", k.column), nil),
			r.transfers(two, absent, t.cell("absent, to the other machine", k.column), nil),
			bare(k.size, t.cell("as many bytes over TLS, and 64 back", k.column)))
	}
	if err := r.takeTurns(turns...); err != nil {
		return err
	}
	s := r.table(hostsStream, "1 MiB writes into present memory, eight in flight", "MiB/s", "transfer", "a bare TLS connection")
	chunk, in := make([]byte, 16<<10), make([]byte, 64)
	streams := func(column string, size int) error {
		rate := func(p *workload.Perf, name string) *turn {
			c := s.cell(name, column)
			return &turn{count: streamRounds, do: func(add func(*Cell, ...float64)) error {
				// It sleeps, as the process at the bare connection does: polling would take a processor.
				got, err := r.row(p, workload.PerfRun{Size: largeSize, Depth: 8, Time: r.Window, Sleep: true})
				if err == nil {
					_, perSecond, _ := got.Rate()
					add(c, perSecond) // a transfer is 1 MiB
				}
				return err
			}}
		}
		wire := s.cell("a bare TLS connection", column)
		turns := []*turn{rate(one, "in one pfd"), rate(two, "to the other machine"), {count: streamRounds, do: func(add func(*Cell, ...float64)) error {
			echo <- row{size, 1}
			began := time.Now()
			for n := 0; n < size; n += len(chunk) {
				if _, err := x.Write(chunk); err != nil {
					return err
				}
			}
			if _, err := io.ReadFull(x, in); err != nil {
				return err
			}
			add(wire, float64(size)/float64(largeSize)/time.Since(began).Seconds())
			return nil
		}}}
		if _, err := exec.LookPath("iperf3"); err == nil {
			c := s.cell("iperf3, TCP in plain", column)
			turns = append(turns, &turn{count: streamRounds, do: func(add func(*Cell, ...float64)) error {
				perSecond, err := iperf(r.ctx, mesh)
				if err == nil {
					add(c, perSecond/8/float64(largeSize))
				}
				return err
			}})
		}
		return r.takeTurns(turns...)
	}
	const column, slow = "as it is", "1 Gb/s (tbf)"
	if err := streams(column, 256<<20); err != nil {
		return err
	}
	for i := range 2 {
		if err := mesh.Machine(i).Run("tc", strings.Fields("qdisc add dev "+netns.Cable(1-i)+" root tbf rate 1gbit burst 256kb latency 20ms")...); err != nil {
			return err
		}
	}
	if err := streams(slow, 32<<20); err != nil {
		return err
	}
	s.note("Through 1 Gb/s the other machine has %.2fx the rate of the bare TLS connection.", s.Median("to the other machine", slow)/s.Median("a bare TLS connection", slow))
	s.note("The other machine has %.2fx the rate of a bare TLS connection that writes 16 KiB at a time (goal: at least 0.8x).",
		s.Median("to the other machine", column)/s.Median("a bare TLS connection", column))
	trip := t.Median("64 bytes and back over TLS", "4 KiB")
	at := func(row string) float64 { return t.Median(row, "4 KiB") }
	t.note("4 KiB, present: the other machine adds %.2fx a round trip of 64 bytes over TLS (goal: at most 1.5x).",
		(at("present, to the other machine")-at("present, in one pfd"))/trip)
	t.note("4 KiB: a fault adds %.1f us to the other machine, and %.1f us in one pfd; a round trip takes %.1f us (goal: at most 1.3x, and a round trip).",
		at("absent, to the other machine")-at("present, to the other machine"), at("absent, in one pfd")-at("present, in one pfd"), trip)
	return nil
}

// iperf returns the bits a second of one connection from machine 0 to machine 1.
func iperf(ctx context.Context, mesh *netns.Mesh) (perSecond float64, err error) {
	address := mesh.Machine(1).Addr().String()
	server := exec.CommandContext(ctx, "iperf3", "--server", "--one-off", "--bind", address)
	if err := mesh.Machine(1).Start(server); err != nil {
		return 0, err
	}
	defer func() {
		_ = server.Process.Kill() // fails only if it has ended
		_ = server.Wait()
	}()
	var got struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				PerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	for end := time.Now().Add(linkWait); ; { // until the server listens
		var out bytes.Buffer
		client := exec.CommandContext(ctx, "iperf3", "--client", address, "--time", "1", "--json")
		client.Stdout = &out
		if err = mesh.Machine(0).Start(client); err != nil {
			return 0, err
		}
		err = client.Wait()
		if err == nil {
			err = json.Unmarshal(out.Bytes(), &got)
		}
		if err == nil && got.Error == "" { // with --json it ends with 0 after an error, too
			break
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return 0, errors.Join(fmt.Errorf("iperf3: %s", out.Bytes()), err)
		}
		got.Error = ""
	}
	return got.End.Received.PerSecond, nil
}

// openAcross is open from node 0 of a to the first node of b.
func (r *run) openAcross(a, b *pfd) *workload.Perf {
	var p *workload.Perf
	if r.failed == nil {
		both, err := workload.Pair(r.ctx, a.client, b.client)
		if err == nil {
			p, err = workload.OpenPerf(r.ctx, both, workload.Options{
				Socket: a.process.Socket(), ToSocket: b.process.Socket(), From: 0, To: 2,
				Method: "gup", Policy: "pa", Group: hostsGroup, Command: r.Command,
			}, "")
		}
		if err != nil {
			p, r.failed = nil, fmt.Errorf("to the other machine: %w", err)
		}
	}
	a.perfs = append(a.perfs, p)
	return p
}

// awaitLink waits until the link of a pfd is up.
func awaitLink(ctx context.Context, c *control.Client) error {
	for end := time.Now().Add(linkWait); ; {
		r, err := c.Hosts(ctx)
		if err != nil {
			return err
		}
		if len(r.Hosts) > 0 && r.Hosts[0].State == control.HostUp {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the link does not come up: %+v", r.Hosts)
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// tlsPair returns a TLS connection from machine 0 to machine 1.
func tlsPair(mesh *netns.Mesh) (client, server *tls.Conn, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	var l net.Listener
	if err := mesh.Machine(1).Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(mesh.Machine(1).Addr().String(), "0"))
		return err
	}); err != nil {
		return nil, nil, err
	}
	defer l.Close()
	var x, y net.Conn
	if err := mesh.Machine(0).Do(func() (err error) {
		x, err = net.Dial("tcp", l.Addr().String())
		return err
	}); err != nil {
		return nil, nil, err
	}
	if y, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, x.Close())
	}
	// The peer is known: it is this process.
	client = tls.Client(x, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	server = tls.Server(y, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err = errors.Join(client.Handshake(), <-done); err != nil {
		_, _ = x.Close(), y.Close()
	}
	return client, server, err
}
