package proc

import (
	"os"
	"testing"
)

func TestCountsFile(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"0::/\n":                     "",
		"0::/user.slice/a b\n":       "/sys/fs/cgroup/user.slice/a b/memory.stat",
		"4:memory:/a\n0::/b\n":       "/sys/fs/cgroup/memory/a/memory.stat",
		"4:cpu,memory:/a:b\n0::/\n":  "/sys/fs/cgroup/memory/a:b/memory.stat",
		"4:cpu:/a\n1:name=x:/memory": "",
		"4:memory:/\n0::/b\nbad\n":   "/sys/fs/cgroup/b/memory.stat",
	} {
		if got := countsFile([]byte(text)); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}

func BenchmarkFreshCounts(b *testing.B) {
	p, err := OpenPID(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	for b.Loop() {
		p.counted.Store(0)
		p.FreshCounts()
	}
}
