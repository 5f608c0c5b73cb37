package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
)

func TestGrant(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	c, err := r.client.Grant(r.ctx(), 0, int(g.Slot), 0x1234)
	if err != nil || len(c.Domain.Peers) != 1 || c.Domain.Peers[0] != 0x1234 || c.Domain.Slot != int(g.Slot) || c.Domain.Method != "gup" {
		t.Fatalf("Grant = %+v, %v", c, err)
	}
	r.fake.do(func() {
		if got := r.fake.nodes[0].Get64(device.PL, device.PLPDPeers); got != 0x1234 {
			t.Errorf("PD_PEERS is %#x", got)
		}
	})
	var reply *control.ReplyError
	if _, err := r.client.Grant(r.ctx(), 0, 15, 1); !errors.As(err, &reply) || reply.Code != control.CodeNotFound {
		t.Errorf("an empty slot: %v", err)
	}
	// PD_PEERS holds sixteen.
	for p := uint16(101); ; p++ {
		_, err := r.client.Grant(r.ctx(), 0, int(g.Slot), p)
		if p < 101+device.PeersPerSlot-1 {
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !errors.As(err, &reply) || reply.Code != control.CodeBadRequest || !strings.Contains(reply.Message, "accept fewer") {
			t.Errorf("a seventeenth peer: %v", err)
		}
		break
	}
}

func TestKick(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	other := r.attach(hello())
	c, err := r.client.Kick(r.ctx(), 0, int(g.Slot))
	if err != nil || !c.Ended || c.Domain.Slot != int(g.Slot) {
		t.Fatalf("Kick = %+v, %v", c, err)
	}
	if e := r.ended(g); e.Reason != attach.ReasonKicked {
		t.Errorf("told %+v", e)
	}
	if d := r.domainsOf(0); len(d) != 1 || d[0].Slot != int(other.Slot) {
		t.Errorf("left are %+v", d)
	}
	var reply *control.ReplyError
	if _, err := r.client.Kick(r.ctx(), 0, int(g.Slot)); !errors.As(err, &reply) || reply.Status != http.StatusNotFound || !strings.Contains(reply.Message, "no domain 0/") {
		t.Errorf("a second kick: %v", err)
	}
}

// Others' domains can be neither changed nor found.
func TestChangesAreForTheOwner(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	stranger := &query{peer: peer{uid: g.Peer().UID + 4711}, node: 0, slot: int(g.Slot), pdid: 5}
	for name, f := range map[string]func(context.Context, *query) (any, error){"grant": r.grant, "kick": r.kick} {
		var f1, f2 *failure
		_, err := f(r.ctx(), stranger)
		empty := *stranger
		empty.slot = 9
		_, none := f(r.ctx(), &empty)
		if !errors.As(err, &f1) || !errors.As(none, &f2) || f1.status != http.StatusNotFound || f2.status != http.StatusNotFound ||
			strings.ReplaceAll(f1.text, "0/0", "0/9") != f2.text {
			t.Errorf("%s: a stranger gets %v, and %v for what is not there", name, err, none)
		}
	}
	if d := r.domainsOf(0); len(d) != 1 || len(d[0].Peers) != 0 {
		t.Errorf("left are %+v", d)
	}
}

func TestChangesWantAllKeys(t *testing.T) {
	r := start(t)
	for _, tc := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/domains/kick?node=0&slot=0", 405},
		{"POST", "/v1/domains/kick", 400},
		{"POST", "/v1/domains/kick?node=0", 400},
		{"POST", "/v1/domains/kick?node=0&slot=16", 400},
		{"POST", "/v1/domains/kick?node=0&slot=0&pdid=1", 400},
		{"POST", "/v1/domains/grant?node=0&slot=0", 400},
		{"POST", "/v1/domains/grant?node=0&slot=0&pdid=0", 400},
		{"POST", "/v1/domains/grant?node=0&slot=0&pdid=65536", 400},
		{"POST", "/v1/faults/monitor", 405},
		{"GET", "/v1/faults/monitor?n=3", 400},
	} {
		status, body := r.request(tc.method, tc.path)
		var e control.ErrorReply
		if err := json.Unmarshal(body, &e); err != nil || status != tc.status || e.Error == "" {
			t.Errorf("%s %s answers %d %s", tc.method, tc.path, status, body)
		}
	}
}

// Whoever follows the faults gets each of them, from the first line on.
func TestMonitor(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	const faults = 20
	push := func(node int, page uint64) {
		r.fake.do(func() {
			r.fake.nodes[node].Push(device.FaultEntry{
				Source: 1, Transaction: device.TransactionID(page), PDID: g.PDID, Page: page, Response: device.ResponseSlaveError,
			}, 1)
		})
	}
	push(0, 999) // before
	r.until("it is answered", func() bool { return len(r.fake.nodes[0].Sent) == 1 })
	var got []control.Fault
	enough := errors.New("enough")
	err := r.client.MonitorFaults(r.ctx(), 0, func(e control.FaultEvent) error {
		if e.Fault == nil {
			for i := range uint64(faults) {
				push(0, i+1)
			}
			return nil
		}
		if got = append(got, *e.Fault); len(got) == faults {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("ended with %v after %d faults", err, len(got))
	}
	for i, f := range got {
		// Nothing is mapped there: the sender is told so.
		if f.Page != control.Hex((i+1)<<device.PageShift) || f.Outcome != "failed" || f.RAPFNS < 0 {
			t.Errorf("fault %d is %+v", i, f)
		}
	}
	r.until("nobody is waited for", func() bool { return r.watchers.Load() == nil })
}

// A client that does not read loses faults, and is told how many; nobody waits
// for it. Another user's faults are not shown.
func TestMonitorThatDoesNotRead(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	slow := &watcher{peer: peer{uid: g.Peer().UID}, node: control.AllNodes, ch: make(chan control.Fault, 3)}
	stranger := &watcher{peer: peer{uid: g.Peer().UID + 4711}, node: control.AllNodes, ch: make(chan control.Fault, 3)}
	elsewhere := &watcher{peer: peer{uid: 0, all: true}, node: 1, ch: make(chan control.Fault, 3)}
	for _, w := range []*watcher{slow, stranger, elsewhere} {
		defer r.watch(w)()
	}
	r.fake.do(func() {
		for i := range 10 {
			r.fake.nodes[0].Push(device.FaultEntry{
				Source: 1, Transaction: device.TransactionID(i), PDID: g.PDID, Page: uint64(i + 1), Response: device.ResponseSlaveError,
			}, 1)
		}
	})
	r.until("all are answered", func() bool { return len(r.fake.nodes[0].Sent) == 10 })
	r.fake.do(func() {
		if len(slow.ch) != 3 || slow.lost.Load() != 7 {
			t.Errorf("%d faults wait, %d are lost, want 3 and 7", len(slow.ch), slow.lost.Load())
		}
		if len(stranger.ch) != 0 || len(elsewhere.ch) != 0 {
			t.Error("others were shown the faults")
		}
	})
}

// A monitor ends when pfd does.
func TestMonitorEndsWithPFD(t *testing.T) {
	r := start(t)
	err := r.client.MonitorFaults(r.ctx(), control.AllNodes, func(control.FaultEvent) error { r.cancel(); return nil })
	if !errors.Is(err, control.ErrEnded) {
		t.Errorf("ended with %v", err)
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

// Who has left is not followed up, though it has sent more than its request: package
// http sees nobody leave then.
func TestMonitorOfWhoHasLeft(t *testing.T) {
	r := start(t)
	c, err := net.Dial("unix", r.client.Socket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET "+control.PathMonitor+" HTTP/1.1\r\nHost: pfd\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// The first line is out: nothing else tells that nobody is there.
	if _, err := bufio.NewReader(c).ReadString('}'); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "more"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	r.until("nobody is waited for", func() bool { return r.watchers.Load() == nil })
}
