package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc/wire"
)

// authority issues certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func newAuthority(t testing.TB) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, cert: cert, key: key, pem: encodePEM("CERTIFICATE", der)}
}

// issue issues a certificate for nodes, valid for a time from now on.
func (a *authority) issue(serial int64, uri string, valid time.Duration) *Credentials {
	u, err := url.Parse(uri)
	if err != nil {
		a.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid), URIs: []*url.URL{u},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return &Credentials{Certificate: encodePEM("CERTIFICATE", der), Key: encodePEM("PRIVATE KEY", raw), CA: a.pem}
}

// got is something that a host's sink, Told or Changed was called with.
type got struct {
	frame   *wire.Frame // a copy
	ready   *bool
	gone    bool
	drain   *bool
	first   device.NodeID
	told    string
	changed *bool
	idle    bool
}

// closedTree is a tree that no host may use.
const closedTree = 0x840000

// host is one host of a test, with its sink.
type host struct {
	*Links
	name   string
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}

	mu       sync.Mutex
	events   []got
	more     chan struct{} // has one when events came
	hold     bool          // Arrive keeps batches in held
	held     []func()
	underway int
	stands   bool // Underway keeps what it was called with in asked
	asked    []func(int)
	silent   bool          // frames are not remembered
	block    chan struct{} // the next Arrive is left behind until this is closed
	frames   int
}

func (h *host) add(g got) {
	h.mu.Lock()
	h.events = append(h.events, g)
	h.mu.Unlock()
	select {
	case h.more <- struct{}{}:
	default:
	}
}

// Send sends a frame at once.
func (h *host) Send(f *wire.Frame) {
	h.Links.Send(f)
	h.Flush()
}

func (h *host) Arrive(frames []*wire.Frame, done, left func()) bool {
	h.mu.Lock()
	h.frames += len(frames)
	silent, hold, block := h.silent, h.hold, h.block
	h.block = nil
	if hold {
		h.held = append(h.held, done)
	}
	h.mu.Unlock()
	if !silent {
		for _, f := range frames {
			c := *f
			c.Payload = slices.Clone(f.Payload)
			h.add(got{frame: &c, first: f.SrcNode})
		}
	}
	if !hold {
		done()
	}
	if block != nil {
		left()
		<-block
		return false
	}
	return true
}

func (h *host) LinkReady(first, last device.NodeID, ready wire.Ready) {
	all := ready == wire.ReadyAll
	h.add(got{ready: &all, first: first})
}

func (h *host) LinkUp(first, last device.NodeID) {}

// sink is the Sink of a host: the method Drain of Links has another meaning.
type sink struct{ *host }

func (h sink) Drain(first, last device.NodeID, on bool) { h.add(got{drain: &on, first: first}) }
func (h *host) Underway(first, last device.NodeID, f func(int)) {
	h.mu.Lock()
	n := h.underway
	if h.stands {
		h.asked = append(h.asked, f)
		f = func(int) {}
	}
	h.mu.Unlock()
	f(n)
}
func (h *host) Gone(first, last device.NodeID) { h.add(got{gone: true, first: first}) }

// await waits until an event satisfies f, and drops the events up to it.
func (h *host) await(t testing.TB, what string, f func(got) bool) got {
	t.Helper()
	limit := time.NewTimer(60 * time.Second)
	defer limit.Stop()
	for {
		h.mu.Lock()
		for i, g := range h.events {
			if f(g) {
				h.events = h.events[i+1:]
				h.mu.Unlock()
				return g
			}
		}
		h.mu.Unlock()
		select {
		case <-h.more:
		case <-limit.C:
			t.Fatalf("host %s: no %s; %+v", h.name, what, h.Info())
		}
	}
}

func (h *host) awaitReady(t testing.TB, want bool) {
	t.Helper()
	h.await(t, fmt.Sprintf("LinkReady %v", want), func(g got) bool { return g.ready != nil && *g.ready == want })
}

// awaitInfo waits until the link to a host is in a state.
func (h *host) awaitInfo(t testing.TB, to, what string, f func(Info) bool) Info {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		for _, i := range h.Info() {
			if i.Host == to && f(i) {
				return i
			}
		}
		if time.Now().After(end) {
			t.Fatalf("host %s: %s of %s: %+v", h.name, what, to, h.Info())
		}
	}
}

// rig is a cluster of hosts with two nodes each: "a" has 0 and 1, "b" has 2 and 3, ...
type rig struct {
	t        testing.TB
	ca       *authority // nil: without TLS
	hosts    []atomic.Pointer[host]
	table    []Host
	pipe     bool // connections are pipes, not sockets
	standard bool // the standard times, but for Idle
	idle     time.Duration
	dial     func(w Want, from *host) bool
	sink     func(*host) Sink
}

// timing lets hosts dial often, so that tests are short. Its other times are so long that none of them
// passes in a test that shares its processors: the tests of what happens then have a clock of their own.
var timing = Timing{
	Heartbeat: time.Second, Handshake: time.Minute, Unreachable: time.Minute,
	BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
}

func newRig(t testing.TB, n int, tls bool) *rig {
	r := &rig{t: t, hosts: make([]atomic.Pointer[host], n)}
	if tls {
		r.ca = newAuthority(t)
	}
	for i := range n {
		first, name := device.NodeID(2*i), string(rune('a'+i))
		if i >= 26 {
			name = fmt.Sprint("h", i)
		}
		r.table = append(r.table, Host{
			Name: name, Nodes: Range{first, first + 1},
			PDIDs: [2]device.PDID{device.PDID(0x100 * (i + 1)), device.PDID(0x100*(i+1) + 0xff)},
		})
	}
	return r
}

// tableOf returns the table for host i.
func (r *rig) tableOf(i int) Table {
	t := Table{Cluster: "test", Self: r.table[i].Name, Hosts: slices.Clone(r.table)}
	if r.ca != nil {
		t.TLS = true
		t.Credentials = r.ca.issue(int64(100+i), fmt.Sprintf("exanet://test/node/%v", r.table[i].Nodes), time.Hour)
	}
	return t
}

// start starts host i with a table.
func (r *rig) start(i int, table Table, with func(*Config)) *host {
	r.t.Helper()
	e := r.table[i]
	h := &host{name: e.Name, more: make(chan struct{}, 1), ended: make(chan struct{})}
	cfg := Config{
		Identity: Identity{Nodes: e.Nodes, PDIDs: e.PDIDs},
		Timing:   timing,
		Told:     func(from string, m []byte) { h.add(got{told: from + ":" + string(m)}) },
		Changed: func(from string, s State) {
			up := s == Up
			h.add(got{changed: &up, idle: s == Idle, told: from})
		},
		May: func(host string, p atomics.Protection) bool { return p != closedTree },
		Log: slog.New(slog.NewTextHandler(testLog{r.t}, nil)),
	}
	if r.standard {
		cfg.Timing = Timing{Idle: r.idle}
	}
	if with != nil {
		with(&cfg)
	}
	h.Links = New(cfg)
	if err := h.SetTable(table); err != nil && table.Self != "" { // else it has none
		r.t.Fatal(err)
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	var to Sink = sink{h}
	if r.sink != nil {
		to = r.sink(h)
	}
	go func() {
		defer close(h.ended)
		_ = h.Run(h.ctx, to)
	}()
	for running := false; !running; time.Sleep(time.Millisecond) { // Take is of use from then on
		h.Links.mu.Lock()
		running = h.Links.ctx != nil
		h.Links.mu.Unlock()
	}
	r.hosts[i].Store(h)
	go func() {
		for {
			select {
			case w := <-h.Wants():
				if r.dial == nil || !r.dial(w, h) {
					r.connect(h, w)
				}
			case <-h.ctx.Done():
				return
			}
		}
	}()
	r.t.Cleanup(h.stop)
	return h
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	if testing.Verbose() {
		fmt.Printf("%s", b)
	}
	return len(b), nil
}

func (h *host) stop() {
	h.cancel()
	<-h.ended
}

// host returns the host of a name, nil if there is none.
func (r *rig) host(name string) *host {
	for i, h := range r.table {
		if h.Name == name {
			return r.hosts[i].Load()
		}
	}
	return nil
}

// connect does what exanet-hostd does.
func (r *rig) connect(from *host, w Want) {
	to := r.host(w.Host)
	if to == nil || to.ctx.Err() != nil {
		from.Failed(w.Host, w.UDP, "connection refused")
		return
	}
	if w.UDP {
		return
	}
	a, b := r.pair()
	from.Take(a, w.Host)
	to.Take(b, "")
}

// pair returns two connected sockets.
func (r *rig) pair() (a, b net.Conn) {
	if r.pipe {
		return net.Pipe()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Error(err)
		return net.Pipe()
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err == nil {
		b, err = l.Accept()
	}
	if err != nil {
		r.t.Error(err)
	}
	return a, b
}

// two starts hosts a and b, and waits until their link is up.
func (r *rig) two() (a, b *host) {
	r.t.Helper()
	a, b = r.start(0, r.tableOf(0), nil), r.start(1, r.tableOf(1), nil)
	a.awaitReady(r.t, true)
	b.awaitReady(r.t, true)
	return a, b
}

// block returns a frame of data from one node to another, with a pattern.
func block(from, to device.NodeID, length int, seed byte) *wire.Frame {
	f := &wire.Frame{Present: wire.All(length), Payload: make([]byte, length), Header: wire.Header{
		Kind: wire.Data, SrcNode: from, DstNode: to, ID: device.TransactionID(seed), Seq: 7, Block: 5, Length: uint16(length),
		VA: 0x7f0000000000 + device.VA(seed), Remaining: 1 << 20, Epoch: 0x12345678, Link: 0x9abcdef0,
	}}
	for i := range f.Payload {
		f.Payload[i] = byte(i>>8) ^ byte(i) ^ seed
	}
	return f
}
