package link_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/wire"
)

// A link that loses every acknowledgement still carries data.
func ExampleLink_Carry() {
	pool := new(wire.Pool)
	l := link.New(link.Injection{LoseAck: 1e6}, rand.New(rand.NewPCG(1, 1)), pool)
	ack := l.Carry(0, &wire.Frame{Header: wire.Header{Kind: wire.Ack}}, nil)
	words := l.Carry(1000, &wire.Frame{Header: wire.Header{Kind: wire.Words}}, nil)
	fmt.Println(len(ack), l.Lost[wire.Ack])
	fmt.Println(len(words), words[0].At)
	// Output:
	// 0 1
	// 1 1201
}
