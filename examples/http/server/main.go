// Server serves the files of a directory by HTTP, over a stream instead of TCP.
//
//	server [-socket PATH] [-node N] [DIRECTORY]    prints its address, and serves until it is interrupted
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

func main() {
	log.SetFlags(0)
	socket := flag.String("socket", "", "pfd's control socket; empty: the default one")
	node := flag.Uint("node", 1, "the node to attach to")
	flag.Parse()
	if err := serve(*socket, device.NodeID(*node), flag.Arg(0)); err != nil {
		log.Fatalf("server: %v", err)
	}
}

func serve(socket string, node device.NodeID, dir string) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: socket, Node: node, AcceptGroup: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	l, err := stream.Listen(ep, ":80")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	s := &http.Server{Handler: http.FileServer(http.Dir(dir))}
	stop := context.AfterFunc(ctx, func() { s.Shutdown(context.Background()) })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
