package hostile

import "testing"

// What every other test here relies on: a bystander's transfers arrive, and it
// would tell if they did not.
func TestBystander(t *testing.T) {
	w := start(t)
	b := w.bystander(attachOrder{})
	t.Logf("p99 %v", b.p99())
	r := b.fine()
	if r.Count < 100 {
		t.Errorf("%d transfers", r.Count)
	}
	if n := w.count(1, "faults_remote_total"); n < uint64(r.Count) {
		t.Errorf("%d faults in %d transfers into absent memory", n, r.Count)
	}
}
