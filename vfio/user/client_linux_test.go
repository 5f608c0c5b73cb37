package user

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestServerDies: a client detects the death of its server, while it waits for an answer and
// while it does not, and connects to the next one.
func TestServerDies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dev.sock")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, o := range []Options{{}, {NoTwin: true}} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleEnv+"=listen:"+path)
		cmd.Stderr = os.Stderr
		ok(t, cmd.Start())
		c, err := Redial(ctx, path, o, func(c *Client) error { return c.SetCommand(CommandMemory) })
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatal(err)
		}
		_, err = c.Read(0, 0, 4)
		ok(t, err)
		ok(t, cmd.Process.Signal(unix.SIGSTOP))
		answer := make(chan error, 1)
		go func() {
			_, err := c.Read(0, 0, 4)
			answer <- err
		}()
		ok(t, cmd.Process.Signal(unix.SIGCONT))
		ok(t, <-answer)
		ok(t, cmd.Process.Kill())
		_ = cmd.Wait() // "signal: killed"
		<-c.Done()
		for _, err := range []error{c.Err(), c.Write(0, 0, 4, 1), c.Post(0, 0, 4, 1), c.UnmapAllDMA(), c.Reset()} {
			if !errors.Is(err, ErrGone) {
				t.Error(err)
			}
		}
		c.Close()
		c.Close()
	}
}

// TestSlowServer: a missing answer ends the client.
func TestSlowServer(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	ok(t, err)
	defer func() { _ = unix.Close(fds[0]) }()
	if _, err := newClient(context.Background(), fds[1], Options{Timeout: 10 * time.Millisecond}); !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrGone) {
		t.Error(err)
	}
	fds2, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	ok(t, err)
	defer func() { _ = unix.Close(fds2[0]) }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := newClient(ctx, fds2[1], Options{Timeout: -1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// FuzzClient sends any bytes to a client as its server: it must fail or work, and must leak
// nothing.
func FuzzClient(f *testing.F) {
	v := raw(1, CmdVersion, flagReply, hello("{}"))
	info := raw(2, CmdDeviceInfo, flagReply, le(16, 3, 9, 5))
	both := append(append([]byte(nil), v...), info...)
	f.Add([]byte{}, false)
	f.Add(v, false)
	f.Add(raw(1, CmdVersion, flagReply, hello(`{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}`)), true)
	f.Add(raw(1, CmdVersion, flagReply|flagError, nil), true)
	for _, more := range [][]byte{
		raw(3, CmdRegionRead, flagReply, le(uint64(0), 0, 4, 77)),
		raw(3, CmdRegionRead, flagReply, le(uint64(0), 0, 8, 77)),
		raw(9, CmdDMARead, 0, le(uint64(0), uint64(64))),
		raw(9, CmdDMARead, 0, le(uint64(0), uint64(1)<<60)),
		raw(9, CmdDMAWrite, 0, le(uint64(0), uint64(4), 1)),
		raw(3, CmdRegionInfo, flagReply, le(80, 0xf, 2, 32, uint64(0x4000), uint64(0), uint16(1), uint16(1), 32, 0, 0)),
	} {
		f.Add(append(append([]byte(nil), both...), more...), true)
	}
	f.Fuzz(func(t *testing.T, stream []byte, withFD bool) {
		before := openFDs(t)
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		ok(t, err)
		server := newSocket(fds[0])
		done := make(chan struct{})
		go func() {
			defer close(done)
			for b := make([]byte, 4096); ; { // read whatever the client says
				if n, err := unix.Read(fds[0], b); n <= 0 && err != unix.EINTR {
					return
				}
			}
		}()
		if len(stream) > 0 {
			if withFD {
				_ = server.send(stream, []int{fds[0]})
			} else {
				_ = server.send(stream, nil)
			}
		}
		_ = unix.Shutdown(fds[0], unix.SHUT_WR)
		if c, err := newClient(context.Background(), fds[1], Options{}); err == nil {
			_ = c.MapBytes(0, make([]byte, 4096), DMARead|DMAWrite)
			_, _ = c.Read(0, 0, 4)
			if _, fd, err := c.Region(2); err == nil && fd >= 0 {
				closeFDs([]int{fd})
			}
			c.Close()
		}
		<-done
		server.close()
		if after := fdsAfter(t, before); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}
