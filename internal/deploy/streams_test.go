package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// echoEnv names the socket, the node and the group of a process that sends back what it receives.
const echoEnv = "DEPLOY_TEST_ECHO"

// echo serves one connection.
func echo(args string) error {
	var socket, group string
	var node device.NodeID
	if _, err := fmt.Sscan(args, &socket, &node, &group); err != nil {
		return err
	}
	ep, err := rdma.Attach(context.Background(), rdma.Options{Socket: socket, Node: node, Group: group, AcceptGroup: true})
	if err != nil {
		return err
	}
	l, err := stream.Listen(ep, ":80")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, l.Addr()) // which the test reads while the process runs
	c, err := l.Accept()
	if err != nil {
		return err
	}
	_, err = io.Copy(c, c)
	return errors.Join(err, c.Close(), ep.Close())
}

// TestStreams moves bytes both ways between two processes, with the devices in a third one, by
// queues in memory and by registers, and with a device for each pfd.
func TestStreams(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  []string
		to    int
		apart bool
	}{
		{"queues", nil, 1, false},
		{"one node", nil, 0, false},
		{"registers", []string{"--registers"}, 1, false},
		{"apart", nil, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newPlace(t)
			l.serve()
			if !c.apart {
				socket := l.daemon([]int{0, 1}, c.args...).socket
				echoed(t, socket, socket, c.to)
				return
			}
			groups := l.file("groups")
			if err := os.WriteFile(groups, fmt.Appendf(nil, "%d app 0x4000\n", os.Getuid()), 0o600); err != nil {
				t.Fatal(err)
			}
			var sockets []string
			for node, pdids := range []string{"1-1000", "1001-2000"} {
				sockets = append(sockets, l.daemon([]int{node}, "--pdid-range", pdids, "--groups", groups).socket)
			}
			echoed(t, sockets[0], sockets[1], c.to)
		})
	}
}

func echoed(t *testing.T, from, to string, node int) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d app", echoEnv, to, node))
	p := startCommand(t, "echo", cmd)
	until(t, "the process listens", func() bool { return strings.Contains(p.err.String(), "\n") })
	ep, err := rdma.Attach(t.Context(), rdma.Options{Socket: from, Group: "app", AcceptGroup: true})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	c, err := stream.Dial(t.Context(), ep, strings.TrimSpace(p.err.String()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := make([]byte, 3<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	wrote := make(chan error, 1)
	go func() {
		for b := want; len(b) > 0; { // of 1 byte, which goes by message, to 256 KiB
			n := min(len(b), 1+r.IntN(1<<r.IntN(19)))
			if _, err := c.Write(b[:n]); err != nil {
				wrote <- err
				return
			}
			b = b[n:]
		}
		wrote <- c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-wrote); !bytes.Equal(got, want) || err != nil {
		t.Errorf("%d bytes of %d came back, %v", len(got), len(want), err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, p.err.String())
	}
}
