package rdma_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/rdma"
)

// startPFD runs a pfd with two nodes in this process, and returns its socket.
func startPFD() (socket string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		return "", nil, err
	}
	cfg := daemon.Default()
	cfg.Socket = filepath.Join(dir, "pfd.sock")
	m, err := daemon.Emulated(cfg)
	if err != nil {
		return "", nil, err
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	return cfg.Socket, func() {
		cancel()
		if err := <-done; err != nil {
			fmt.Println(err)
		}
		os.RemoveAll(dir)
	}, nil
}

// pair attaches to both nodes. Real programs are two processes, and one sends the Remote's text to
// the other.
func pair(ctx context.Context) (from, to *rdma.Endpoint, stop func(), err error) {
	socket, end, err := startPFD()
	if err != nil {
		return nil, nil, nil, err
	}
	if from, err = rdma.Attach(ctx, rdma.Options{Socket: socket, Node: 0}); err != nil {
		return nil, nil, nil, err
	}
	if to, err = rdma.Attach(ctx, rdma.Options{Socket: socket, Node: 1}); err != nil {
		return nil, nil, nil, err
	}
	return from, to, func() { from.Close(); to.Close(); end() }, nil
}

// A write into absent memory, with a notification.
func ExampleEndpoint_Write() {
	ctx := context.Background()
	from, to, stop, err := pair(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	buf, _ := to.Alloc(1 << 20) // all its pages are absent
	remote, _ := to.Export(buf.Bytes())
	last, _ := rdma.Word(buf.Bytes(), 8)

	t, err := from.Write(ctx, rdma.WriteRequest{
		Src: []byte("hello"), Dst: remote, Offset: 16,
		Notify: &rdma.Notification{First: 5, Last: 1},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t.Wait(ctx))
	fmt.Println(to.WaitNotification(ctx, last, 1))
	fmt.Printf("%s\n", buf.Bytes()[16:21])
	// Output:
	// <nil>
	// <nil>
	// hello
}

func ExampleEndpoint_Read() {
	ctx := context.Background()
	from, to, stop, err := pair(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	there := []byte("what the other process has")
	remote, _ := to.Export(there)
	here := make([]byte, 8)
	t, err := from.Read(ctx, rdma.ReadRequest{Dst: here, Src: remote, Offset: 9})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t.Wait(ctx))
	fmt.Printf("%s\n", here)
	// Output:
	// <nil>
	// other pr
}

// Many writes, more than there are channels, collected as they end.
func ExampleQueue_Finished() {
	ctx := context.Background()
	from, to, stop, err := pair(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	const pieces, size = 100, 1000
	data := make([]byte, pieces*size)
	remote, _ := to.Export(make([]byte, len(data)))
	queue := from.NewQueue()
	for i := range pieces {
		if _, err := from.Write(ctx, rdma.WriteRequest{
			Src: data[i*size:][:size], Dst: remote, Offset: uint64(i * size),
			Queue: queue, ID: uint64(i), Wait: true,
		}); err != nil {
			fmt.Println(err)
			return
		}
	}
	ended := 0
	for t, err := range queue.Finished(ctx) {
		if err != nil {
			fmt.Printf("piece %d: %v\n", t.ID(), err)
		}
		ended++
	}
	fmt.Println(ended, "pieces")
	// Output:
	// 100 pieces
}

// A header and a body, which are contiguous at the destination.
func ExampleWriteRequest_gather() {
	ctx := context.Background()
	from, to, stop, err := pair(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	buf := make([]byte, 12)
	remote, _ := to.Export(buf)
	t, err := from.Write(ctx, rdma.WriteRequest{Gather: [][]byte{[]byte("head "), []byte("and body")[:7]}, Dst: remote})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t.Wait(ctx))
	fmt.Printf("%s\n", buf)
	// Output:
	// <nil>
	// head and bod
}

func ExampleParseRemote() {
	r, err := rdma.ParseRemote("exanet2:000001:0002:0000000a:00007f0012340000:0000000000001000")
	fmt.Println(r.Node, r.PDID, r.VA, r.Len, err)
	// Output:
	// 1 2 0x7f0012340000 4096 <nil>
}
