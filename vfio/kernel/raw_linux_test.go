package kernel

import (
	"testing"

	"golang.org/x/sys/unix"
)

// deep makes an ioctl with a small structure on the stack, at a given depth of calls.
//
//go:noinline
func deep(t *testing.T, calls, fd int) {
	if calls > 0 {
		deep(t, calls-1, fd)
		return
	}
	arg := make([]byte, 4)
	if _, err := ioctl(fd, unix.TIOCINQ, arg); err != nil {
		t.Error(err)
	}
	if n := order.Uint32(arg); n != 7 {
		t.Errorf("%d bytes wait, want 7: the kernel wrote where the structure had been", n)
	}
}

// The kernel's result is in the structure even if the stack grows during the call.
func TestIoctlOnGrowingStack(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer closeAll(p[:]...)
	if _, err := unix.Write(p[1], make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	for calls := range 1000 {
		over := make(chan struct{})
		go func() {
			defer close(over)
			deep(t, calls, p[0])
		}()
		<-over
	}
}
