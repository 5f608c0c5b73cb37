package daemon

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/rdma"
)

// startEngine runs a daemon over the emulated machine and returns it with a client.
func startEngine(t testing.TB, change ...func(*Config)) (*Daemon, *control.Client, context.Context) {
	t.Helper()
	cfg := Default()
	cfg.Socket = filepath.Join(t.TempDir(), "pfd.sock")
	for _, c := range change {
		c(&cfg)
	}
	m, err := Emulated(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	client, err := control.New(cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		cancel()
		if err := <-result; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	limit, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	return d, client, limit
}

// target is the role of a child that lets others write into an untouched buffer, and executes
// another program when it is told to. Its sockets stay open then, as those of a hostile process
// may.
func target(ctx context.Context, socket string, say func(string, ...any)) int {
	e, err := rdma.Attach(ctx, rdma.Options{Socket: socket, Node: 1, Group: "exec"})
	if err != nil {
		say("error %v", err)
		return 1
	}
	buf, err := unix.Mmap(-1, 0, targetSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		say("error %v", err)
		return 1
	}
	remote, err := e.Export(buf)
	if err != nil {
		say("error %v", err)
		return 1
	}
	say("%v", remote)
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return 0
	}
	say("%v", bytes.Equal(buf, pattern()))
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return 0
	}
	if err := keepSockets(); err != nil {
		say("error %v", err)
		return 1
	}
	if err := os.Setenv(childEnv, "hold"); err != nil {
		say("error %v", err)
		return 1
	}
	say("error %v", unix.Exec("/proc/self/exe", os.Args[:1], os.Environ()))
	return 1
}

const targetSize = 64 << 10

func pattern() []byte {
	b := make([]byte, targetSize)
	for i := range b {
		b[i] = byte(i>>8 ^ i)
	}
	return b
}

func TestWriteThenExec(t *testing.T) {
	_, client, ctx := startEngine(t)
	p := spawn(t, "target", "PFD_TEST_SOCKET="+client.Socket())
	remote, err := rdma.ParseRemote(p.line())
	if err != nil {
		t.Fatal(err)
	}
	e, err := rdma.Attach(ctx, rdma.Options{Socket: client.Socket(), Group: "exec"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	write := func() error {
		tr, err := e.Write(ctx, rdma.WriteRequest{Src: pattern(), Dst: remote})
		if err != nil {
			return err
		}
		return tr.Wait(ctx)
	}
	if err := write(); err != nil {
		t.Fatalf("write into untouched memory: %v", err)
	}
	if _, err := p.in.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	if got := p.line(); got != "true" {
		t.Fatalf("the target holds other bytes (%s)", got)
	}
	channels, err := client.Channels(ctx, 0)
	if err != nil || len(channels) != 1 || channels[0].State != "completed" || channels[0].SizeBytes != targetSize || channels[0].DstNode != 1 {
		t.Errorf("channels %+v, %v", channels, err)
	}
	if list, err := client.Transactions(ctx, control.AllNodes); err != nil || len(list) != 0 {
		t.Errorf("transactions %+v, %v after the transfer", list, err)
	}
	faults, err := client.Faults(ctx, 1, control.MaxFaults)
	if err != nil || len(faults) == 0 {
		t.Errorf("faults %+v, %v", faults, err)
	}

	// From here on the process is alive, has its sockets, and is another one.
	if _, err := p.in.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := p.line(); got != "holding" {
		t.Fatalf("the target says %q after its exec", got)
	}
	if err := write(); err == nil {
		t.Error("a write to an address space that is gone was reported complete")
	}
	for {
		domains, err := client.Domains(ctx, 1)
		if err != nil {
			t.Fatalf("the domain of the address space that is gone is still there: %v", err)
		}
		if len(domains) == 0 {
			break
		}
	}
}

// Both ways of answering a source fault carry the data.
func TestSourceFaults(t *testing.T) {
	for _, way := range []string{SourceFIFO, SourceTimeout} {
		t.Run(way, func(t *testing.T) {
			_, client, ctx := startEngine(t, func(c *Config) { c.SourceFaults, c.TimeoutUS = way, 2000 })
			e, err := rdma.Attach(ctx, rdma.Options{Socket: client.Socket(), Group: "self"})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			mem, err := unix.Mmap(-1, 0, 2*targetSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(mem)
			// Never touched: zeros must come, over what stands there.
			src, dst := mem[:targetSize], mem[targetSize:]
			copy(dst, pattern())
			remote, err := e.Export(dst)
			if err != nil {
				t.Fatal(err)
			}
			tr, err := e.Write(ctx, rdma.WriteRequest{Src: src, Dst: remote})
			if err != nil {
				t.Fatal(err)
			}
			if err := tr.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(dst, make([]byte, targetSize)) {
				t.Error("other bytes came")
			}
			counters, err := client.Counters(ctx, 0)
			if err != nil {
				t.Fatal(err)
			}
			value := map[string]uint64{}
			for _, c := range counters {
				value[c.Name] = c.Value
			}
			if value["faults_local_total"] == 0 {
				t.Error("no source fault was counted")
			}
			if way == SourceTimeout && (value["timeouts_total"] == 0 || value[control.CounterRAPF] != 0) {
				t.Errorf("%d time-outs and %d RAPFs, want time-outs alone", value["timeouts_total"], value[control.CounterRAPF])
			}
			if way == SourceFIFO && value[control.CounterRAPF] == 0 {
				t.Error("no RAPF was sent")
			}
		})
	}
}

// A process is told of the end of its attachment.
func TestEndIsToldToProcesses(t *testing.T) {
	d, client, ctx := startEngine(t)
	c, err := attach.Dial(ctx, control.AttachSocket(client.Socket()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, fds, err := c.Handshake(ctx, hello())
	if err != nil {
		t.Fatal(err)
	}
	defer fds.Close()
	pages := c.Pages()
	d.host.End(attach.ReasonKicked)
	buf := make([]byte, attach.MaxMessage)
	n, _, err := c.Receive(ctx, buf)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := attach.DecodeEnded(buf[:n]); err != nil || e.Reason != attach.ReasonKicked {
		t.Errorf("told %+v, %v", e, err)
	}
	if r, over := pages.Ended(); !over || r != attach.ReasonKicked {
		t.Errorf("the pages say %v, %v", r, over)
	}
}
