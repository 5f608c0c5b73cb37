package dht

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/anishathalye/porcupine"
)

// These are shared with the tests of the live address space, which are outside of the package.

// Input and output are those of an operation on one key, for porcupine.
type Input struct {
	Key   uint64
	Verb  string
	Value uint64
}

type output struct {
	value uint64
	has   bool
}

// Do performs the operation on a table.
func (in Input) Do(ctx context.Context, t *Table) (out any, err error) {
	var o output
	switch in.Verb {
	case "get":
		var v [16]byte
		v, o.has, err = t.Get(ctx, in.Key)
		o.value = binary.LittleEndian.Uint64(v[:])
		if o.has && v != value(o.value) {
			err = fmt.Errorf("a torn value %x", v)
		}
	case "put":
		err = t.Put(ctx, in.Key, value(in.Value))
	case "delete":
		o.has, err = t.Delete(ctx, in.Key)
	}
	return o, err
}

// KeyModel is the model of a key: operations on different keys are independent.
var KeyModel = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		m := map[uint64][]porcupine.Operation{}
		for _, o := range all {
			k := o.Input.(Input).Key
			m[k] = append(m[k], o)
		}
		return slices.Collect(maps.Values(m))
	},
	Init: func() any { return output{} },
	Step: func(state, in, out any) (bool, any) {
		s, i, o := state.(output), in.(Input), out.(output)
		switch i.Verb {
		case "get":
			return !o.has && !s.has || o.has && s.has && o.value == s.value, s
		case "put":
			return true, output{value: i.Value, has: true}
		case "delete":
			return o.has == s.has, output{}
		}
		panic(i.Verb)
	},
}

// unfinalize is the inverse of finalize.
func unfinalize(x uint64) uint64 {
	x ^= x>>31 ^ x>>62
	x *= 0x319642b2d24d8ec3
	x ^= x>>27 ^ x>>54
	x *= 0x96de1b173f119089
	x ^= x>>30 ^ x>>60
	return x
}

// Colliding returns keys of one element of a table of 2^7 elements. With kind 1 they meet in one bucket
// of each container, too, and with kind 2 besides have the same start there.
func Colliding(seed uint64, n, kind int) (keys []uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	place := r.Uint64()
	for len(keys) < n {
		h2 := r.Uint64()
		if kind > 0 {
			h2 = place
			for level := range containerLevels {
				if kind == 1 {
					h2 ^= r.Uint64N(8) << (57 - 7*level)
				}
			}
			h2 ^= r.Uint64N(256)
		}
		k := unfinalize(h2) ^ 0x9e3779b97f4a7c15
		if hash2(k) != h2 {
			panic("unfinalize is not the inverse of finalize")
		}
		if hash1(k, 7) == 43 && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
		if kind == 2 && r.IntN(1000) == 0 {
			place = r.Uint64()
			keys = keys[:0]
		}
	}
	return keys
}
