package rdma

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore reports which pages of b are in memory.
func mincore(b, vec []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		return os.NewSyscallError("mincore", errno)
	}
	return nil
}
