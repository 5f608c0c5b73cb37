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

// Versions and sizes. MaxNodes and memory are defined by this project.
const (
	// QEMU has the vfio-user client since 10.1 (docs/about, ChangeLog/10.1).
	minMajor, minMinor = 10, 1

	// MaxNodes is how many nodes a guest can have: its root ports.
	MaxNodes = 4
	memory   = "1G" // of a guest

	// The serving process maps the same file.
	sharedMemory = "memory-backend-memfd,share=on"
)

// Machines.
const (
	MachineX86  = "x86"      // x86-64 with an IOMMU
	MachineBare = "no-iommu" // x86-64 without an IOMMU
	MachineARM  = "arm64"    // arm64 with virtio-iommu
)

// ErrQEMU reports that no suitable QEMU was found.
var ErrQEMU = errors.New("no QEMU with vfio-user")

// emulator is a QEMU program.
type emulator struct {
	Words   []string // the command and its first arguments
	Version string
}

var versionText = regexp.MustCompile(`QEMU emulator version ((\d+)\.(\d+)\S*)`)

func (c *Cache) program() string {
	if c.arm {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// onPath returns the QEMU on PATH.
func (c *Cache) onPath(ctx context.Context) (emulator, error) {
	path, err := exec.LookPath(c.program())
	if err != nil {
		return emulator{}, fmt.Errorf("%w: %w", ErrQEMU, err)
	}
	return look(ctx, []string{path})
}

// look runs a QEMU to determine its version.
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
	major, _ := strconv.Atoi(v[2]) // cannot fail: the digits match
	minor, _ := strconv.Atoi(v[3])
	if major < minMajor || major == minMajor && minor < minMinor {
		return e, fmt.Errorf("%w: %s is version %s: vfio-user needs %d.%d or later", ErrQEMU, words[0], e.Version, minMajor, minMinor)
	}
	return e, nil
}

// emulator returns the QEMU on PATH, or else the cache's.
func (c *Cache) emulator(ctx context.Context) (emulator, error) {
	if e, err := c.onPath(ctx); err == nil {
		return e, nil
	}
	root := c.path("root")
	file := filepath.Join(root, "usr", "bin", c.program())
	if !exists(file) {
		return emulator{}, fmt.Errorf("%w: %w", ErrQEMU, c.missing())
	}
	// Use the libraries beside it, not the machine's.
	return look(ctx, []string{
		filepath.Join(root, "usr", "lib64", "ld-linux-x86-64.so.2"), "--library-path", filepath.Join(root, "usr", "lib", "x86_64-linux-gnu"), file,
		"-L", filepath.Join(root, "usr", "share", "qemu"), "-L", filepath.Join(root, "usr", "share", "seabios"),
	})
}

// image has the files that a guest boots from.
type image struct {
	kernel, initramfs string
	boot              string   // selects the first process
	ready             []string // a command that ends when the guest is ready
}

// smallBoot boots a small guest.
var smallBoot = "rdinit=/bin/exanetctl -- " + strings.Join(guest.InitArgs, " ")

// Accelerators: how QEMU executes a guest's instructions.
const (
	accelKVM = "kvm"
	accelTCG = "tcg,thread=multi"
)

// boards are the parts that differ between machines: the board, the IOMMU, and words of the
// kernel's command line.
var boards = map[string]struct {
	args []string
	boot string
}{
	// no_timer_check: on a busy host the check of the timer fails and the guest panics.
	// intel_iommu=on: Debian's kernels default to off.
	MachineX86: {
		[]string{"-machine", "q35,memory-backend=ram,kernel-irqchip=split", "-device", "intel-iommu,intremap=on,caching-mode=on"},
		"console=ttyS0 no_timer_check intel_iommu=on",
	},
	MachineBare: {[]string{"-machine", "q35,memory-backend=ram"}, "console=ttyS0 no_timer_check"},
	MachineARM:  {[]string{"-machine", "virt,gic-version=3,memory-backend=ram", "-device", "virtio-iommu-pci"}, "console=ttyAMA0"},
}

// machineArgs returns the arguments of a guest whose sockets are in dir. A saved and a restored
// guest must have the same ones, except for the memory's backend.
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

// start starts a QEMU that outlives this process; its output goes to a file.
func (e emulator) start(dir string, args ...string) (process, error) {
	words := append(e.Words[1:len(e.Words):len(e.Words)], args...)
	// Modules of another QEMU on the machine would not match.
	return startProcess(filepath.Join(dir, "qemu.log"), []string{"QEMU_MODULE_DIR=/nonexistent"}, e.Words[0], words...)
}

// startProcess starts a program in its own session.
func startProcess(log string, env []string, name string, args ...string) (process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return process{}, fmt.Errorf("log of %s: %w", name, err)
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
	// A process that has already ended has no start time, and is not alive.
	p.Start, _ = startTime(p.PID)
	go func() { _ = cmd.Wait() }() // no zombie while this process lives
	return p, nil
}
