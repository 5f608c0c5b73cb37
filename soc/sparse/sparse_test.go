package sparse

import (
	"math/rand/v2"
	"testing"
)

// A table is an array.
func TestTable(t *testing.T) {
	var table Table[uint16]
	var array [Size]uint16
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		i, v := rng.IntN(3*Size), uint16(rng.Uint32())
		*table.At(i), array[i%Size] = v, v
		seen := 0
		for i, e := range table.All() {
			if *e != array[i] {
				t.Fatalf("entry %d is %d, want %d", i, *e, array[i])
			}
			array[i], *e = array[i]+1, *e+1
			seen++
		}
		if seen%part != 0 || seen == 0 {
			t.Fatalf("%d entries have memory", seen)
		}
	}
	for i := range array {
		switch e := table.Find(i); {
		case e == nil && array[i] != 0, e != nil && *e != array[i]:
			t.Fatalf("entry %d, want %d", i, array[i])
		}
	}
	if table.Clear(); table.Find(0) != nil || *table.At(0) != 0 {
		t.Error("a table that was cleared has entries")
	}
}

// Of a table that holds one entry, only one part has memory.
func TestOnePart(t *testing.T) {
	var table Table[int]
	*table.At(100) = 1
	n := 0
	for range table.All() {
		n++
	}
	if n != part {
		t.Errorf("%d entries have memory", n)
	}
}
