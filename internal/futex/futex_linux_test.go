package futex

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWait(t *testing.T) {
	word := new(uint32)
	if errno := Wait(word, 1, -1); errno != unix.EAGAIN {
		t.Errorf("a word that has another value: %v, want EAGAIN", errno)
	}
	if errno := Wait(word, 0, time.Millisecond); errno != unix.ETIMEDOUT {
		t.Errorf("without a Wake: %v, want ETIMEDOUT", errno)
	}
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		for atomic.LoadUint32(word) == 0 {
			if errno := Wait(word, 0, -1); errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
				t.Errorf("Wait does not sleep: %v", errno)
				return
			}
		}
	}()
	atomic.StoreUint32(word, 1)
	Wake(word, 1)
	<-woken
}
