package pldma_test

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/fifo"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/wire"
)

// printer prints the engine's outputs.
type printer struct{}

func (printer) Walk(a *pldma.Access)                { fmt.Println("walk") }
func (printer) Move(a *pldma.Access)                { fmt.Println("move") }
func (printer) Sent(id device.TransactionID)        { fmt.Println("sent", id) }
func (printer) SourceFault(id device.TransactionID) { fmt.Println("source fault", id) }
func (printer) Written(slot uint8, va device.VA)    { fmt.Println("written", va) }
func (printer) Transmit(f *wire.Frame)              { fmt.Println("transmit kind", f.Kind, "code", f.Code) }

// Data for a domain that the node does not have is refused without a memory access.
func Example() {
	var counts [device.Counters]uint64
	e := pldma.New(pldma.Config{
		Node: 1, VABits: 48, Pool: new(wire.Pool), SMMU: smmu.New(&counts), RX: new(fifo.FIFO), TX: new(fifo.FIFO), Counts: &counts,
	}, printer{})
	e.Reset(7)
	b := make([]byte, 64)
	frame := func(link uint32) *wire.Frame {
		return &wire.Frame{
			Header:  wire.Header{Kind: wire.Data, Epoch: 3, Link: link, DstNode: 1, DstPDID: 9, Length: 64, Remaining: 64, VA: 4096, Last: true},
			Present: wire.All(64), Payload: b,
		}
	}
	e.Receive(0, frame(0)) // of an unknown life: the node sends a link number
	// Output: transmit kind 5 code 0
}
