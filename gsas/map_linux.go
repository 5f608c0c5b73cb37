package gsas

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Mapping is a tree's memory on the node of a thread, mapped into the process: the fast path to the
// pages of the own node. Functions of sync/atomic on its words are coherent with the operations of all
// threads on 64 and 128 bits. Reading and writing it pages in, as any memory does.
type Mapping struct {
	b         []byte
	node      device.NodeID
	region    uint64
	directory Address // of the tree
}

// Map maps the memory. It stays mapped until the Mapping is unreachable, also when the thread is closed.
// pfd then no longer uses it.
func (t *Thread) Map() (*Mapping, error) {
	m := &Mapping{node: t.node, region: uint64(t.t.Info().Region), directory: t.Directory()}
	err := t.t.Memory(func(fd int) (err error) {
		m.b, err = unix.Mmap(fd, 0, atomics.RegionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
		return os.NewSyscallError("mmap", err)
	})
	if err != nil {
		return nil, fmt.Errorf("map the memory of a tree: %w", err)
	}
	runtime.AddCleanup(m, func(b []byte) { _ = unix.Munmap(b) }, m.b)
	return m, nil
}

// Words returns n words at an address, which must be aligned to 8 bytes and in pages of this node that the
// tree has. They are valid while the Mapping is reachable. Errors match ErrAddress.
func (m *Mapping) Words(a Address, n int) ([]uint64, error) {
	node, ok := a.Node()
	here := a.Offset()/atomics.RegionSize == m.region || a-a%PageSize == m.directory
	at := a.Offset() % atomics.RegionSize
	if !ok || node != m.node || !here || at%8 != 0 || n < 0 || uint64(n) > (atomics.RegionSize-at)/8 {
		return nil, &Error{"map", a, errors.Join(ErrAddress, fmt.Errorf("%d words that are not in the memory of this tree on node %d", n, m.node))}
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&m.b[at])), n), nil
}
