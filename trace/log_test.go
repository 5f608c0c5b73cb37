package trace

import "testing"

// A batch is shown when it is full, and by Show. Waiting records can be completed.
func TestLog(t *testing.T) {
	if On() {
		t.Skip("this program is being traced")
	}
	l := Log{Fabric: 7}
	for i := range Batch - 1 {
		l.Add(&Record{Kind: Fault, Page: uint64(i)})
	}
	w := l.Waiting()
	if len(w) != Batch-1 || w[3].Page != 3 || w[3].Fabric != 7 {
		t.Errorf("%d records wait: %+v", len(w), w)
	}
	l.Add(&Record{Kind: Block})
	if n := len(l.Waiting()); n != 0 {
		t.Errorf("%d records wait after a full batch", n)
	}
	l.Add(&Record{Kind: Block})
	l.Show()
	l.Show()
	if n := len(l.Waiting()); n != 0 {
		t.Errorf("%d records wait after Show", n)
	}
}

// In a time namespace the clock differs by the namespace's offset.
func TestOffset(t *testing.T) {
	for text, want := range map[string]int64{
		"monotonic     1000000         7\nboottime            5         0\n": 1000000*1e9 + 7,
		"monotonic          -2 500000000\n":                                  -15e8,
		"monotonic           0         0\nboottime            0         0\n": 0,
		"": 0, "boottime 3 0\n": 0,
	} {
		if got := offset(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// Base relates any clock to CLOCK_MONOTONIC.
func TestBase(t *testing.T) {
	at := int64(5000)
	first, err := Base(func() int64 { at += 10; return at })
	if err != nil {
		t.Fatal(err)
	}
	second, err := Base(func() int64 { at += 10; return at })
	if err != nil || first <= 0 || second < first {
		t.Errorf("%d, %d, %v", first, second, err)
	}
}
