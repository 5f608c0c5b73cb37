package gsas_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc/gsas"
)

// memory is a host with one word.
type memory struct{ word, old uint64 }

func (m *memory) Perform(a *gsas.Access) {
	words := [atomics.MaxValues]uint64{m.word}
	m.old = a.Op.Apply(&words, &a.Args)[0]
	m.word = words[0]
	fmt.Println(a.Op, "at", a.Back)
}

func (m *memory) Answer(_ *gsas.Source, words []uint64) {
	a, err := atomics.DecodeAnswer(words)
	fmt.Println(a.Status, a.Values[0], err)
}

// A thread adds 1 to a word of its tree's page. Asked twice, the unit does it once.
func Example() {
	const root = 0x800000 // the thread of interface 32 of node 0
	m := &memory{word: 41}
	u := gsas.New(m)
	u.Store(0, device.PLGSASCtrl, device.GSASEnable)
	u.Store(0, device.PLGSASPage, device.GSASRun(0, 1))
	u.Store(0, device.PLGSASEntry, device.GSASEntry{Protection: root, Present: true, Valid: true}.Encode())

	r := atomics.Request{Thread: root, Protection: root, Op: atomics.FetchAdd, Address: atomics.At(0, 8), Args: [atomics.MaxArgs]uint64{1}}
	var words [atomics.MaxRequest]uint64
	n := r.Encode(words[:])
	from := gsas.Source{Node: 0, Interface: 32, Generation: 1, Number: 0}
	u.Request(0, &from, words[:n])
	u.Done(0, 1*gsas.InFlight, atomics.OK, []uint64{m.old})
	u.Request(1, &from, words[:n])
	fmt.Println(m.word)
	// Output:
	// fetch_add at 8
	// done 41 <nil>
	// done 41 <nil>
	// 42
}
