package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/exanet/pfd/qemu/agent"
	"github.com/exanet/pfd/qemu/guest"
)

// Versions and sizes.
const (
	// QEMU has the vfio-user client since 10.1 (docs/about, ChangeLog/10.1).
	minMajor, minMinor = 10, 1

	// MaxNodes is how many nodes a guest can have: its root ports (ours).
	MaxNodes = 4
	memory   = "1G" // of a guest (ours)

	// The device's process maps the same file.
	sharedMemory = "memory-backend-memfd,share=on"
)

// Machines.
const (
	MachineX86  = "x86"      // x86-64 with an IOMMU
	MachineBare = "no-iommu" // x86-64 without
	MachineARM  = "arm64"    // with virtio-iommu
)

// ErrQEMU says that there is no QEMU that will do.
var ErrQEMU = errors.New("no QEMU with vfio-user")

// emulator is a QEMU.
type emulator struct {
	Words   []string // the command and what comes first
	Version string
}

var versionText = regexp.MustCompile(`QEMU emulator version ((\d+)\.(\d+)\S*)`)

func (c *Cache) program() string {
	if c.arm {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// onPath gives the QEMU of the machine.
func (c *Cache) onPath(ctx context.Context) (emulator, error) {
	path, err := exec.LookPath(c.program())
	if err != nil {
		return emulator{}, fmt.Errorf("%w: %w", ErrQEMU, err)
	}
	return look(ctx, []string{path})
}

// look asks a QEMU what it is.
func look(ctx context.Context, words []string) (emulator, error) {
	e := emulator{Words: words}
	out, err := output(exec.CommandContext(ctx, words[0], append(words[1:len(words):len(words)], "--version")...))
	if err != nil {
		return e, fmt.Errorf("%w: %w", ErrQEMU, err)
	}
	v := versionText.FindStringSubmatch(string(out))
	if v == nil {
		return e, fmt.Errorf("%w: %s says %q", ErrQEMU, words[0], out)
	}
	e.Version = v[1]
	major, _ := strconv.Atoi(v[2]) // digits: they match
	minor, _ := strconv.Atoi(v[3])
	if major < minMajor || major == minMajor && minor < minMinor {
		return e, fmt.Errorf("%w: %s is %s: it came with %d.%d", ErrQEMU, words[0], e.Version, minMajor, minMinor)
	}
	return e, nil
}

// emulator gives the machine's QEMU, or else the cache's.
func (c *Cache) emulator(ctx context.Context) (emulator, error) {
	if e, err := c.onPath(ctx); err == nil {
		return e, nil
	}
	root := c.path("root")
	file := filepath.Join(root, "usr", "bin", c.program())
	if !exists(file) {
		return emulator{}, fmt.Errorf("%w: %w", ErrQEMU, c.missing())
	}
	// Its libraries are beside it, not the machine's.
	return look(ctx, []string{
		filepath.Join(root, "usr", "lib64", "ld-linux-x86-64.so.2"), "--library-path", filepath.Join(root, "usr", "lib", "x86_64-linux-gnu"), file,
		"-L", filepath.Join(root, "usr", "share", "qemu"), "-L", filepath.Join(root, "usr", "share", "seabios"),
	})
}

// image is what a guest boots from.
type image struct {
	kernel, initramfs string
	boot              string   // what the kernel starts
	ready             []string // a command that is over when the guest is
}

// smallBoot is how a small guest boots.
var smallBoot = "rdinit=/bin/exanetctl -- " + strings.Join(guest.InitArgs, " ")

// How QEMU runs a guest's instructions.
const (
	accelKVM = "kvm"
	accelTCG = "tcg,thread=multi"
)

// boards are what machines have of their own: a board, an IOMMU, and words for the
// kernel.
var boards = map[string]struct {
	args []string
	boot string
}{
	// no_timer_check: the timer's test fails where the host is busy, and the guest
	// panics. intel_iommu=on: Debian's kernels have it off.
	MachineX86: {
		[]string{"-machine", "q35,memory-backend=ram,kernel-irqchip=split", "-device", "intel-iommu,intremap=on,caching-mode=on"},
		"console=ttyS0 no_timer_check intel_iommu=on",
	},
	MachineBare: {[]string{"-machine", "q35,memory-backend=ram"}, "console=ttyS0 no_timer_check"},
	MachineARM:  {[]string{"-machine", "virt,gic-version=3,memory-backend=ram", "-device", "virtio-iommu-pci"}, "console=ttyAMA0"},
}

// machineArgs describes a guest whose sockets are in dir. Saved and restored
// guests must have the same, but for what its memory is made of.
func machineArgs(machine, accel, dir string, i image, backend string) []string {
	cpu := "max"
	if accel == accelKVM {
		cpu = "host"
	}
	board := boards[machine]
	boot := board.boot + " quiet panic=-1 " + i.boot
	args := []string{
		"-name", "exanet-guest", "-accel", accel, "-cpu", cpu, "-smp", "2",
		"-m", memory, "-object", backend + ",id=ram,size=" + memory,
		"-nodefaults", "-display", "none",
		"-serial", "file:" + filepath.Join(dir, "console.log"),
		"-qmp", "unix:" + monitorSocket(dir) + ",server=on,wait=off",
		"-kernel", i.kernel, "-initrd", i.initramfs, "-append", boot,
		"-device", "virtio-serial-pci,id=ports,max_ports=" + strconv.Itoa(agent.Ports+1),
	}
	args = append(args, board.args...)
	for p := range agent.Ports {
		n := strconv.Itoa(p)
		args = append(args,
			"-chardev", "socket,id=port"+n+",path="+agent.Socket(dir, p)+",server=on,wait=off",
			"-device", "virtserialport,bus=ports.0,nr="+strconv.Itoa(p+1)+",chardev=port"+n+",name="+agent.PortName+n)
	}
	for p := range MaxNodes {
		n := strconv.Itoa(p + 1)
		args = append(args, "-device", "pcie-root-port,id="+rootPort(p)+",chassis="+n+",slot="+n)
	}
	return args
}

func rootPort(node int) string { return "rp" + strconv.Itoa(node) }

func monitorSocket(dir string) string { return filepath.Join(dir, "qmp.sock") }

// start starts a QEMU that outlives this process; what it says goes to a file.
func (e emulator) start(dir string, args ...string) (process, error) {
	words := append(e.Words[1:len(e.Words):len(e.Words)], args...)
	// Modules of another QEMU on the machine would not fit.
	return startProcess(filepath.Join(dir, "qemu.log"), []string{"QEMU_MODULE_DIR=/nonexistent"}, e.Words[0], words...)
}

// startProcess starts a program in a session of its own.
func startProcess(log string, env []string, name string, args ...string) (process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return process{}, fmt.Errorf("what %s says: %w", name, err)
	}
	defer f.Close()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return process{}, fmt.Errorf("starting %s: %w", name, err)
	}
	p := process{PID: cmd.Process.Pid, Log: log}
	// One that has ended already has no time, and is not alive.
	p.Start, _ = startTime(p.PID)
	go func() { _ = cmd.Wait() }() // no zombie while this process lives
	return p, nil
}
