package gsas

import (
	"context"
	"errors"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Load64 returns the word at an address.
func (t *Thread) Load64(ctx context.Context, a Address) (uint64, error) {
	v, err := t.do(ctx, atomics.Read64, a)
	return v.Values[0], err
}

// Load128 returns two words at an address, from one moment.
func (t *Thread) Load128(ctx context.Context, a Address) ([2]uint64, error) {
	v, err := t.do(ctx, atomics.Read128, a)
	return [2]uint64(v.Values[:]), err
}

// Load256 returns four words at an address, from one moment.
func (t *Thread) Load256(ctx context.Context, a Address) ([4]uint64, error) {
	v, err := t.do(ctx, atomics.Read256, a)
	return v.Values, err
}

// Store64 stores a word.
func (t *Thread) Store64(ctx context.Context, a Address, v uint64) error {
	_, err := t.do(ctx, atomics.Write64, a, v)
	return err
}

// Store128 stores two words at once.
func (t *Thread) Store128(ctx context.Context, a Address, v [2]uint64) error {
	_, err := t.do(ctx, atomics.Write128, a, v[:]...)
	return err
}

// Store256 stores four words at once.
func (t *Thread) Store256(ctx context.Context, a Address, v [4]uint64) error {
	_, err := t.do(ctx, atomics.Write256, a, v[:]...)
	return err
}

// FetchAdd adds v to a word, modulo 2^64, and returns its value from before.
func (t *Thread) FetchAdd(ctx context.Context, a Address, v uint64) (old uint64, err error) {
	return t.change(ctx, atomics.FetchAdd, a, v)
}

// Swap stores a word and returns its value from before.
func (t *Thread) Swap(ctx context.Context, a Address, v uint64) (old uint64, err error) {
	return t.change(ctx, atomics.Swap, a, v)
}

// FetchAnd, FetchOr and FetchXor combine a word with v and return its value from before.
func (t *Thread) FetchAnd(ctx context.Context, a Address, v uint64) (old uint64, err error) {
	return t.change(ctx, atomics.FetchAnd, a, v)
}

// FetchOr is FetchAnd with or.
func (t *Thread) FetchOr(ctx context.Context, a Address, v uint64) (old uint64, err error) {
	return t.change(ctx, atomics.FetchOr, a, v)
}

// FetchXor is FetchAnd with exclusive or.
func (t *Thread) FetchXor(ctx context.Context, a Address, v uint64) (old uint64, err error) {
	return t.change(ctx, atomics.FetchXor, a, v)
}

// CompareSwap stores a word if the one there is expected, and returns its value from before: it has
// stored the word if that equals expected.
func (t *Thread) CompareSwap(ctx context.Context, a Address, expected, v uint64) (old uint64, err error) {
	return t.change(ctx, atomics.CAS, a, expected, v)
}

// CompareSwap128 is CompareSwap of two words at once.
func (t *Thread) CompareSwap128(ctx context.Context, a Address, expected, v [2]uint64) (old [2]uint64, err error) {
	got, err := t.do(ctx, atomics.CAS128, a, expected[0], expected[1], v[0], v[1])
	return [2]uint64(got.Values[:]), err
}

// CompareStore256 stores four words at once if the first one there is expected, and returns the words
// from before.
func (t *Thread) CompareStore256(ctx context.Context, a Address, expected uint64, v [4]uint64) (old [4]uint64, err error) {
	got, err := t.do(ctx, atomics.CWrite256, a, expected, v[0], v[1], v[2], v[3])
	return got.Values, err
}

func (t *Thread) change(ctx context.Context, op atomics.Op, a Address, args ...uint64) (uint64, error) {
	v, err := t.do(ctx, op, a, args...)
	return v.Values[0], err
}

// Alloc assigns to the tree consecutive pages of a node, which are zero, and absent until they are used. If
// hint is not 0, they begin there if those pages are free, on that node, and either in the tree's part of
// the partition or its Directory; else they are elsewhere. Every thread of the tree accesses them, on all
// nodes.
func (t *Thread) Alloc(ctx context.Context, node device.NodeID, pages uint64, hint Address) (Address, error) {
	if node > atomics.MaxNode {
		return 0, &Error{atomics.Alloc.String(), 0, ErrAddress}
	}
	v, err := t.do(ctx, atomics.Alloc, At(node, 0), pages, uint64(hint))
	return Address(v.Values[0]), err
}

// Free frees the pages of one Alloc. After it returns no operation accesses them.
func (t *Thread) Free(ctx context.Context, a Address) error {
	_, err := t.do(ctx, atomics.Free, a)
	return err
}

// Alive reports whether a thread of the tree lives. The thread's node answers: if that does not exist, or its
// host is gone, the thread does not live.
func (t *Thread) Alive(ctx context.Context, thread uint32) (bool, error) {
	node := t.node
	if n := atomics.Thread(thread).Node(); thread <= atomics.IDMask && n <= atomics.MaxNode {
		node = n
	}
	v, err := t.do(ctx, atomics.Alive, At(node, 0), uint64(thread))
	if node != t.node && errors.Is(err, ErrAddress) {
		return false, nil
	}
	return v.Values[0] != 0, err
}
