// Client fetches files by HTTP, over a stream instead of TCP.
//
//	client [-socket PATH] [-node N] ADDRESS PATH...    writes the files to standard output
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

func main() {
	log.SetFlags(0)
	socket := flag.String("socket", "", "pfd's control socket; empty: the default one")
	node := flag.Uint("node", 0, "the node to attach to")
	flag.Parse()
	if flag.NArg() < 2 {
		log.Fatal("usage: client [-socket PATH] [-node N] ADDRESS PATH...")
	}
	if err := fetch(context.Background(), *socket, device.NodeID(*node), flag.Arg(0), flag.Args()[1:]); err != nil {
		log.Fatalf("client: %v", err)
	}
}

func fetch(ctx context.Context, socket string, node device.NodeID, addr string, paths []string) (err error) {
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: socket, Node: node, AcceptGroup: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return stream.Dial(ctx, ep, addr)
	}}}
	defer client.CloseIdleConnections()
	for _, path := range paths {
		r, err := client.Get("http://exanet" + path)
		if err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return err
		}
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", path, r.Status)
		}
	}
	return nil
}
