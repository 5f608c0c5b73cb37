package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnsupported says that this process cannot make networks. The error names the reason and
// the remedy.
var ErrUnsupported = errors.New("no network namespaces")

// Machine is a network namespace with an address.
type Machine struct {
	ns   *os.File
	addr netip.Addr
}

// Mesh is a network of machines. It is not safe for concurrent use.
type Mesh struct{ machines []*Machine }

// mtu is the cables' largest packet. Defined by this project.
const mtu = 9000

// New returns a network of n machines, 2 to 16, all of them connected. It needs the right to
// make network namespaces (CAP_SYS_ADMIN and CAP_NET_ADMIN) and the program ip.
func New(n int) (*Mesh, error) {
	if n < 2 || n > 16 {
		return nil, fmt.Errorf("%d machines: want 2 to 16", n)
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, fmt.Errorf("%w: %w: install iproute2", ErrUnsupported, err)
	}
	if err := comeBack(); err != nil {
		return nil, fmt.Errorf("%w: %w: run as root of the machine, or in a network namespace of your own (unshare -Urn)", ErrUnsupported, err)
	}
	m := &Mesh{}
	for i := range n {
		ns, err := unshare()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w: run as root", ErrUnsupported, err), m.Close())
		}
		// An address of a private network (RFC 1918) in a namespace that has no other.
		m.machines = append(m.machines, &Machine{ns: ns, addr: netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)})})
	}
	if err := m.connect(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// comeBack reports whether a thread may enter the present network: one that enters another must come back, and
// root of a user namespace may have no rights over the network outside.
func comeBack() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	return os.NewSyscallError("setns", unix.Setns(int(own.Fd()), unix.CLONE_NEWNET))
}

// unshare returns a new network namespace.
func unshare() (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{nil, os.NewSyscallError("unshare", err)}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		done <- result{f, err}
	}()
	r := <-done
	return r.f, r.err
}

// connect makes the cables. Each machine has its address on lo, and a route to each other
// machine by the cable to it.
func (m *Mesh) connect() error {
	for i, a := range m.machines {
		for _, args := range []string{"link set lo up", fmt.Sprintf("addr add %v/32 dev lo", a.addr)} {
			if err := a.ip(args); err != nil {
				return err
			}
		}
		for j, b := range m.machines[:i] {
			err := b.ip(fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d netns /proc/%d/fd/%d", Cable(i), mtu, Cable(j), mtu, os.Getpid(), a.ns.Fd()))
			if err == nil {
				err = m.Repair(i, j)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Cable returns the name of the cable to machine i, at each other machine.
func Cable(i int) string { return fmt.Sprint("to", i) }

// Cut unplugs the cable between two machines.
func (m *Mesh) Cut(i, j int) error { return m.machines[i].ip("link set " + Cable(j) + " down") }

// Repair plugs it in again.
func (m *Mesh) Repair(i, j int) error {
	for _, end := range [][2]int{{i, j}, {j, i}} {
		own, peer := m.machines[end[0]], m.machines[end[1]]
		for _, args := range []string{
			"link set " + Cable(end[1]) + " up",
			fmt.Sprintf("route replace %v/32 dev %s src %v", peer.addr, Cable(end[1]), own.addr),
		} {
			if err := own.ip(args); err != nil {
				return err
			}
		}
	}
	return nil
}

// Machine returns machine i, from 0.
func (m *Mesh) Machine(i int) *Machine { return m.machines[i] }

// Close ends the network when its last process has ended.
func (m *Mesh) Close() error {
	var errs []error
	for _, a := range m.machines {
		errs = append(errs, a.ns.Close())
	}
	return errors.Join(errs...)
}

// Addr returns the machine's address.
func (a *Machine) Addr() netip.Addr { return a.addr }

// Do calls f in the machine's network: sockets that f makes and processes that it starts
// belong to it. f must not start goroutines that do so.
func (a *Machine) Do(f func() error) error {
	runtime.LockOSThread()
	before, err := os.Open("/proc/thread-self/ns/net")
	if err == nil {
		err = os.NewSyscallError("setns", unix.Setns(int(a.ns.Fd()), unix.CLONE_NEWNET))
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering the network of %v: %w", a.addr, errors.Join(err, before.Close()))
	}
	defer before.Close()
	err = f()
	if back := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, and ends with its goroutine.
		return errors.Join(err, fmt.Errorf("leaving the network of %v: %w", a.addr, os.NewSyscallError("setns", back)))
	}
	runtime.UnlockOSThread()
	return err
}

// Start starts a command in the machine's network.
func (a *Machine) Start(c *exec.Cmd) error { return a.Do(c.Start) }

// ip runs a command of iproute2.
func (a *Machine) ip(args string) error { return a.Run("ip", strings.Fields(args)...) }

// Run runs a program in the machine's network to its end.
func (a *Machine) Run(program string, args ...string) error {
	c := exec.Command(program, args...)
	var out []byte
	err := a.Do(func() (err error) {
		out, err = c.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
