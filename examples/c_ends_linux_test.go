package examples

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/netlink"
)

// attached is pfd's side of an attachment.
type attached struct {
	*attach.Pages
	pid  int
	send func(netlink.Fault) error
}

// store writes words to the client's memory.
func (c attached) store(va uint64, words ...uint64) error {
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	for i, w := range words {
		if _, err := mem.WriteAt(binary.LittleEndian.AppendUint64(nil, w), int64(va)+8*int64(i)); err != nil {
			return err
		}
	}
	return nil
}

// late is the delay after which a word changes: a client checks the word before.
const late = 100 * time.Millisecond

// silent is a pfd that calls then for each attachment and then ends like a killed one: the
// connection closes without a message in the pages.
func silent(t *testing.T, method pagein.Method, then func(attached) error) string {
	t.Helper()
	sender, err := netlink.OpenSender()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(public(t), "pfd.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket + attach.SocketSuffix, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	session := func(ctx context.Context, c *attach.Conn) error {
		if _, err := c.AwaitHello(ctx); err != nil {
			return err
		}
		m, err := attach.NewMemory()
		if err != nil {
			return err
		}
		defer m.Close()
		f, port, err := netlink.NewReceiver(sender.Port())
		if err != nil {
			return err
		}
		defer f.Close()
		if err := c.Offer(ctx, m, int(f.Fd())); err != nil {
			return err
		}
		if err := c.Welcome(attach.Welcome{Grant: attach.Grant{
			Interface: device.MailboxProcess, VABits: 48, PDID: 7, Generation: 1, Caps: device.CapsSVA,
			Method: method, Policy: pagein.PIO, PFDPort: sender.Port(), OwnPort: port, PFDPID: uint32(os.Getpid()),
		}}); err != nil {
			return err
		}
		return then(attached{m.Pages, c.Peer().PID, func(f netlink.Fault) error { return sender.Send(port, f) }})
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- attach.Serve(ctx, l, func(ctx context.Context, c *attach.Conn) {
			if err := session(ctx, c); err != nil {
				t.Error(err)
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		sender.Close()
	})
	return socket
}

// until waits for an action of the client.
func until(what string, is func() bool) error {
	for began := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			return fmt.Errorf("the client does not %s", what)
		}
	}
	return nil
}

// A killed pfd writes nothing to the pages and reads nothing from them: every call still ends, and
// what arrived before the end is reported.
func TestKilledDaemon(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin := compile(t, dir, filepath.Join("..", "testdata", "ends"))
	starts := func(c attached) error {
		err := until("ring", func() bool { return c.TakeDoorbell() != 0 })
		c.SetDone(0, device.DoneOngoing, 0, 0)
		return err
	}
	for name, c := range map[string]struct {
		command string
		method  pagein.Method
		then    func(attached) error
		want    string
	}{
		"a transfer goes on": {"wait", pagein.GUP, starts, "10\n"},
		"a transfer is over": {"late", pagein.GUP, func(c attached) error {
			err := starts(c)
			time.Sleep(late)
			c.SetDone(0, device.DoneCompleted, 0, 0)
			return err
		}, "0\n"},
		"a word came": {"word", pagein.GUP, func(c attached) error {
			if err := starts(c); err != nil {
				return err
			}
			time.Sleep(late)
			var d device.Descriptor
			c.Descriptor(0, &d)
			return c.store(uint64(d.Dst), 7)
		}, "0\n"},
		"a number of no transfer": {"number", pagein.GUP, func(attached) error { return nil },
			"transfer 1234: no exanet_write or exanet_read of this attachment returned that number\n"},
		"a read is over": {"read", pagein.GUP, func(c attached) error {
			var m attach.Message
			if err := until("ask", func() bool { return c.TakeSend(2, &m) }); err != nil {
				return err
			}
			c.SetPktzStatus(2, device.PktzFree)
			time.Sleep(late)
			return c.store(m.Words[3], m.Words[4], m.Words[5])
		}, "0\n"},
		"a doorbell stands there": {"abort", pagein.GUP, func(c attached) error {
			return until("send", func() bool { return c.SendStatus(0) == device.PktzBusy })
		}, "1 1\n"},
		"a fault hangs": {"hung", pagein.Touch, func(c attached) error {
			err := starts(c)
			var d device.Descriptor
			c.Descriptor(0, &d)
			err = errors.Join(err, c.send(netlink.Fault{VA: d.Dst.Page(), PDID: 7, Pages: 1, Write: true}))
			time.Sleep(late)
			return err
		}, "10\n"},
		"faults wait": {"close", pagein.Touch, func(c attached) error {
			for range 2 {
				if err := c.send(netlink.Fault{VA: 0x1000, PDID: 7, Pages: 1, Write: true}); err != nil {
					return err
				}
			}
			return errors.Join(
				until("answer", func() bool { return c.SendStatus(1) == device.PktzBusy }),
				idle(map[string]int{"the thread whose second answer waits": c.pid}),
			)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			socket := silent(t, c.method, c.then)
			cmd := exec.CommandContext(t.Context(), bin, socket, fmt.Sprint(uint8(c.method)), c.command)
			if c.command == "close" {
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(10*late, func() { in.Close() }) // after the thread has met the end
			}
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() == 77 {
				t.Skip("this user may not open a userfaultfd")
			}
			if err != nil || string(out) != c.want {
				t.Errorf("%v, %q, want %q", err, out, c.want)
			}
		})
	}
}
