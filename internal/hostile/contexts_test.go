package hostile

import (
	"fmt"
	"sync"
	"testing"

	"github.com/exanet/pfd/device"
)

// Receive contexts that two users hold by unserved faults are not missing for others: most of a
// victim's blocks get one at once, while the attackers' own blocks are refused.
func TestContextsHeldByOthers(t *testing.T) {
	needRoot(t, "attackers of several users need their processes")
	w := start(t)
	const size, rounds = 256 << 10, 40
	from := w.attach("victim", attachOrder{Group: "victim", UID: victimUID})
	to := w.attach("victim's target", attachOrder{Group: "victim", UID: victimUID, Node: 1, All: true})
	from.buffer("src", "anonymous", size, 3)
	dst := to.buffer("dst", "anonymous", size, 4).Remote
	pdid := uint16(pdidOf(t, from.buffer("own", "anonymous", 4096, 1).Remote))
	var reap sync.WaitGroup
	t.Cleanup(reap.Wait)
	end := w.assault(&reap, []aggressor{{"contexts", 7}, {"contexts", 7}})
	refused := fmt.Sprintf("nacks_%d_total", device.CodeNoContext)
	before := w.count(0, refused)
	w.until("the attackers find all contexts in use", func() bool { return w.count(0, refused) > before })
	before = w.count(0, refused)
	again := uint32(0)
	for i := range rounds {
		id := fmt.Sprint(i)
		from.write(id, "src", dst, size)
		from.arrives(id)
		list, err := w.Channels(w.ctx(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			if c.PDID == pdid && c.SizeBytes == size {
				again += c.Retransmitted
			}
		}
	}
	after := w.count(0, refused)
	t.Logf("%d of %d blocks of the victim were retransmitted; %d blocks were refused meanwhile; the attackers did: %s",
		again, rounds*size/device.BlockSize, after-before, end())
	if after == before {
		t.Error("no context was refused: the attackers are not effective")
	}
	// A transfer has 8 blocks in flight, and 4 contexts are reserved: some blocks are refused.
	if again > rounds*size/device.BlockSize/3 {
		t.Errorf("%d of the victim's blocks were retransmitted", again)
	}
	to.holds("dst", 3, 0, size)
}
