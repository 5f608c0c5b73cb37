package gsas

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Mapping is a tree's memory on the node of a thread, mapped into the process: the fast path to the
// pages of the own node. Functions of sync/atomic on its words are coherent with the operations of all
// threads on 64 and 128 bits. Reading and writing it pages in, as any memory does.
type Mapping struct {
	mu        sync.Mutex
	b         []byte // nil: closed
	node      device.NodeID
	region    uint64
	directory Address // of the tree
}

// Map maps the memory. It stays mapped until the Mapping is closed, also after the end of the thread. When its
// tree ends, all words become zero, and pfd does not use the memory any more.
func (t *Thread) Map() (*Mapping, error) {
	m := &Mapping{node: t.node, region: uint64(t.t.Info().Region), directory: t.Directory()}
	err := t.t.Memory(func(fd int) (err error) {
		m.b, err = unix.Mmap(fd, 0, atomics.RegionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
		return os.NewSyscallError("mmap", err)
	})
	if err != nil {
		return nil, fmt.Errorf("map the memory of a tree: %w", err)
	}
	return m, nil
}

// Close unmaps the memory. No slice of Words may be used any more.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.b == nil {
		return nil
	}
	err := unix.Munmap(m.b)
	m.b = nil
	return os.NewSyscallError("munmap", err)
}

// Words returns n words at an address, which must be aligned to 8 bytes and in pages of this node that the
// tree has. They are valid until the Mapping is closed. Errors match ErrAddress or ErrClosed.
func (m *Mapping) Words(a Address, n int) ([]uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.b == nil {
		return nil, &Error{"map", a, ErrClosed}
	}
	node, ok := a.Node()
	here := a.Offset()/atomics.RegionSize == m.region || a-a%PageSize == m.directory
	at := a.Offset() % atomics.RegionSize
	if !ok || node != m.node || !here || at%8 != 0 || n < 0 || uint64(n) > (atomics.RegionSize-at)/8 {
		return nil, &Error{"map", a, errors.Join(ErrAddress, fmt.Errorf("%d words that are not in the memory of this tree on node %d", n, m.node))}
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&m.b[at])), n), nil
}
