package stream_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// ends attaches to both nodes of a pfd. Real programs are two processes.
func ends(ctx context.Context) (from, to *rdma.Endpoint, stop func(), err error) {
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		return nil, nil, nil, err
	}
	cfg := daemon.Default()
	cfg.Socket = filepath.Join(dir, "pfd.sock")
	m, err := daemon.Emulated(cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	// The processes of a group admit each other with AcceptGroup.
	if from, err = rdma.Attach(ctx, rdma.Options{Socket: cfg.Socket, Node: 0, AcceptGroup: true}); err == nil {
		to, err = rdma.Attach(ctx, rdma.Options{Socket: cfg.Socket, Node: 1, AcceptGroup: true})
	}
	return from, to, func() {
		from.Close()
		to.Close()
		cancel()
		<-done
		os.RemoveAll(dir)
	}, err
}

// A server and a client of net/http.
func Example() {
	ctx := context.Background()
	from, to, stop, err := ends(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	l, err := stream.Listen(to, ":80")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s", r.URL.Path[1:])
	})}
	go server.Serve(l)
	defer server.Close()

	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return stream.Dial(ctx, from, l.Addr().String())
		},
	}}
	resp, err := client.Get("http://exanet/world")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	fmt.Println(string(b), err)
	// Output: hello, world <nil>
}
