//go:build linux

package mediate_test

import (
	"context"
	"fmt"
	"os"

	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// This example drives a node that a process serves; here the same process.
func Example() {
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	node, err := serve.New(serve.Config{Nodes: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	listening, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- node.Run(ctx, dir, func() { close(listening) }) }()
	<-listening
	m, err := mediate.New(ctx, mediate.Config{Connect: []mediate.Connect{mediate.VFIOUser(serve.SocketPath(dir, 0), user.Options{})}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Nodes(), "node, served by this process:", m.Server(0) == os.Getpid())
	fmt.Println(m.Close())
	stop()
	<-ended
	// Output:
	// 1 node, served by this process: true
	// <nil>
}
