package hostile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/linger"
)

// linger sends descriptors whose last close, by pfd, takes a thousand seconds: over o.Size
// connections to the attachment socket, as many to the control socket, and o.Off attachments.
// It returns how many it sent, and closes all connections at once.
func (a *obedient) linger(o order) (sent int, err error) {
	q, err := linger.New()
	if err != nil {
		return 0, err
	}
	a.lingers = q // closing it would end the lingering
	send := func(c *net.UnixConn, b []byte) error {
		f, err := q.Socket()
		if err != nil {
			return err
		}
		_, _, err = c.WriteMsgUnix(b, unix.UnixRights(int(f.Fd())), nil)
		if err == nil {
			sent++
			return f.Close()
		}
		go f.Close() // this close lingers
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EPIPE) {
			return nil
		}
		return err
	}
	hello, err := (&attach.Hello{Group: "linger"}).Append(nil)
	if err != nil {
		return 0, err
	}
	for _, to := range []struct {
		network, path string
		b             []byte
	}{
		{"unixpacket", control.AttachSocket(o.Attach.Socket), hello},
		{"unix", o.Attach.Socket, []byte("GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")},
	} {
		for range o.Size {
			c, err := net.DialUnix(to.network, nil, &net.UnixAddr{Name: to.path, Net: to.network})
			if err != nil {
				return sent, err
			}
			if err := errors.Join(send(c, to.b), c.Close()); err != nil {
				return sent, err
			}
		}
	}
	for i := range o.Off {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		c, err := attach.Dial(ctx, control.AttachSocket(o.Attach.Socket))
		if err == nil {
			var fds attach.Descriptors
			_, fds, err = c.Handshake(ctx, attach.Hello{Group: "linger", Method: pagein.UFFD})
			fds.Close()
		}
		cancel()
		if err != nil {
			return sent, fmt.Errorf("attachment %d: %w", i, err)
		}
		r := attach.Range{Type: attach.TypeRegister, VA: 1 << 30, Size: 4096}
		f, err := q.Socket()
		if err != nil {
			return sent, err
		}
		if err := c.Send(r.Append(nil), int(f.Fd())); err != nil {
			return sent, err
		}
		sent++
		if err := errors.Join(f.Close(), c.Close()); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// A user makes pfd close descriptors for a thousand seconds. Other users' attachments and
// queries are served, the user's own slots become free, and pfd ends on request.
func TestLingering(t *testing.T) {
	needRoot(t, "becoming another user")
	w := start(t)
	b := w.bystander(attachOrder{UID: 3201})
	const attachments = 4
	a := w.spawn("lingerer", 3200)
	r := a.must(order{Op: "linger", Size: 70, Off: attachments, Attach: attachOrder{Socket: w.socket()}})
	t.Logf("the kernel let %d descriptors through", r.Count)
	v := w.attach("victim", attachOrder{UID: 3202})
	ctx, cancel := within(patience)
	defer cancel()
	if _, err := w.Status(ctx); err != nil {
		t.Errorf("the control socket: %v", err)
	}
	w.until("the slots are free again", func() bool {
		ds, err := w.Domains(ctx, control.AllNodes)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			if d.UID == 3200 {
				return false
			}
		}
		return true
	})
	v.kill()
	b.fine()
	b.kill()
	began := time.Now()
	w.stop()
	t.Logf("pfd ended %v after SIGTERM", time.Since(began).Round(time.Millisecond))
	a.kill()
}
