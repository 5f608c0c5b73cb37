package r5

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// The time-out is 4 times the smoothed round trip and 1 ms, rounded up to TIMEOUT_US times a power of two,
// at least TIMEOUT_US and at most 500 ms.
func TestFarPeriod(t *testing.T) {
	const us, second = ms / 1000, 1000 * ms
	for _, c := range []struct {
		name    string
		timeout int64
		trips   []int64
		doubled int
		want    int64
	}{
		{"nothing measured", 20 * ms, nil, 0, 500 * ms},
		{"nothing measured, doubled", 20 * ms, nil, 3, 500 * ms},
		{"a long TIMEOUT_US", 600 * ms, []int64{1}, 0, 600 * ms},
		{"a long TIMEOUT_US, nothing measured", 600 * ms, nil, 0, 600 * ms},
		{"0", 20 * ms, []int64{0}, 0, 20 * ms},
		{"4 x 4.75 + 1", 20 * ms, []int64{4750 * us}, 0, 20 * ms},
		{"and 1 ns", 20 * ms, []int64{4750*us + 1}, 0, 40 * ms},
		{"4 x 30 + 1", 20 * ms, []int64{30 * ms}, 0, 160 * ms},
		{"4 x 80 + 1", 20 * ms, []int64{80 * ms}, 0, 500 * ms},
		{"longer than the longest", 20 * ms, []int64{second}, 0, 500 * ms},
		{"smoothed: 8 and 7 eighths of it", 20 * ms, []int64{8 * ms, 0}, 0, 40 * ms},
		{"4 x (4 + 12/8) + 1", 20 * ms, []int64{4 * ms, 16 * ms}, 0, 40 * ms},
		{"twice a long one", 20 * ms, []int64{100 * us, second, second}, 0, 500 * ms},
		{"1 ms", ms, []int64{0}, 0, 2 * ms},
		{"short", ms, []int64{700 * us}, 0, 4 * ms},
		{"of a microsecond", us, []int64{100 * us}, 0, 500 * ms},
		{"doubled", 20 * ms, []int64{200 * us}, 1, 40 * ms},
		{"doubled four times", 20 * ms, []int64{200 * us}, 4, 320 * ms},
		{"doubled often", 20 * ms, []int64{200 * us}, farSteps, 500 * ms},
	} {
		var r trip
		for _, took := range c.trips {
			r.measure(took)
		}
		r.doubled = c.doubled
		if got := farPeriod(c.timeout, r.step(c.timeout)); got != c.want {
			t.Errorf("%s: %d ns, want %d", c.name, got, c.want)
		}
	}
}

// The first block to another host has the longest time-out, the next ones a measured one. If many of them wait
// for a link that has become slow, one is sent again in each time-out, which doubles, until one is
// answered. Refusals are answers, too. Times without a link are not measured, and short and long blocks apart.
func TestFarTimeout(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Base, c.Nodes = own, 1 })
	trip := func() *trip { return &r.fw.paths[target].long }
	start := func(ch, blocks int) (list []wire.Block) {
		r.start(0, ch, dst, uint32(blocks)*device.BlockSize, func(d *device.Descriptor) { d.Done = device.DoneInitialized })
		for _, b := range r.blocks() {
			r.sent(b)
			list = append(list, b)
		}
		return list
	}
	answer := func(list []wire.Block, after int64, code device.Code) {
		r.now += after
		r.fw.Clock(r.now)
		for _, b := range list {
			r.reply(b, code)
		}
	}
	list := start(0, 4)
	if d := r.expire(); d != farMost {
		t.Fatalf("the first block times out after %d ns", d)
	}
	r.blocks()
	r.start(0, 1, dst, 64)
	r.ack(r.one())
	if s := r.fw.paths[target].short.smoothed; s != 1 || trip().smoothed != 0 {
		t.Errorf("a short block: %d ns, of long ones %d", s, trip().smoothed)
	}
	r.start(0, 0, dst, 64, func(d *device.Descriptor) { d.Abort = true })
	for _, b := range list {
		r.sent(b) // again, and aborted
	}

	answer(start(2, 3), ms, device.CodeAck)
	if trip().smoothed != ms {
		t.Fatalf("%d ns were measured, want 1 ms", trip().smoothed)
	}
	list = start(3, 16)
	began := r.now
	for i, want := range []int64{10, 30, 70, 150} { // time-outs of 10, 20, 40 and 80 ms
		for r.now < began+want*ms {
			r.expire()
		}
		if r.now != began+want*ms {
			t.Fatalf("time-out %d after %d ns", i, r.now-began)
		}
		r.sent(r.one())
	}
	if n := r.counts[device.Timeouts]; n != 4+4 {
		t.Errorf("%d time-outs", n)
	}
	answer(list[9:10], ms, device.CodeAck)
	if s := trip().smoothed; s != ms+150*ms/8 || trip().doubled != 0 {
		t.Errorf("after a block that took 151 ms: %d ns, doubled %d times", s, trip().doubled)
	}

	want := *trip()
	answer(list[10:11], ms, device.CodeSlaveError)
	r.rapf(list[10])
	again := r.one()
	r.sent(again)
	answer([]wire.Block{again}, ms, device.CodeAck)
	answer(list[11:12], ms, device.CodeCorrupt)
	again = r.one()
	r.sent(again)
	answer([]wire.Block{again}, ms, device.CodeAck)
	for _, took := range []int64{152 * ms, ms, 154 * ms, ms} { // after a refusal a round trip begins anew
		want.measure(took)
	}
	if *trip() != want {
		t.Errorf("after two refusals: %+v, want %+v", *trip(), want)
	}
	r.fw.LinkReady(target, wire.NotReady)
	r.now += 1000 * ms
	r.fw.LinkUp(target)
	r.fw.LinkReady(target, wire.ReadyAll)
	for _, b := range r.blocks() {
		r.ack(b)
	}
	if r.none(); trip().smoothed >= want.smoothed || r.done[3].Done != device.DoneCompleted {
		t.Errorf("after a cut: %+v, before %+v; done %d", *trip(), want, r.done[3].Done)
	}
}

// All nodes of a host know which nodes of other hosts are not ready, and a node has a path only to those to which
// it writes.
func TestOthers(t *testing.T) {
	others := Others{}
	r, second := newRig(t, func(c *Config) { c.Base, c.Nodes, c.Others = own, 1, others }), newRig(t, func(c *Config) { c.Base, c.Nodes, c.Others = own, 1, others })
	for id := target; id < 1000; id++ {
		r.fw.LinkReady(id, wire.NotReady)
		r.fw.Drain(id+1000, true)
	}
	r.fw.Gone(target + 1)
	if len(r.fw.paths)+len(second.fw.paths) != 0 || second.fw.Writes(target) {
		t.Errorf("%d and %d paths", len(r.fw.paths), len(second.fw.paths))
	}
	second.start(0, 0, dst, 64)
	second.none()
	second.start(0, 1, dst, 64, func(d *device.Descriptor) { d.DstNode = target + 1 })
	second.none()
	if d := second.done[1]; d.Status != device.StatusGone || !second.fw.Writes(target) {
		t.Errorf("a write to a node that is gone: %+v", d)
	}
	for id := target; id < 1000; id++ {
		r.fw.LinkReady(id, wire.ReadyAll)
		r.fw.Drain(id+1000, false)
	}
	second.fw.LinkReady(target, wire.ReadyAll)
	second.one()
	if len(others) != 0 {
		t.Errorf("%d nodes are not ready", len(others))
	}
}
