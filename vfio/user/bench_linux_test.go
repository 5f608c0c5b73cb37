package user

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roleEnv names the role of the benchmark's child process; its end of the socket is descriptor 3.
const roleEnv = "VFIO_USER_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := child(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child serves until its socket ends.
func child(role string) error {
	path, listens := strings.CutPrefix(role, "listen:")
	switch role {
	case "echo-net":
		f := os.NewFile(3, "socket")
		c, err := net.FileConn(f)
		if err != nil {
			return err
		}
		var b [64]byte
		for {
			if _, err := c.Read(b[:]); err != nil {
				return nil
			}
			if _, err := c.Write(b[:]); err != nil {
				return nil
			}
		}
	case "echo":
		var b [64]byte
		for {
			if n, err := unix.Read(3, b[:]); n <= 0 || err != nil {
				if err == unix.EINTR {
					continue
				}
				return nil
			}
			if _, err := unix.Write(3, b[:]); err != nil {
				return nil
			}
		}
	}
	d := &testDevice{}
	cfg := testConfig(d)
	cfg.BARs[2] = BAR{}
	if role == "server-run" {
		posts := make(chan func())
		go func() {
			for f := range posts {
				f()
			}
		}()
		done := make(chan struct{})
		cfg.Run = func(f func()) {
			posts <- func() { f(); done <- struct{}{} }
			<-done
		}
	}
	s, err := New(cfg, benchDevice{d})
	if err != nil {
		return err
	}
	if listens {
		return s.Serve(context.Background(), path)
	}
	_ = s.ServeConn(3)
	return nil
}

type benchDevice struct{ *testDevice }

func (d benchDevice) Read(bar int, offset uint64, size int) uint64 { return offset }

// start runs a child and returns our end of its socket.
func start(b *testing.B, role string) int {
	b.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "socket")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	_ = theirs.Close()
	b.Cleanup(func() {
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	return fds[0]
}

// BenchmarkRegisterRead times a register read between two processes and, in turns, a bare
// exchange of 64 bytes over the same kind of socket. It reports the medians. "ping" is the
// exchange by blocking read and write, "net" by package net. The caller chooses the processors of
// the two processes.
func BenchmarkRegisterRead(b *testing.B) {
	type contender struct {
		name string
		f    func() error
		all  []time.Duration
	}
	var buf [64]byte
	ping := start(b, "echo")
	f := os.NewFile(uintptr(start(b, "echo-net")), "socket")
	conn, err := net.FileConn(f)
	if err != nil {
		b.Fatal(err)
	}
	_ = f.Close()
	cs := []*contender{
		{name: "ping", f: func() error {
			if _, err := unix.Write(ping, buf[:]); err != nil {
				return err
			}
			for {
				if _, err := unix.Read(ping, buf[:]); err != unix.EINTR {
					return err
				}
			}
		}},
		{name: "net", f: func() error {
			if _, err := conn.Write(buf[:]); err != nil {
				return err
			}
			_, err := conn.Read(buf[:])
			return err
		}},
	}
	for _, v := range []struct{ name, role string }{{"read", "server"}, {"run", "server-run"}} {
		c, err := newClient(context.Background(), start(b, v.role), Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.Close)
		if err := c.SetCommand(CommandMemory); err != nil {
			b.Fatal(err)
		}
		cs = append(cs, &contender{name: v.name, f: func() error {
			_, err := c.Read(0, 64, 4)
			return err
		}})
	}
	b.Cleanup(func() { _ = unix.Close(ping); _ = conn.Close() })
	b.ReportAllocs()
	const round = 500
	for b.Loop() {
		for _, c := range cs {
			for range round {
				t := time.Now()
				if err := c.f(); err != nil {
					b.Fatal(err)
				}
				c.all = append(c.all, time.Since(t))
			}
		}
	}
	for _, c := range cs {
		slices.Sort(c.all)
		b.ReportMetric(float64(c.all[len(c.all)/2].Nanoseconds()), c.name+"-p50-ns")
	}
	b.ReportMetric(float64(cs[2].all[len(cs[2].all)/2])/float64(cs[0].all[len(cs[0].all)/2]), "read/ping")
}

// BenchmarkDMA times the device's accesses to mapped memory.
func BenchmarkDMA(b *testing.B) {
	s := newSpace(100)
	fd := memfd(b, 4<<20, 0)
	if err := s.add(DMAMap{dmaMapSize, DMARead | DMAWrite, 0, 0, 4 << 20}, fd); err != nil {
		b.Fatal(err)
	}
	defer s.clear()
	s.list[0].area.file = reopen(fd, 4<<20, true)
	for _, n := range []int{8, 4096, 256 << 10} {
		p := make([]byte, n)
		for name, by := range map[string]toucher{"read": touch, "read-aside": touchAside} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					if err := s.accessBy(by, 4096, p, false, nil, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
