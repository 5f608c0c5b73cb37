package hostile

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// zramSwap swaps to a compressed disk in memory until the test ends.
func zramSwap(t *testing.T, size string) {
	t.Helper()
	needRoot(t, "making swap")
	const control = "/sys/class/zram-control/"
	text, err := os.ReadFile(control + "hot_add") // reading the file creates a disk
	if err != nil {
		t.Skipf("this kernel has no zram: %v", err)
	}
	id := strings.TrimSpace(string(text))
	dev, dir := "/dev/zram"+id, "/sys/block/zram"+id+"/"
	swapping := false
	t.Cleanup(func() {
		if swapping {
			if err := swapoff(dev); err != nil {
				t.Errorf("swapoff %s: %v", dev, err)
			}
		}
		if err := os.WriteFile(dir+"reset", []byte("1"), 0); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(control+"hot_remove", []byte(id), 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(dir+"disksize", []byte(size), 0); err != nil {
		t.Fatal(err)
	}
	mkswap, err := exec.LookPath("mkswap")
	if err != nil {
		t.Skip("no mkswap")
	}
	if out, err := exec.Command(mkswap, dev).CombinedOutput(); err != nil {
		t.Fatalf("mkswap: %v: %s", err, out)
	}
	if err := swapon(dev); err != nil {
		t.Skipf("swapon %s: %v", dev, err)
	}
	swapping = true
}

func swapon(path string) error  { return swap(unix.SYS_SWAPON, path) }
func swapoff(path string) error { return swap(unix.SYS_SWAPOFF, path) }

func swap(call uintptr, path string) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(call, ptr(p), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// Swapped-out pages are paged in from swap, at either end, and count as major faults if they
// are private to the process. Another domain is not affected.
func TestSwappedMemory(t *testing.T) {
	zramSwap(t, "256M")
	everywhere(t, swappedMemory)
}

func swappedMemory(t *testing.T, at place) {
	w := at.start(t)
	b := w.bystander(attachOrder{})
	quiet := b.p99()
	const size = 16 << 20
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w.during(t)
			p := w.pair(method, "pa")
			kind := "anonymous"
			if w.shared {
				kind = "swapped"
			}
			p.from.buffer("src", kind, size, 5)
			m := p.to.buffer("dst", kind, size, 6)
			out := func(p *proxy, id string) {
				t.Helper()
				w.until("the buffer is swapped out", func() bool {
					p.must(order{Op: "advise", ID: id, Advice: unix.MADV_PAGEOUT})
					for _, e := range p.must(order{Op: "pagemap", ID: id}).Bits {
						if e>>62&1 == 0 {
							return false
						}
					}
					return true
				})
			}
			counter := "faults_major_total"
			if w.shared {
				counter = "fifo_push_total"
			} else {
				out(p.to, "dst")
				out(p.from, "src")
			}
			before := w.count(1, counter) + w.count(0, counter)
			p.from.write("x", "src", m.Remote, size)
			undisturbed(t, b, quiet)
			p.from.arrives("x")
			p.to.holds("dst", 5, 0, size)
			if n := w.count(1, counter) + w.count(0, counter); n == before && (w.shared || method != "touch") {
				t.Errorf("%s: nothing was counted", counter)
			}
			p.kill()
		})
	}
	b.fine()
}
