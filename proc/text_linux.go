package proc

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// textAge is how long a mapping read from /proc/PID/maps is believed. Without
// PROCMAP_QUERY a walk would cost a reading of all mappings a block, which grows
// with the process. So on such kernels (before 6.11) a process that takes a
// right away from its own memory is heeded after this time at the latest, and
// at once where a page of the mapping is found absent or a move fails.
const textAge = time.Millisecond

// mapsText is /proc/PID/maps for kernels without PROCMAP_QUERY. Its lock is
// held while the file is read, since the file has one position for all readers.
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
				return unix.ESRCH // no process is without a mapping
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
			// Beyond maxVA lies what the kernel lists for every process
			// (vsyscall) and what is no memory of it.
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
