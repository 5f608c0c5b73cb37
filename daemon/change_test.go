package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/api"
	"github.com/exanet/pfd/daemon/control"
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

// A peer can neither change nor find domains of other users.
func TestChangesAreForTheOwner(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	stranger := api.Peer{UID: g.Peer().UID + 4711}
	for path, more := range map[string]string{control.PathGrant: "&pdid=5", control.PathKick: ""} {
		refused := func(slot int) string {
			status, body := ask(t, r.Daemon, stranger, http.MethodPost, fmt.Sprintf("%s?node=0&slot=%d%s", path, slot, more))
			var e control.ErrorReply
			if err := json.Unmarshal(body, &e); err != nil || status != http.StatusNotFound {
				t.Errorf("%s: a stranger gets %d %s", path, status, body)
			}
			return e.Error
		}
		if theirs, none := refused(int(g.Slot)), refused(9); strings.ReplaceAll(theirs, "0/0", "0/9") != none {
			t.Errorf("%s: a stranger gets %q, and %q for what is not there", path, theirs, none)
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

// A client that follows the faults gets each of them, from the first line on.
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
	r.untilNobodyFollows()
}

// stream is a client of a stream. It reads no more than the first line until gate is closed.
type stream struct {
	gate  chan struct{}
	first chan struct{} // closed when the first line is written
	end   func()        // ends the request, and waits until it is over

	mu     sync.Mutex
	header http.Header
	status int
	text   bytes.Buffer
}

func (s *stream) Header() http.Header              { return s.header }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }
func (s *stream) FlushError() error                { return nil }
func (s *stream) WriteHeader(status int)           { s.status = status }

func (s *stream) Write(b []byte) (int, error) {
	select {
	case <-s.first:
		<-s.gate
	default:
		defer close(s.first)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// events returns the events that the stream has sent.
func (s *stream) events(t *testing.T) (list []control.FaultEvent) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range bytes.Lines(s.text.Bytes()) {
		var e control.FaultEvent
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// follow follows the faults as a peer. It returns when the first line is written.
func (r *running) follow(p api.Peer, node int) *stream {
	s := &stream{gate: make(chan struct{}), first: make(chan struct{}), header: http.Header{}, status: http.StatusOK}
	path := control.PathMonitor
	if node != control.AllNodes {
		path += fmt.Sprintf("?node=%d", node)
	}
	ctx, cancel := context.WithCancel(api.WithPeer(r.ctx(), p))
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.api.Handler().ServeHTTP(s, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
	}()
	s.end = func() { cancel(); <-over }
	<-s.first
	return s
}

// untilNobodyFollows waits until this user's clients that follow the faults are gone: as many
// as a user may have can begin.
func (r *running) untilNobodyFollows() {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		var begun []*stream
		for range 4 {
			begun = append(begun, r.follow(api.Peer{UID: uint32(os.Getuid())}, control.AllNodes))
		}
		refused := 0
		for _, s := range begun {
			s.end()
			if s.status != http.StatusOK {
				refused++
			}
		}
		if refused == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("a client that has left is followed up")
		}
	}
}

// A client that does not read loses faults, and is told how many. The engine does not wait for
// it. Another user's faults are not shown.
func TestMonitorThatDoesNotRead(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	slow := r.follow(api.Peer{UID: g.Peer().UID}, control.AllNodes)
	stranger := r.follow(api.Peer{UID: g.Peer().UID + 4711}, control.AllNodes)
	elsewhere := r.follow(api.Peer{All: true}, 1)
	const round, faults = 50, 5000 // of which some 4,096 wait
	for n := 0; n < faults; n += round {
		r.fake.do(func() {
			for i := range round {
				r.fake.nodes[0].Push(device.FaultEntry{
					Source: 1, Transaction: device.TransactionID(i), PDID: g.PDID, Page: uint64(i + 1), Response: device.ResponseSlaveError,
				}, 1)
			}
		})
		r.until("all are answered", func() bool { return len(r.fake.nodes[0].Sent) == n+round })
	}
	for _, s := range []*stream{slow, stranger, elsewhere} {
		close(s.gate)
	}
	var shown, lost uint64
	r.until("the slow one is told what it has lost", func() bool {
		shown, lost = 0, 0
		for _, e := range slow.events(t) {
			if lost += e.Lost; e.Fault != nil {
				shown++
			}
		}
		return lost > 0
	})
	if shown+lost != faults {
		t.Errorf("%d faults are shown and %d are lost of %d", shown, lost, faults)
	}
	for _, s := range []*stream{slow, stranger, elsewhere} {
		s.end()
	}
	if len(stranger.events(t)) != 1 || len(elsewhere.events(t)) != 1 {
		t.Error("others were shown the faults")
	}
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

// A monitor ends when its client has left, even after the client has sent more than its request:
// package http does not notice that.
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
	r.untilNobodyFollows()
}
