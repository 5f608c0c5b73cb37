package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/folios"
	"github.com/exanet/pfd/internal/memfd"
	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/space/uffd"
	"github.com/exanet/pfd/vfio/kernel"
	"github.com/exanet/pfd/vfio/mediate"
)

// ioctl numbers of linux/fs.h: _IOWR('f', 16, struct pm_scan_arg) of 96 bytes
// and _IOWR('f', 17, struct procmap_query) of 104 bytes.
const (
	ioctlPagemapScan  = 3<<30 | 96<<16 | 'f'<<8 | 16
	ioctlProcmapQuery = 3<<30 | 104<<16 | 'f'<<8 | 17
)

// providerFile is the libfabric provider (libexanet/fi).
const providerFile = "libexanet-fi.so"

// gather collects the facts. It reads files below root and tries system calls on this
// process.
func gather(root, socket string) facts {
	f := facts{
		Socket:       socket,
		Pagemap:      probePagemap(filepath.Join(root, "proc/self/pagemap")),
		PagemapScan:  probeIoctl(filepath.Join(root, "proc/self/pagemap"), ioctlPagemapScan),
		ProcmapQuery: probeIoctl(filepath.Join(root, "proc/self/maps"), ioctlProcmapQuery),
		ProcessVM:    probeProcessVM(),
		Kcmp:         probeKcmp(),
		Memfd:        probeMemfd(),
		PeerPidfd:    probePeerPidfd(),
		Netlink:      probeSocket(),
		Populate:     probePopulate(),
		Uffd:         probeUserfaultfd(unix.O_CLOEXEC | unix.O_NONBLOCK | uffdUserModeOnly),
	}
	f.readFiles(root)
	for _, dir := range filepath.SplitList(os.Getenv("FI_PROVIDER_PATH")) {
		if _, err := os.Stat(filepath.Join(dir, providerFile)); err == nil {
			f.Provider = filepath.Join(dir, providerFile)
		}
	}
	f.lookAtNodes()
	f.UffdProtects = uffd.Protects()
	f.UffdFull = probeUserfaultfd(unix.O_CLOEXEC|unix.O_NONBLOCK) == nil || unix.Access(filepath.Join(root, "dev/userfaultfd"), unix.R_OK|unix.W_OK) == nil
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil {
		f.Memlock = lim.Cur
	}
	return f
}

// lookAtNodes finds the machine's nodes and the reason why pfd cannot drive one of them.
func (f *facts) lookAtNodes() {
	addrs, err := kernel.Find(mediate.PCIVendor, mediate.PCIDevice)
	if err != nil {
		return // a machine without PCI
	}
	f.Nodes = len(addrs)
	for _, addr := range addrs {
		if err := kernel.Check(addr); err != nil {
			f.Node = err
			if e := new(kernel.Error); errors.As(err, &e) {
				f.Node, f.NodeRemedy = fmt.Errorf("%s: %w", addr, e.Err), e.Remedy
			}
			return
		}
	}
}

// readFiles reads facts from files below root.
func (f *facts) readFiles(root string) {
	text := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(root, name))
		return err == nil
	}
	count := func(name string) int {
		list, err := os.ReadDir(filepath.Join(root, name))
		if err != nil {
			return 0
		}
		return len(list)
	}
	f.Release = text("proc/sys/kernel/osrelease")
	f.Kernel = kernelVersion(f.Release)
	f.Caps, _ = procstatus.Mask([]byte(text("proc/self/status")), "CapEff") // 0 on error
	f.Yama = -1
	if n, err := strconv.Atoi(text("proc/sys/kernel/yama/ptrace_scope")); err == nil {
		f.Yama = n
	}
	f.BTF = exists("sys/kernel/btf/vmlinux")
	f.BPFDisabled = text("proc/sys/kernel/unprivileged_bpf_disabled")
	f.BPFFS = strings.Contains(text("proc/self/mounts"), " bpf ")
	f.Lockdown = lockdown(text("sys/kernel/security/lockdown"))
	f.VFIO = exists("dev/vfio/vfio")
	f.IOMMUFD = exists("dev/iommu")
	f.IOMMUGroups = count("sys/kernel/iommu_groups")
	f.UIO = count("sys/class/uio")
	f.FoliosShared, f.FoliosPrivate = folios.Read(root)
	// Where libfabric looks: below its own library's directory.
	for _, lib := range []string{"usr/lib/*", "usr/lib64", "usr/local/lib"} {
		if found, _ := filepath.Glob(filepath.Join(root, lib, "libfabric", providerFile)); len(found) > 0 {
			f.Provider = "/" + strings.TrimPrefix(strings.TrimPrefix(found[0], root), "/")
			break
		}
	}
}

// kernelVersion returns 6, 18 for "6.18.44-x".
func kernelVersion(release string) (v [2]int) {
	_, _ = fmt.Sscanf(release, "%d.%d", &v[0], &v[1]) // zeros on error
	return v
}

// lockdown returns the word in brackets of "none [integrity] confidentiality".
func lockdown(text string) string {
	_, rest, ok := strings.Cut(text, "[")
	if !ok {
		return ""
	}
	word, _, _ := strings.Cut(rest, "]")
	return word
}

// probeIoctl tries an ioctl without an argument: it fails with EFAULT if the kernel supports
// it, otherwise with ENOTTY.
func probeIoctl(name string, request uint) error {
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("cannot open: %w", err)
	}
	defer file.Close()
	if err := unix.IoctlSetInt(int(file.Fd()), request, 0); err != nil && !errors.Is(err, unix.EFAULT) {
		return fmt.Errorf("not in this kernel: %w", err)
	}
	return nil
}

// probePagemap reads the residency of a page of this process.
func probePagemap(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("cannot open: %w", err)
	}
	defer file.Close()
	page := []byte{1}
	var entry [8]byte
	if _, err := file.ReadAt(entry[:], int64(address(page))/int64(os.Getpagesize())*8); err != nil {
		return fmt.Errorf("cannot read: %w", err)
	}
	if binary.NativeEndian.Uint64(entry[:])>>63 == 0 { // bit 63: present (admin-guide/mm/pagemap.rst)
		return errors.New("a touched page is shown as absent")
	}
	return nil
}

// probeKcmp compares this process's address space with itself.
func probeKcmp() error {
	const kcmpVM = 1 // KCMP_VM, linux/kcmp.h
	pid := uintptr(os.Getpid())
	if _, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpVM, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("kcmp", errno)
	}
	return nil
}

func probeProcessVM() error {
	data, got := []byte{0xa5}, make([]byte, 1)
	local := []unix.Iovec{{Base: &got[0], Len: 1}}
	remote := []unix.RemoteIovec{{Base: address(data), Len: 1}}
	if _, err := unix.ProcessVMReadv(os.Getpid(), local, remote, 0); err != nil {
		return fmt.Errorf("process_vm_readv: %w", err)
	}
	if _, err := unix.ProcessVMWritev(os.Getpid(), local, remote, 0); err != nil {
		return fmt.Errorf("process_vm_writev: %w", err)
	}
	if got[0] != data[0] {
		return errors.New("process_vm_readv returns wrong data")
	}
	return nil
}

// address returns the address of b's first byte.
func address(b []byte) uintptr { return reflect.ValueOf(b).Pointer() }

func probeMemfd() error {
	fd, err := memfd.New("exanet-doctor", 0, 0, unix.F_SEAL_SEAL)
	if err != nil {
		return err
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

func probePeerPidfd() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	pidfd, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return fmt.Errorf("SO_PEERPIDFD: %w", err)
	}
	return os.NewSyscallError("close", unix.Close(pidfd))
}

func probeSocket() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

func probePopulate() error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	err = unix.Madvise(page, unix.MADV_POPULATE_WRITE)
	if e := unix.Munmap(page); err == nil && e != nil {
		return fmt.Errorf("munmap: %w", e)
	}
	if err != nil {
		return fmt.Errorf("MADV_POPULATE_WRITE: %w", err)
	}
	return nil
}

// uffdUserModeOnly is UFFD_USER_MODE_ONLY of linux/userfaultfd.h.
const uffdUserModeOnly = 1

func probeUserfaultfd(flags uintptr) error {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, flags, 0, 0)
	if errno != 0 {
		return fmt.Errorf("userfaultfd: %w", errno)
	}
	return os.NewSyscallError("close", unix.Close(int(fd)))
}
