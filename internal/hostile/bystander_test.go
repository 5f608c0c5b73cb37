package hostile

import "testing"

// All other tests here rely on this: a bystander's transfers arrive, and it would report it if
// they did not.
func TestBystander(t *testing.T) { onEach(t, bystands) }

func bystands(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	t.Logf("p99 %v", b.p99())
	r := b.fine()
	if r.Count < 100 {
		t.Errorf("%d transfers", r.Count)
	}
	want := uint64(r.Count)
	if w.shared { // a page that was present once belongs to the file, present or not
		want = 1
	}
	if n := w.count(1, "faults_remote_total"); n < want {
		t.Errorf("%d faults in %d transfers into absent memory", n, r.Count)
	}
}
