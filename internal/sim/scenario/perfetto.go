package scenario

import (
	"bufio"
	"fmt"
	"io"
)

// Perfetto writes events as Chrome's trace-event JSON, which the Perfetto viewer opens: nodes are its
// processes, transfers its threads, and a transfer and each of its blocks a slice. Close ends the JSON.
type Perfetto struct {
	w     *bufio.Writer
	count int
	named map[[2]int]bool
	open  map[[2]int]int64 // begin of a block on the network, by transfer and block
	err   error
}

// NewPerfetto returns a Perfetto that writes to w.
func NewPerfetto(w io.Writer) *Perfetto {
	p := &Perfetto{w: bufio.NewWriter(w), named: map[[2]int]bool{}, open: map[[2]int]int64{}}
	p.print(`{"displayTimeUnit":"ns","traceEvents":[`)
	return p
}

func (p *Perfetto) print(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// event writes one trace event; ph and the rest are those of the format.
func (p *Perfetto) event(ph, name string, at int64, node, transfer int, rest string) {
	if p.count++; p.count > 1 {
		p.print(",")
	}
	p.print("\n{\"ph\":%q,\"name\":%q,\"ts\":%d.%03d,\"pid\":%d,\"tid\":%d%s}", ph, name, at/1000, at%1000, node, transfer, rest)
}

// name names a node and a transfer once.
func (p *Perfetto) name(node, transfer int) {
	if !p.named[[2]int{node, -1}] {
		p.named[[2]int{node, -1}] = true
		p.event("M", "process_name", 0, node, 0, fmt.Sprintf(`,"args":{"name":"node %d"}`, node))
	}
	if !p.named[[2]int{node, transfer}] {
		p.named[[2]int{node, transfer}] = true
		p.event("M", "thread_name", 0, node, transfer, fmt.Sprintf(`,"args":{"name":"transfer %d"}`, transfer))
	}
}

// Add writes an event.
func (p *Perfetto) Add(e *Event) {
	p.name(e.Node, e.Transfer)
	block := [2]int{e.Transfer, e.Block}
	switch e.Kind {
	case Started:
		p.event("B", "transfer", e.At, e.Node, e.Transfer, "")
	case Ended:
		p.event("E", "transfer", e.At, e.Node, e.Transfer, fmt.Sprintf(`,"args":{"status":%d}`, e.Status))
	case BlockSent:
		p.open[block] = e.At
		p.event("i", fmt.Sprintf("block %d sent", e.Block), e.At, e.Node, e.Transfer, fmt.Sprintf(`,"s":"t","args":{"sequence":%d}`, e.Sequence))
	case BlockArrived:
		if at, ok := p.open[block]; ok {
			delete(p.open, block)
			p.event("X", fmt.Sprintf("block %d on the network", e.Block), at, e.Node, e.Transfer, fmt.Sprintf(`,"dur":%d.%03d`, (e.At-at)/1000, (e.At-at)%1000))
		}
	default:
		p.event("i", fmt.Sprintf("block %d: %v", e.Block, e.Kind), e.At, e.Node, e.Transfer, `,"s":"t"`)
	}
}

// Close ends the JSON and returns the first error.
func (p *Perfetto) Close() error {
	p.print("\n]}\n")
	if p.err == nil {
		p.err = p.w.Flush()
	}
	return p.err
}
