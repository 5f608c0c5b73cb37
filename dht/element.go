package dht

import "math/bits"

// An element is 256 bits: one DHTNode of the seed (D3.7 figure 14), which READ256 reads and CWRITE256
// writes as a whole. The seed names its five fields, but not their widths or places in word 0: those
// are defined here.
//
//	word 0  [0] indirect, [1] lock, [2] deleted, [3] record, [31:8] thread id of the lock's holder,
//	        [63:32] version, which grows by 1 with each update
//	word 1  the key; of an indirect element the address of its container
//	word 2, 3  the value; of a record its address, and its length and checksum
//
// An element whose word 0 is zero is empty. No version is zero, so that no other element looks so.
type element [4]uint64

const (
	// elementBytes is the size of an element.
	elementBytes = 32

	flagIndirect = 1 << 0
	flagLock     = 1 << 1
	flagDeleted  = 1 << 2
	flagRecord   = 1 << 3

	holderShift  = 8
	holderMask   = 0xffffff
	versionShift = 32
)

func (e element) empty() bool     { return e[0] == 0 }
func (e element) indirect() bool  { return e[0]&flagIndirect != 0 }
func (e element) locked() bool    { return e[0]&flagLock != 0 }
func (e element) deleted() bool   { return e[0]&flagDeleted != 0 }
func (e element) record() bool    { return e[0]&flagRecord != 0 }
func (e element) holder() uint32  { return uint32(e[0] >> holderShift & holderMask) }
func (e element) version() uint32 { return uint32(e[0] >> versionShift) }

// holds reports whether e is the element of a key, which may be deleted.
func (e element) holds(key uint64) bool { return !e.empty() && !e.indirect() && e[1] == key }

// next returns word 0 of the update that follows e: the flags given, and the next version.
func (e element) next(flags uint64) uint64 {
	v := e.version() + 1
	if v == 0 {
		v = 1
	}
	return flags | uint64(v)<<versionShift
}

// A container is one page of elements, 16 buckets of 8. The seed has 128 elements and does not say
// what happens if two keys meet in one of them; the buckets are defined here. A key belongs to one
// bucket, and in it to the first element, counted from a start of its own, that is empty or holds it.
// No element becomes empty again, so that two searches for one key end at the same element. If all
// eight hold other keys, the last one becomes indirect.
const (
	containerBytes  = 4096
	bucketElements  = 8
	bucketLast      = bucketElements - 1
	containerBits   = 7
	containerLevels = 8
)

// finalize is the 64-bit finalizer of SplitMix.
func finalize(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return x
}

// hash1 returns the element of the first level that a key belongs to, of 2^log: the seed's h1.
func hash1(key uint64, log uint) uint64 { return finalize(key) >> (64 - log) }

// hash2 returns the places of a key in the containers below it: the seed's h2, and its like for the
// levels below.
func hash2(key uint64) uint64 { return finalize(key ^ 0x9e3779b97f4a7c15) }

// slot returns the index in a container of the i-th element that a key may be in. The level of the
// container that a first element points to is 0.
func slot(h2 uint64, level, i int) int {
	h := int(bits.RotateLeft64(h2, containerBits*(level+1)) & (1<<containerBits - 1))
	return h&^bucketLast | (h+i)&bucketLast
}

// last returns the index in a container of the last element of a key's bucket.
func last(h2 uint64, level int) int { return slot(h2, level, 0) | bucketLast }
