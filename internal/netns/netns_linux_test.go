package netns

import (
	"bufio"
	"errors"
	"net"
	"testing"
)

// A cut cable carries nothing, the others stay, and a repaired one carries what was sent
// meanwhile.
func TestMesh(t *testing.T) {
	m, err := New(3)
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	conns := map[int]net.Conn{}
	readers := map[int]*bufio.Reader{}
	for i := 1; i < 3; i++ {
		var l net.Listener
		if err := m.Machine(i).Do(func() (err error) {
			l, err = net.Listen("tcp", net.JoinHostPort(m.Machine(i).Addr().String(), "7"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := m.Machine(0).Do(func() (err error) {
			conns[i], err = net.Dial("tcp", l.Addr().String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		readers[i] = bufio.NewReader(c)
	}
	send := func(i int, text string) {
		t.Helper()
		if _, err := conns[i].Write([]byte(text + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	read := func(i int, want string) {
		t.Helper()
		if got, err := readers[i].ReadString('\n'); err != nil || got != want+"\n" {
			t.Fatalf("machine %d reads %q, %v, want %q", i, got, err, want)
		}
	}
	for i := range conns {
		send(i, "whole")
		read(i, "whole")
	}
	if err := m.Cut(0, 1); err != nil {
		t.Fatal(err)
	}
	send(1, "cut")
	send(2, "cut")
	read(2, "cut")
	if n := readers[1].Buffered(); n > 0 {
		t.Errorf("%d bytes came through a cut cable", n)
	}
	if err := m.Repair(0, 1); err != nil {
		t.Fatal(err)
	}
	read(1, "cut")
	if err := m.Machine(0).Run("ip", "link", "show", Cable(0)); err == nil {
		t.Error("a machine has a cable to itself")
	}
}
