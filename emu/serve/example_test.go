//go:build linux

package serve_test

import (
	"context"
	"fmt"
	"os"

	"github.com/exanet/pfd/emu/serve"
)

// A node in a process of its own, which pfd --device vfio-user:PATH drives.
func Example() {
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	m, err := serve.New(serve.Config{Nodes: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	err = m.Run(ctx, dir, func() {
		_, err := os.Stat(serve.SocketPath(dir, 0))
		fmt.Println("listening:", err == nil)
		stop()
	})
	fmt.Println(err, m.Close())
	// Output:
	// listening: true
	// <nil> <nil>
}
