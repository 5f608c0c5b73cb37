package hosts

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/netns"
	files "github.com/exanet/pfd/link/hosts"
	"github.com/exanet/pfd/rdma"
)

// A listener on the cable sees no byte of a write, except without TLS.
func TestNothingIsPlain(t *testing.T) {
	for _, tls := range []string{"on", "off"} {
		t.Run("tls "+tls, func(t *testing.T) {
			c := prepare(t, 2, 1)
			if tls == "off" {
				path := filepath.Join(c.hosts[0].dir, files.FileName)
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				plain := strings.Replace(string(text), "\n[[host]]", "tls = \"off\"\ntrusted-network = \"10.77.0.0/24\"\n\n[[host]]", 1)
				if err := os.WriteFile(path, []byte(plain), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			marker := []byte("sixteen letters!")
			listener := listen(t, c.mesh.Machine(1), netns.Cable(0), marker)
			for _, h := range c.hosts {
				h.startPFD()
				h.startHostd()
			}
			c.up()
			from, to := c.hosts[0].attach(0, rdma.Options{}), c.hosts[1].attach(0, rdma.Options{})
			dst := bytes.Repeat(marker, 1<<14)
			remote, err := to.Export(dst)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			before := listener.all.Load()
			for range 4 {
				tr, err := from.Write(ctx, rdma.WriteRequest{Src: bytes.Clone(dst), Dst: remote})
				if err == nil {
					err = tr.Wait(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			// The listener may be behind, and loses packets if it is far behind.
			wait(t, "packets are seen", func() bool { return listener.all.Load() > before+1<<14 })
			if tls == "off" {
				wait(t, "plain bytes are seen", func() bool { return listener.plain.Load() > 0 })
			} else if n := listener.plain.Load(); n > 0 {
				t.Errorf("%d packets have plain bytes", n)
			}
		})
	}
}

// cableListener reads what a cable carries.
type cableListener struct {
	all   atomic.Int64 // bytes
	plain atomic.Int64 // packets with the marker
}

// listen reads a machine's cable until the test ends.
func listen(t *testing.T, m *netns.Machine, cable string, marker []byte) *cableListener {
	t.Helper()
	l := &cableListener{}
	fd := -1
	err := m.Do(func() (err error) {
		// ETH_P_ALL in network byte order, as packet(7) wants it.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.ETH_P_ALL<<8)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), cable)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1<<17)
		for {
			n, err := f.Read(b)
			if err != nil {
				return
			}
			l.all.Add(int64(n))
			if bytes.Contains(b[:n], marker) {
				l.plain.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		_ = f.Close()
		<-done
	})
	return l
}
