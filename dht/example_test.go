package dht_test

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// A table over two nodes.
func Example() {
	ctx := context.Background()
	ep, err := rdma.Attach(ctx, rdma.Options{Threads: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ep.Close()
	thread, err := gsas.NewThread(ep)
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := dht.Create(ctx, thread, "words", dht.Options{Nodes: []device.NodeID{0, 1}, Keys: 1000})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := t.PutBytes(ctx, []byte("colour"), []byte("green")); err != nil {
		fmt.Println(err)
		return
	}
	value, ok, err := t.GetBytes(ctx, []byte("colour"))
	fmt.Println(string(value), ok, err)
}
