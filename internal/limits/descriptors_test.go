package limits

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestDescriptors(t *testing.T) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if l.Cur < 16 || l.Cur > 1<<40 {
		t.Skipf("this test may have %d descriptors", l.Cur)
	}
	n := int(l.Cur)
	for _, c := range []struct{ most, part, want int }{
		{n, 1, n}, {n, 4, n / 4}, {3, 4, 3}, {n, 2 * n, 1}, {2 * n, 1, n},
	} {
		if got := Descriptors(c.most, c.part); got != c.want {
			t.Errorf("%d at most, or one in %d of %d: %d, want %d", c.most, c.part, n, got, c.want)
		}
	}
}
