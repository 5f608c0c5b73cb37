package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/netns"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/link/hosts"
)

// inUserNamespace is set in the process that demo --hosts starts in a user namespace of its own. Defined
// by this project.
const inUserNamespace = "EXANET_DEMO_USER_NAMESPACE"

// Values of the demo with two hosts, defined by this project.
const (
	demoGroup = "demo"
	demoPDID  = 0x10             // first PDID of the group, below those of the hosts
	demoWait  = 30 * time.Second // for a link to change its state
)

// demoHost is a machine of the demo.
type demoHost struct {
	name, socket string // socket is a name that is replaced in command lines
	machine      *netns.Machine
	pfd          *workload.DaemonProcess
	hostd        *exec.Cmd
	client       *control.Client
}

// hostsDemo is the state of a running demo with two hosts.
type hostsDemo struct {
	demo
	bin, dir string
	mesh     *netns.Mesh
	hosts    []*demoHost
}

// demoHosts shows transfers between two machines, which are network namespaces.
func (a *app) demoHosts(ctx context.Context, bin string) (err error) {
	d := &hostsDemo{demo: demo{app: a, ctl: filepath.Join(bin, "exanetctl"), names: map[string]string{}}, bin: bin}
	if _, err := os.Stat(filepath.Join(bin, "exanet-hostd")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: run `make build`, or name its directory with --bin", err)
	}
	// The processes end with the thread that started them.
	runtime.LockOSThread()
	d.mesh, err = netns.New(2)
	if errors.Is(err, netns.ErrUnsupported) && os.Getenv(inUserNamespace) == "" {
		return d.again(ctx)
	}
	if err != nil {
		return err
	}
	d.dir, err = os.MkdirTemp("", "exanet-hosts-")
	defer func() {
		err = errors.Join(err, d.stop(), os.RemoveAll(d.dir), d.mesh.Close())
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("demo: interrupted: %w", context.Cause(ctx))
		}
	}()
	for _, step := range []func(context.Context) error{d.start, d.transfers, d.cable, d.sum} {
		if err == nil {
			err = step(ctx)
		}
	}
	return err
}

// again runs this program once more in a user namespace of its own, in which it may make networks.
func (d *hostsDemo) again(ctx context.Context) error {
	c := exec.CommandContext(ctx, "/proc/self/exe", "demo", "--hosts", "2", "--bin", d.bin)
	c.Env = append(os.Environ(), inUserNamespace+"=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, d.out, d.err
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, // setns(2) back needs rights over the network
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGTERM,
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("two machines need network namespaces, and this system does not permit a user to make them (%w): run as root", err)
	}
	if err := c.Wait(); err != nil {
		return fmt.Errorf("in a user namespace: %w", err)
	}
	return nil
}

// start starts both machines and waits for the link between them.
func (d *hostsDemo) start(ctx context.Context) error {
	var list []hosts.New
	for i, name := range []string{"a", "b"} {
		h := &demoHost{name: name, socket: "$" + strings.ToUpper(name), machine: d.mesh.Machine(i)}
		d.hosts = append(d.hosts, h)
		list = append(list, hosts.New{Name: name, Address: h.machine.Addr().String(), Nodes: 2})
	}
	if _, err := hosts.Init(d.dir, "demo", list, time.Now()); err != nil {
		return err
	}
	groups := filepath.Join(d.dir, "groups")
	if err := outfile.Write(groups, fmt.Appendf(nil, "%d %s %#x\n", os.Getuid(), demoGroup, demoPDID)); err != nil {
		return err
	}
	d.say("Two machines, a (%v) and b (%v), each with a pfd that has no network and an exanet-hostd\nthat has; between the machines TLS:", d.hosts[0].machine.Addr(), d.hosts[1].machine.Addr())
	for _, h := range d.hosts {
		if err := d.startHost(ctx, h, groups); err != nil {
			return fmt.Errorf("machine %s: %w", h.name, err)
		}
	}
	for _, h := range d.hosts {
		if err := d.waitLink(ctx, h, func(state string) bool { return state == control.HostUp }); err != nil {
			return err
		}
	}
	return d.show(ctx, "host", "--socket", "$A")
}

func (d *hostsDemo) startHost(ctx context.Context, h *demoHost, groups string) (err error) {
	pfd := filepath.Join(d.bin, "pfd")
	args := []string{"--config", filepath.Join(d.dir, h.name+".pfd.toml"), "--groups", groups, "--sandbox", "strict"}
	if h.pfd, err = workload.StartDaemon(ctx, pfd, 2, args...); err != nil {
		return err
	}
	d.names[h.socket] = h.pfd.Socket()
	d.say("%s$ %s &", h.name, strings.Join(h.pfd.Command(), " "))
	if h.client, err = control.New(h.pfd.Socket()); err != nil {
		return err
	}
	h.hostd = exec.Command(filepath.Join(d.bin, "exanet-hostd"), "--hosts", filepath.Join(d.dir, hosts.FileName), "--name", h.name, "--pfd", h.pfd.Socket(), "--log-level", "error")
	h.hostd.Stderr = d.err
	h.hostd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	d.say("%s$ %s &", h.name, strings.Join(h.hostd.Args, " "))
	d.say("%s$ export %s=%s", h.name, h.socket[1:], h.pfd.Socket())
	if err := h.machine.Start(h.hostd); err != nil {
		h.hostd = nil
		return err
	}
	return nil
}

// stop ends all processes.
func (d *hostsDemo) stop() error {
	var errs []error
	for _, h := range d.hosts {
		if h.hostd != nil {
			_ = h.hostd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
			if err := h.hostd.Wait(); err != nil {
				errs = append(errs, fmt.Errorf("exanet-hostd of %s: %w", h.name, err))
			}
		}
		if h.client != nil {
			h.client.Close()
		}
		if h.pfd != nil {
			errs = append(errs, h.pfd.Stop())
		}
	}
	d.hosts = nil
	return errors.Join(errs...)
}

// waitLink waits until the state of a machine's link is as wanted.
func (d *hostsDemo) waitLink(ctx context.Context, h *demoHost, want func(state string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, demoWait)
	defer cancel()
	for {
		r, err := h.client.Hosts(ctx)
		if err != nil {
			return err
		}
		for i := range r.Hosts {
			if want(r.Hosts[i].State) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the link of machine %s does not change: %+v", h.name, r.Hosts)
		case <-time.After(time.Millisecond):
		}
	}
}

// remote are the flags of a write from machine a to machine b.
var remote = []string{"--group", demoGroup, "--socket", "$A", "--to-socket", "$B"}

func (d *hostsDemo) transfers(ctx context.Context) error {
	d.say("\nAn RDMA write into absent memory of a process on the other machine:")
	if err := d.show(ctx, append([]string{"write", "--size", "1MiB", "--count", "10", "--dst", "absent", "--policy", "pa"}, remote...)...); err != nil {
		return err
	}
	d.bytes += 10 << 20
	for _, dst := range []string{"present", "absent"} {
		d.say("\nA page into %s memory:", dst)
		if err := d.show(ctx, append([]string{"write", "--count", "200", "--warm", "--dst", dst}, remote...)...); err != nil {
			return err
		}
		d.bytes += 200 * 4 << 10
	}
	return nil
}

// cable cuts the cable in the midst of transfers.
func (d *hostsDemo) cable(ctx context.Context) error {
	const size, parallel = 64 << 20, 6
	d.say("\nThe cable between the machines is cut during six transfers of 64 MiB:")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := d.command(ctx, append([]string{"write", "--size", "64MiB", "--parallel", "6", "--dst", "absent", "--policy", "pa"}, remote...)...)
	var text bytes.Buffer
	c.Stdout = &text
	if err := c.Start(); err != nil {
		return fmt.Errorf("exanetctl write: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	d.pfd = d.hosts[0].client
	err := d.underWay(ctx, ended)
	began := time.Now()
	if err == nil {
		d.say("# the cable is cut")
		err = d.mesh.Cut(0, 1)
	}
	if err == nil {
		err = d.waitLink(ctx, d.hosts[0], func(state string) bool { return state != control.HostUp })
	}
	for _, args := range [][]string{{"host"}, {"channel", "--columns", "CHANNEL,STATE,SIZE,ISSUED,BLOCKS,ACKED"}} {
		if err == nil {
			err = d.show(ctx, append(args, "--socket", "$A")...)
		}
	}
	if err == nil {
		d.say("# the cable is back after %v", time.Since(began).Round(time.Millisecond))
		err = d.mesh.Repair(0, 1)
	}
	if err != nil {
		cancel()
		<-ended
		return err
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("exanetctl write: %w\n%s", err, text.String())
	}
	d.say("%s", strings.TrimSpace(text.String()))
	d.bytes += parallel * size
	return d.show(ctx, "host", "--socket", "$A")
}

// sum ends the machines and prints the sums.
func (d *hostsDemo) sum(ctx context.Context) error {
	var faults uint64
	pinned := int64(0)
	for _, h := range d.hosts {
		s, err := h.client.Status(ctx)
		if err != nil {
			return err
		}
		faults += s.Faults
		pinned = max(pinned, s.PinnedBytes)
	}
	if err := d.stop(); err != nil {
		return err
	}
	if pinned != 0 {
		return fmt.Errorf("%d bytes were pinned, want 0", pinned)
	}
	d.say("\ndemo: ok, %d faults resolved, %d bytes verified, %d bytes pinned", faults, d.bytes, pinned)
	return nil
}
