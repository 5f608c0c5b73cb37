// Putget writes a line into the memory of another process, and reads it from there.
//
//	putget [-socket PATH] target              exports memory and prints its name
//	putget [-socket PATH] put REMOTE TEXT     writes TEXT into it
//	putget [-socket PATH] get REMOTE          reads what is there
//
// With -node N it attaches to node N, else target to node 1 and the others to node 0.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// The exported memory: a page with two completion words, the first of which is the line's length,
// and a page for the line.
const (
	size = 2 * 4096
	text = 4096
	came = 1 // the last completion word
)

func main() {
	log.SetFlags(0)
	socket := flag.String("socket", "", "pfd's control socket; empty: the default one")
	node := flag.Int("node", -1, "node to attach to (default 1 for target, else 0)")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := run(ctx, *socket, *node, flag.Args()); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatalf("putget: %v", err)
	}
}

func run(ctx context.Context, socket string, node int, args []string) (err error) {
	o := rdma.Options{Socket: socket, Node: 0}
	if len(args) == 1 && args[0] == "target" {
		o.Node, o.AcceptGroup = 1, true
	}
	if node >= 0 {
		o.Node = device.NodeID(node)
	}
	ep, err := rdma.Attach(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	switch {
	case len(args) == 1 && args[0] == "target":
		return target(ctx, ep)
	case len(args) == 3 && args[0] == "put":
		return put(ctx, ep, args[1], args[2])
	case len(args) == 2 && args[0] == "get":
		return get(ctx, ep, args[1])
	}
	return errors.New("usage: putget target | put REMOTE TEXT | get REMOTE")
}

// target receives one line, and keeps its memory until it is interrupted.
func target(ctx context.Context, ep *rdma.Endpoint) error {
	buf, err := ep.Alloc(size) // all its pages are absent
	if err != nil {
		return err
	}
	remote, err := ep.Export(buf.Bytes())
	if err != nil {
		return err
	}
	last, err := rdma.Word(buf.Bytes(), 8)
	if err != nil {
		return err
	}
	*last = 0 // now the page of the words is present, and that of the line absent
	fmt.Println(remote)
	if err := ep.WaitNotification(ctx, last, came); err != nil {
		return err
	}
	line, err := lineOf(buf.Bytes())
	if err != nil {
		return err
	}
	fmt.Println(line)
	<-ctx.Done()
	return nil
}

func put(ctx context.Context, ep *rdma.Endpoint, name, line string) error {
	remote, err := rdma.ParseRemote(name)
	if err != nil {
		return err
	}
	t, err := ep.Write(ctx, rdma.WriteRequest{
		Src: []byte(line), Dst: remote, Offset: text,
		Notify: &rdma.Notification{Offset: 0, First: uint64(len(line)), Last: came},
	})
	if err != nil {
		return err
	}
	return t.Wait(ctx)
}

func get(ctx context.Context, ep *rdma.Endpoint, name string) error {
	remote, err := rdma.ParseRemote(name)
	if err != nil {
		return err
	}
	buf := make([]byte, remote.Len)
	t, err := ep.Read(ctx, rdma.ReadRequest{Dst: buf, Src: remote})
	if err != nil {
		return err
	}
	if err := t.Wait(ctx); err != nil {
		return err
	}
	line, err := lineOf(buf)
	if err != nil {
		return err
	}
	fmt.Println(line)
	return nil
}

// lineOf returns the line in memory that another process has written.
func lineOf(b []byte) (string, error) {
	if len(b) < text {
		return "", fmt.Errorf("%d bytes are exported: a line begins at offset %d", len(b), text)
	}
	n, last := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	if last != came {
		return "", errors.New("no line has arrived yet")
	}
	if n > uint64(len(b)-text) {
		return "", fmt.Errorf("a line of %d bytes in %d", n, len(b)-text)
	}
	return string(b[text : text+n]), nil
}
