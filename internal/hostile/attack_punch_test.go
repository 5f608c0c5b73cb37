package hostile

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
)

// Mappings of an attachment's memory.
const (
	punchProcesses = 4
	punchMappings  = 20_000
)

// punchPages punches the pages that it shares with pfd out of their memfd. The memfd is mapped
// so often that the kernel works on that for long; a thread that touches one of the pages
// meanwhile sleeps.
func punchPages(ctx context.Context, o order, did func()) error {
	r, err := persist(ctx, func() (*rawAttach, error) { return attachRaw(ctx, o.Attach.Socket, attach.Hello{Group: "punch"}) })
	if err != nil {
		return err
	}
	defer unix.Close(r.fds[0])
	if err := mapElsewhere(r.fds[0], punchProcesses, punchMappings, attach.MemorySize, unix.MAP_POPULATE); err != nil {
		return err
	}
	for ctx.Err() == nil {
		err := unix.Fallocate(r.fds[0], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, attach.MemorySize)
		if err != nil {
			err = unix.Madvise(r.Pages.Bytes(), unix.MADV_REMOVE)
		}
		// pfd reads the pages.
		r.Ring(0)
		r.Kick()
		_, _ = unix.Write(r.fds[1], []byte{1, 0, 0, 0, 0, 0, 0, 0})
		did()
		if err != nil { // the seals forbid it
			time.Sleep(attackPause)
		}
	}
	return nil
}

// mapElsewhere starts processes that map a file very often and that end with this one.
func mapElsewhere(fd, processes, mappings, size, flags int) error {
	memfd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(memfd), "memfd")
	defer file.Close()
	var said []io.Reader
	for range processes {
		cmd := exec.Command("/proc/self/exe", fmt.Sprint(mappings), fmt.Sprint(size), fmt.Sprint(flags))
		cmd.Env = append(os.Environ(), agentEnv+"=maps")
		cmd.ExtraFiles = []*os.File{file}
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		started := make(chan error)
		go startForGood(cmd, started)
		if err := <-started; err != nil {
			return err
		}
		said = append(said, out)
	}
	for _, out := range said {
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			return err
		}
	}
	return nil
}

// startForGood starts a process that is killed with this one. Its parent-death signal is bound
// to the thread that starts it, so that thread never ends.
func startForGood(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	started <- cmd.Start()
	select {}
}

// mapMany maps descriptor 3 repeatedly for mapElsewhere, writes one byte, and sleeps.
func mapMany(args []string) error {
	var mappings, size, flags int
	if _, err := fmt.Sscan(strings.Join(args, " "), &mappings, &size, &flags); err != nil {
		return err
	}
	for range mappings {
		if _, err := unix.Mmap(3, 0, size, unix.PROT_READ, unix.MAP_SHARED|flags); err != nil {
			break // the limit of mappings is reached
		}
	}
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	for {
		time.Sleep(time.Hour)
	}
}
