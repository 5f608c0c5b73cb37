//go:build linux

package control_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
)

// List pfd's nodes through its control socket.
func ExampleClient_Nodes() {
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	// A pfd in this process, with two nodes.
	cfg := daemon.Default()
	cfg.Socket = filepath.Join(dir, "pfd.sock")
	m, err := daemon.Emulated(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()

	client, err := control.New(cfg.Socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	nodes, err := client.Nodes(ctx, control.AllNodes)
	for ; err != nil; nodes, err = client.Nodes(ctx, control.AllNodes) {
		time.Sleep(time.Millisecond) // until it has started
	}
	for _, n := range nodes {
		fmt.Println("node", n.Index, "version", n.Version)
	}
	cancel()
	fmt.Println(<-ended)
	// Output:
	// node 0 version 1.0
	// node 1 version 1.0
	// <nil>
}
