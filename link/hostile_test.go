package link

import (
	"encoding/binary"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc/wire"
)

func isFrame(g got) bool { return g.frame != nil }

// Frames whose source is not the peer's, or whose destination is not this host's, are dropped and
// counted; the frames between them arrive. Messages of threads arrive if the peer may use their tree.
func TestForgedFrames(t *testing.T) {
	r := newRig(t, 3, true)
	b := r.start(1, r.tableOf(1), nil)
	conns := r.link(b, 0, 1)
	var all []byte
	add := func(src, dst device.NodeID) {
		f := block(src, dst, 400, 1)
		f.Present = 1 // of two packets: the payload needs room of its own
		all = appendFrame(all, f, frameSize(f))
	}
	claim := func(pdid device.PDID, kind wire.Kind) {
		f := &wire.Frame{Header: wire.Header{Kind: kind, SrcNode: 0, DstNode: 2, SrcPDID: pdid}}
		if kind == wire.Message {
			f.MessageLen = 1
		}
		all = appendFrame(all, f, frameSize(f))
	}
	const forged = 300
	for range forged {
		add(4, 2)       // c's
		add(2, 3)       // b's own
		add(0, 1)       // to the peer itself
		add(0, 4)       // to c
		add(1<<22-1, 2) // nobody's
		add(0, 1<<22-1) // to nobody
		all = appendControl(all, recordBeat, make([]byte, 8))
	}
	claim(0x2ff, wire.Message) // of b
	claim(0x300, wire.Message) // of c
	claim(0x3ff, wire.Ack)     // from here on, each arrives
	claim(0x1ff, wire.Message)
	claim(0x400, wire.Message)
	claim(0, wire.Message)
	thread := &wire.Frame{Header: wire.Header{Kind: wire.Message, SrcInterface: device.MailboxThread, DstNode: 2, DstMailbox: device.MailboxGSAS}, MessageLen: 1}
	for _, p := range []atomics.Protection{closedTree, 0x800000} {
		thread.Message[0] = atomics.Wired(0, p, 0)
		all = appendFrame(all, thread, frameSize(thread))
	}
	add(1, 3)
	if err := conns[classBulk].write(all); err != nil {
		t.Fatal(err)
	}
	for _, want := range []device.PDID{0x3ff, 0x1ff, 0x400, 0} {
		if g := b.await(t, "frame", isFrame); g.frame.SrcPDID != want {
			t.Errorf("%+v, want PDID %#x", g.frame, want)
		}
	}
	if g := b.await(t, "frame", isFrame); g.frame.Message != thread.Message {
		t.Errorf("%+v: a message of a thread whose tree is closed", g.frame)
	}
	if g := b.await(t, "frame", isFrame); g.frame.SrcNode != 1 || g.frame.DstNode != 3 {
		t.Errorf("%+v", g.frame)
	}
	if i := b.awaitInfo(t, "a", "count", func(i Info) bool { return i.Forged == 6*forged+2 }); i.State != Up || i.FramesReceived != 6 {
		t.Errorf("%+v", i)
	}
}

// A record that cannot be decoded ends the link and is counted, after the frames before it have
// arrived. The other links are not affected.
func TestBadRecordsEndTheLink(t *testing.T) {
	good := block(0, 2, 300, 1)
	record := appendFrame(nil, good, frameSize(good))
	flip := func(at int) []byte {
		b := append([]byte(nil), record...)
		b[at] ^= 0x40
		return b
	}
	bad := [][]byte{
		binary.LittleEndian.AppendUint32(nil, head(recordFrame, maxRecord)),
		binary.LittleEndian.AppendUint32(nil, 0xffffffff),
		binary.LittleEndian.AppendUint32(nil, head(recordFrame, 10))[:4:4],
		flip(headerAt), flip(bitmapsAt), flip(flagsAt), flip(len(record) - 1),
		appendControl(nil, recordHello, []byte("{}")), appendControl(nil, recordReady, nil),
		appendControl(nil, recordBeat, make([]byte, 7)), appendControl(nil, recordTold, make([]byte, MaxTell+1)),
	}
	bad[2] = append(bad[2], make([]byte, 10)...)
	r := newRig(t, 3, true)
	b, c := r.start(1, r.tableOf(1), nil), r.start(2, r.tableOf(2), nil)
	c.awaitReady(t, true)
	for i, content := range bad {
		conns := r.link(b, 0, uint64(i))
		class := classBulk
		if i%2 == 0 {
			class = classHigh
		}
		if err := conns[class].write(append(append([]byte(nil), record...), content...)); err != nil {
			t.Fatal(err)
		}
		b.await(t, "frame", isFrame)
		b.awaitInfo(t, "a", "count of bad records", func(info Info) bool { return info.Bad == uint64(i+1) && info.State == Connecting })
	}
	if i := c.Info()[1]; i.Connects != 1 {
		t.Errorf("%+v", i)
	}
}

// A host whose engine does not take frames stops reading: its memory is bounded, the sender learns
// that the link is not ready, and after that the sender drops beyond twice the size. When the engine goes
// on, the link is ready again, and the queued frames arrive, once and in order.
func TestBackPressure(t *testing.T) {
	r := newRig(t, 2, true)
	a, b := r.two()
	b.mu.Lock()
	b.hold = true
	b.mu.Unlock()
	before := memory()
	sent := 0
	f := block(0, 2, 16384, 9)
	for full := false; !full; {
		for range 200 {
			f.Seq = device.Sequence(sent % 16384)
			a.Send(f)
			if sent++; a.Info()[0].Dropped > 0 {
				break
			}
		}
		a.mu.Lock()
		for _, g := range a.events {
			full = full || g.ready != nil && !*g.ready
		}
		a.mu.Unlock()
	}
	for range 1000 {
		f.Seq = device.Sequence(sent % 16384)
		a.Send(f)
		sent++
	}
	i := a.Info()[0]
	if i.QueuedBulk > 2*bulkSize || i.QueuedBulk < bulkSize/2 || i.State != Up {
		t.Errorf("%+v", i)
	}
	b.mu.Lock()
	frames := b.frames
	b.mu.Unlock()
	if frames*16384 > 2*maxBatches*batchSize {
		t.Errorf("the engine got %d frames", frames)
	}
	if grown := int64(memory()) - int64(before); grown > 24<<20 {
		t.Errorf("memory has grown by %d KiB", grown>>10)
	}
	a.awaitReady(t, false)
	b.mu.Lock()
	b.hold = false
	held := b.held
	b.held = nil
	b.mu.Unlock()
	for _, done := range held {
		done()
	}
	a.awaitReady(t, true)
	i = a.Info()[0]
	last := -1
	for n := uint64(0); n < i.FramesSent; n++ {
		g := b.await(t, "frame", isFrame)
		seq := int(g.frame.Seq)
		if f.Seq = g.frame.Seq; seq <= last || !same(g.frame, f) {
			t.Fatalf("sequence number %d after %d, or other bytes", seq, last)
		}
		last = seq
	}
	if i.FramesSent+i.Dropped != uint64(sent) {
		t.Errorf("%d frames: %+v", sent, i)
	}
}

// The recorded bytes of a former link do not make another one: TLS takes none of it.
func TestReplayedConnection(t *testing.T) {
	r := newRig(t, 2, true)
	b := r.start(1, r.tableOf(1), nil)
	own := r.ca.issue(200, "exanet://test/node/0-1", 1e12)
	k, err := newKeys(&Table{Cluster: "test", Credentials: own}, Host{})
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := r.pair()
	b.Take(theirs, "")
	tap := &tap{Conn: mine}
	c := &conn{raw: tap, stream: tap, peer: &peer{}}
	if err := c.secure(b.ctx, &view{keys: k}, &peer{}); err != nil {
		t.Fatal(err)
	}
	h := &hello{Version: version, Cluster: "test", Host: "a", Nodes: [2]device.NodeID{0, 1}, PDIDs: r.table[0].PDIDs, Link: number16(1)}
	if err := c.record(recordHello, encodeHello(h)); err != nil {
		t.Fatal(err)
	}
	if _, err := readRecord(c.stream, recordHello); err != nil {
		t.Fatal(err)
	}
	if err := c.record(recordReady, nil); err != nil {
		t.Fatal(err)
	}
	c.close()
	mine, theirs = r.pair()
	b.Take(theirs, "")
	if _, err := mine.Write(tap.written); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1<<16)
	for {
		if _, err := mine.Read(answer); err != nil {
			break
		}
	}
	if i := b.Info()[0]; i.Connects != 0 {
		t.Errorf("%+v", i)
	}
}

// Old records on a new link of the same host are frames like others, the link numbers of which the
// firmware knows (spec/messages.md 5): here they only must not harm the link.
func TestReplayedFrames(t *testing.T) {
	r := newRig(t, 2, false)
	b := r.start(1, r.tableOf(1), nil)
	var all []byte
	for _, f := range samples(0, 2) {
		all = appendFrame(all, f, frameSize(f))
	}
	for n := range uint64(3) {
		conns := r.link(b, 0, n) // a new number replaces the link before
		for range 50 {
			if err := conns[classHigh].write(all); err != nil {
				t.Fatal(err)
			}
		}
		b.awaitInfo(t, "a", "frames", func(i Info) bool { return i.FramesReceived == 500*(n+1) && i.Connects == n+1 && i.Bad == 0 })
	}
}

// A frame that the machines of this host made wrong is not sent: the peer would end the link.
func TestUnsoundFramesAreNotSent(t *testing.T) {
	r := newRig(t, 2, false)
	a, b := r.two()
	f := block(0, 2, 600, 1)
	f.Present = 0
	a.Send(f)
	a.Send(&wire.Frame{Header: wire.Header{DstNode: 2}})
	a.Send(block(0, 3, 600, 2))
	if g := b.await(t, "frame", isFrame); g.frame.DstNode != 3 {
		t.Errorf("%+v", g.frame)
	}
	if i := a.Info()[0]; i.Dropped != 2 || i.FramesSent != 1 {
		t.Errorf("%+v", i)
	}
}

// The sink has at most one heartbeat of a host to answer, however many come, and answers the last one.
func TestManyHeartbeats(t *testing.T) {
	r := newRig(t, 2, true)
	b := r.start(1, r.tableOf(1), nil)
	high := r.link(b, 0, 1)[classHigh]
	b.mu.Lock()
	b.stands = true
	b.mu.Unlock()
	const many = 10000
	var all []byte
	for i := range uint64(many) {
		all = appendControl(all, recordBeat, binary.LittleEndian.AppendUint64(nil, i+1))
	}
	f := &wire.Frame{Header: wire.Header{Kind: wire.Message, SrcNode: 0, DstNode: 2}, MessageLen: 1}
	all = appendFrame(all, f, frameSize(f))
	if err := high.write(all); err != nil {
		t.Fatal(err)
	}
	b.await(t, "frame", isFrame)
	b.mu.Lock()
	asked := b.asked
	b.stands = false
	b.mu.Unlock()
	if len(asked) != 1 {
		t.Fatalf("the sink has %d heartbeats to answer", len(asked))
	}
	asked[0](0)
	for {
		var head [4]byte
		readAll(t, high, head[:])
		word := binary.LittleEndian.Uint32(head[:])
		rest := make([]byte, word&(1<<24-1))
		readAll(t, high, rest)
		if word>>24 == recordAnswer {
			if n := binary.LittleEndian.Uint64(rest); n != many {
				t.Errorf("heartbeat %d is answered, not the last", n)
			}
			return
		}
	}
}

func readAll(t *testing.T, c *conn, b []byte) {
	t.Helper()
	for len(b) > 0 {
		n, err := c.read(b)
		if err != nil {
			t.Fatal(err)
		}
		b = b[n:]
	}
}
