package gsas_test

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// A word that the threads of a tree add to.
func Example() {
	ctx := context.Background()
	ep, err := rdma.Attach(ctx, rdma.Options{Threads: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ep.Close()
	t, err := gsas.NewThread(ep)
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := t.Alloc(ctx, t.Node(), 1, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	before, err := t.FetchAdd(ctx, a, 1)
	fmt.Println(before, err)
}
