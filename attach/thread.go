package attach

import (
	"encoding/binary"
	"fmt"
)

// Messages of GSAS threads (docs/attach.md section 12). Values below are defined by this project.
const (
	TypeThread   Type = 20 // process to pfd: a Thread
	TypeThreaded Type = 21 // pfd to process: a Threaded, with the memory of the thread's tree on its node
	TypeUnthread Type = 22 // process to pfd: an Unthread, answered by a Shared

	ThreadSize   = 96
	ThreadedSize = 104
	UnthreadSize = 80

	offToken      = 72 // sixteen bytes
	offThreadZero = 88 // u64

	offThreadPort    = 72 // u8
	offThreadIndex   = 73 // u8
	offThreadedZero  = 74 // u16
	offThreadID      = 76 // u32
	offProtection    = 80 // u32
	offRegion        = 84 // u32
	offTree          = 88 // sixteen bytes
	offUnthreadIndex = 72 // u8
	offUnthreadZero  = 73 // seven bytes
	firstThreadPort  = 32
	maxThread        = 1<<24 - 1
	maxRegion        = 1<<14 - 1
	threadNodeBits   = 18
	threadPortMask   = 0x3f
)

// MaxThreads is how many GSAS threads an attachment may have. Defined by this project.
const MaxThreads = 8

// Token names a tree of threads. A process that presents it joins the tree. The zero Token names none.
type Token [16]byte

// Thread requests a thread: in a new tree, or in the one with a token.
type Thread struct {
	Product string
	Token   Token
}

// Append appends the message to b.
func (t *Thread) Append(b []byte) []byte {
	all, m := begin(b, TypeThread, ThreadSize, t.Product)
	copy(m[offToken:], t.Token[:])
	return all
}

// DecodeThread decodes a thread. Errors match ErrMessage.
func DecodeThread(b []byte) (Thread, error) {
	product, err := decode(b, TypeThread, ThreadSize)
	if err == nil && binary.LittleEndian.Uint64(b[offThreadZero:]) != 0 {
		err = fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	}
	if err != nil {
		return Thread{}, err
	}
	return Thread{Product: product, Token: Token(b[offToken:])}, nil
}

// Threaded answers a thread. It carries the memfd of the tree's memory on the thread's node.
type Threaded struct {
	Product    string
	Interface  uint8  // mailbox and packetizer of the thread, 32..63
	Index      uint8  // of its Port in the attachment's memory, below MaxThreads
	ID         uint32 // of the thread: interface [23:18], node [17:0]
	Protection uint32 // of the tree: the ID of the thread that began it
	Region     uint16 // of the node's partition, which the memfd has the bytes of
	Token      Token  // of the tree, never zero
}

// Append appends the message to b. Errors match ErrValue.
func (t *Threaded) Append(b []byte) ([]byte, error) {
	if err := t.check(); err != nil {
		return b, err
	}
	all, m := begin(b, TypeThreaded, ThreadedSize, t.Product)
	m[offThreadPort], m[offThreadIndex] = t.Interface, t.Index
	binary.LittleEndian.PutUint32(m[offThreadID:], t.ID)
	binary.LittleEndian.PutUint32(m[offProtection:], t.Protection)
	binary.LittleEndian.PutUint32(m[offRegion:], uint32(t.Region))
	copy(m[offTree:], t.Token[:])
	return all, nil
}

// DecodeThreaded decodes the answer to a thread. Errors match ErrMessage or ErrValue.
func DecodeThreaded(b []byte) (Threaded, error) {
	product, err := decode(b, TypeThreaded, ThreadedSize)
	if err != nil {
		return Threaded{}, err
	}
	region := binary.LittleEndian.Uint32(b[offRegion:])
	switch {
	case binary.LittleEndian.Uint16(b[offThreadedZero:]) != 0:
		return Threaded{}, fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	case region > maxRegion:
		return Threaded{}, fmt.Errorf("%w: region %d, the last is %d", ErrValue, region, maxRegion)
	}
	t := Threaded{
		Product: product, Interface: b[offThreadPort], Index: b[offThreadIndex],
		ID:         binary.LittleEndian.Uint32(b[offThreadID:]),
		Protection: binary.LittleEndian.Uint32(b[offProtection:]),
		Region:     uint16(region), Token: Token(b[offTree:]),
	}
	return t, t.check()
}

func (t *Threaded) check() error {
	switch {
	case t.Interface < firstThreadPort || t.Interface > threadPortMask:
		return fmt.Errorf("%w: interface %d: a thread has one of %d to %d", ErrValue, t.Interface, firstThreadPort, threadPortMask)
	case t.Index >= MaxThreads:
		return fmt.Errorf("%w: thread %d: an attachment has the threads 0 to %d", ErrValue, t.Index, MaxThreads-1)
	case t.ID > maxThread || t.ID>>threadNodeBits != uint32(t.Interface):
		return fmt.Errorf("%w: thread %#x: its interface is not %d", ErrValue, t.ID, t.Interface)
	case t.Protection > maxThread || t.Protection>>threadNodeBits < firstThreadPort:
		return fmt.Errorf("%w: protection id %#x is no thread's", ErrValue, t.Protection)
	case t.Region > maxRegion:
		return fmt.Errorf("%w: region %d, the last is %d", ErrValue, t.Region, maxRegion)
	case t.Token == Token{}:
		return fmt.Errorf("%w: a tree without a token", ErrValue)
	}
	return nil
}

// Unthread ends a thread of the attachment.
type Unthread struct {
	Product string
	Index   uint8 // below MaxThreads
}

// Append appends the message to b.
func (u *Unthread) Append(b []byte) []byte {
	all, m := begin(b, TypeUnthread, UnthreadSize, u.Product)
	m[offUnthreadIndex] = u.Index
	return all
}

// DecodeUnthread decodes an unthread. Errors match ErrMessage or ErrValue.
func DecodeUnthread(b []byte) (Unthread, error) {
	product, err := decode(b, TypeUnthread, UnthreadSize)
	if err != nil {
		return Unthread{}, err
	}
	for _, v := range b[offUnthreadZero:UnthreadSize] {
		if v != 0 {
			return Unthread{}, fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
		}
	}
	u := Unthread{Product: product, Index: b[offUnthreadIndex]}
	return u, checkThread(uint64(u.Index), 0)
}

// checkThread checks the index of a thread and the zero beside it, in the layout of a Shared.
func checkThread(index, zero uint64) error {
	if index >= MaxThreads || zero != 0 {
		return fmt.Errorf("%w: thread %d: an attachment has the threads 0 to %d", ErrValue, index, MaxThreads-1)
	}
	return nil
}

// Threader makes and ends the GSAS threads of a process, which receives the text of an error.
type Threader interface {
	// Thread makes a thread. The caller closes the descriptor of the tree's memory.
	Thread(t Thread) (answer Threaded, memory int, err error)
	// Unthread ends one. After it returns nothing is written to its Port.
	Unthread(index int) error
}
