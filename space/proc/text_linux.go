package proc

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// textAge is how long a mapping read from /proc/PID/maps is used. Without PROCMAP_QUERY (before
// Linux 6.11) each walk of a block would read all mappings, which grows with the process. So on
// such kernels a right that a process takes from its own memory takes effect after this time at
// the latest, and at once when a walk finds a page of the mapping absent or a move fails.
const textAge = time.Millisecond

// mapsText reads /proc/PID/maps for kernels without PROCMAP_QUERY. Its lock is held while the
// file is read.
type mapsText struct {
	stale atomic.Bool

	mu     sync.Mutex
	buf    []byte
	cached Mapping
	read   time.Time
}

// forget makes the next lookup read the file again.
func (t *mapsText) forget() { t.stale.Store(true) }

// lookupText is lookup by /proc/PID/maps.
func (p *Process) lookupText(va device.VA, m *Mapping) unix.Errno {
	t := &p.text
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stale.Swap(false) && t.cached.Contains(va) && time.Since(t.read) < textAge {
		*m = t.cached
		return 0
	}
	t.cached = Mapping{}
	if t.buf == nil {
		t.buf = make([]byte, 16<<10)
	}
	read := time.Now()
	fill, offset := 0, int64(0)
	for {
		n, err := unix.Pread(p.maps, t.buf[fill:], offset)
		if err != nil {
			var errno unix.Errno
			if errors.As(err, &errno) {
				return errno
			}
			return unix.EIO
		}
		if n == 0 {
			if offset == 0 {
				return unix.ESRCH // every process has a mapping
			}
			return unix.ENOENT
		}
		offset += int64(n)
		b := t.buf[:fill+n]
		for {
			got, length := mapsLine(b)
			if length == 0 {
				break
			}
			b = b[length:]
			// The kernel lists vsyscall, which lies beyond maxVA, for every process. It is not
			// the process's memory.
			if got.End > va && got.Start < maxVA {
				*m = got
				t.cached, t.read = got, read
				return 0
			}
		}
		fill = copy(t.buf, b)
		if fill == len(t.buf) {
			fill = 0 // no line is that long: skip it
		}
	}
}
