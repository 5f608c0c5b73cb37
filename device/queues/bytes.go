package queues

import "encoding/binary"

// Bytes is a Memory that one goroutine uses alone: of a simulation or a test.
type Bytes []byte

// Load implements Memory.
func (b Bytes) Load(offset uint32) uint64 { return binary.LittleEndian.Uint64(b[offset:]) }

// Store implements Memory.
func (b Bytes) Store(offset uint32, v uint64) { binary.LittleEndian.PutUint64(b[offset:], v) }
