// Package sparse has tables of which only the parts that are in use take memory. The hardware has all of a
// table; a program that simulates thousands of nodes cannot.
package sparse

import "iter"

const (
	// Size is the number of a table's entries: of the transaction IDs of a node, and of its channels.
	Size = 1024

	part = 16 // entries that are made together
)

// Table is an array of Size entries. Its zero value has zeros, and takes no memory but for its parts'
// pointers.
type Table[T any] struct{ parts [Size / part]*[part]T }

// At returns an entry, whose index is taken modulo Size.
func (t *Table[T]) At(i int) *T {
	p := t.parts[uint(i)/part%(Size/part)]
	if p == nil {
		p = t.grow(i)
	}
	return &p[uint(i)%part]
}

// Find returns an entry, nil if it is zero and has no memory.
func (t *Table[T]) Find(i int) *T {
	p := t.parts[uint(i)/part%(Size/part)]
	if p == nil {
		return nil
	}
	return &p[uint(i)%part]
}

func (t *Table[T]) grow(i int) *[part]T {
	p := new([part]T)
	t.parts[uint(i)/part%(Size/part)] = p
	return p
}

// All iterates over the entries of the parts that have memory; all others are zero.
func (t *Table[T]) All() iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		for i, p := range t.parts {
			if p == nil {
				continue
			}
			for k := range p {
				if !yield(i*part+k, &p[k]) {
					return
				}
			}
		}
	}
}

// Clear sets all entries to zero.
func (t *Table[T]) Clear() { *t = Table[T]{} }
