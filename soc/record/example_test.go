package record_test

import (
	"bytes"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/record"
)

// A recording of one register's load, read back.
func Example() {
	var file bytes.Buffer
	w := record.NewWriter(&file, record.Header{Nodes: 2, VABits: 48, Epoch: 7}, func(err error) { fmt.Println(err) })
	w.Load(1, device.PL, 0, 4, device.IDValue)
	if err := w.Close(); err != nil {
		fmt.Println(err)
	}
	r, err := record.NewReader(&file)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Header().Nodes, "nodes")
	var rec record.Record
	if err := r.Next(&rec); err != nil {
		fmt.Println(err)
	}
	fmt.Println("node", rec.Node, rec.Window, rec.Offset)
	// Output:
	// 2 nodes
	// node 1 pl 0
}
