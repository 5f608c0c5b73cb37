package workload

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/rdma"
)

// Memory is the kind of memory whose transfers are measured.
type Memory string

// The kinds of memory. Under method uffd, on a node that uses the process's own page tables,
// memory of Alloc is not shared, and Any is the only kind.
const (
	Shared Memory = "shared" // from Endpoint.Alloc: pfd maps it, too
	Any    Memory = "any"    // anonymous memory of the process: pfd accesses it by system calls
)

// Memories lists all kinds of memory.
var Memories = []Memory{Shared, Any}

// memories returns the kinds that an endpoint has, that of Alloc first.
func memories(ep *rdma.Endpoint) []Memory {
	switch {
	case !ep.Info().SVA():
		return []Memory{Shared}
	case ep.Info().Method == rdma.MethodUFFD:
		return []Memory{Any}
	}
	return Memories
}

// memoryOf returns the kind that an endpoint uses for m. An error matches ErrSkipped.
func memoryOf(ep *rdma.Endpoint, m Memory) (Memory, error) {
	have := memories(ep)
	switch {
	case slices.Contains(have, m):
		return m, nil
	case m == Any:
		return "", fmt.Errorf("%w: memory %q: the device of node %#x does not use the processes' page tables (SVA), so transfers can access only shared memory: use %q, or nodes that pfd emulates", ErrSkipped, m, uint32(ep.Info().Node), Shared)
	}
	return have[0], nil
}

// memoryKind selects memory.
type memoryKind struct {
	Memory Memory `json:"memory,omitempty"`
	Folios bool   `json:"folios,omitempty"` // the kernel may bring in more than a page at a touch
}

// area is memory of an endpoint, with its name at the other process.
type area struct {
	b     []byte
	name  rdma.Remote
	free  func() error
	folio Folio
}

// newArea allocates absent memory of a kind.
func newArea(ep *rdma.Endpoint, k memoryKind, size uint64) (a area, err error) {
	m, err := memoryOf(ep, k.Memory)
	if err != nil {
		return a, err
	}
	if m != memories(ep)[0] {
		length, align := roundUp(size, pageSize), uint64(0)
		if k.Folios {
			align = hugePage
		}
		b, err := unix.Mmap(-1, 0, int(length+align), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			return a, fmt.Errorf("memory of %d bytes: %w", size, os.NewSyscallError("mmap", err))
		}
		a = area{b: b, free: func() error { return os.NewSyscallError("munmap", unix.Munmap(b)) }}
		if k.Folios {
			va := uint64(rdma.VAOf(b))
			a.b = b[roundUp(va, align)-va:][:length]
			a.folio = folioOf(privateFolio(a.b))
		}
	} else {
		buffer, err := ep.AllocWith(int(size), rdma.AllocOptions{Folios: k.Folios})
		if err != nil {
			return a, err
		}
		a = area{b: buffer.Bytes(), free: buffer.Free}
		if k.Folios {
			a.folio = folioOf(buffer.Folio())
		}
	}
	if !k.Folios {
		// With huge pages one touch would bring in 512 pages of 4 KiB. The call fails on kernels without them.
		_ = unix.Madvise(a.b, unix.MADV_NOHUGEPAGE)
	}
	a.name, err = ep.Export(a.b)
	return a, err
}

// close frees the memory, if there is any.
func (a *area) close(ep *rdma.Endpoint) error {
	if a.free == nil {
		return nil
	}
	ep.Unexport(a.name)
	return a.free()
}

// perfMemory is one end's memory of a kind.
type perfMemory struct {
	memoryKind
	size   uint64 // of the parts; 0 means that there is no memory, or that it cannot be used again
	parts  int
	stride uint64 // from one part to the next
	filled perfFill

	data, words area
	// toData and toWords are the target's memory of the kind, at the initiator.
	toData, toWords rdma.Remote
	folio           Folio // of the data of both ends
}

// Memories returns the kinds of memory that can be measured, that of Endpoint.Alloc first.
func (p *Perf) Memories() []Memory { return memories(p.end.ep) }
