package deploy

import (
	"path/filepath"
	"testing"

	"github.com/exanet/pfd/daemon/control"
)

// Every page-in method transfers all bytes, on every device, between separate processes, by
// every policy, with memory absent at either end, at both, and in every other page. A write to
// read-only memory fails with status 2.
func TestMethods(t *testing.T) {
	for _, device := range Devices() {
		t.Run(device.Name, func(t *testing.T) {
			socket := newPlace(t).file("pfd.sock")
			args := append(device.Args(t, filepath.Join(bin, "exanetctl"), nil), "--socket", socket)
			d := newDaemon(t, socket, start(t, "pfd", args...))
			d.ready()
			for _, method := range []string{"gup", "touch", "uffd", "populate"} {
				asked := d.counter("netlink_sent_total")
				for _, args := range [][]string{
					{"--size", "1"},
					{"--size", "4KiB", "--dst", "absent", "--policy", "p1"},
					{"--size", "4097", "--src", "absent", "--dst", "absent", "--policy", "p4", "--offset", "4090"},
					{"--size", "1MiB", "--dst", "absent", "--policy", "pa"},
					{"--size", "1MiB", "--src", "alternate", "--dst", "alternate", "--policy", "p1"},
					{"--size", "64KiB", "--from", "0", "--to", "0", "--src", "absent", "--dst", "absent"},
				} {
					failed := d.counter(control.CounterFailed)
					faults := d.counter("fifo_push_total")
					d.good(3, append(args, "--method", method)...)
					if len(args) > 2 && d.counter("fifo_push_total") == faults {
						t.Errorf("%s %v: nothing faulted", method, args)
					}
					if n := d.counter(control.CounterFailed) - failed; n != 0 {
						t.Errorf("%s %v: %d faults failed", method, args, n)
					}
				}
				if byProcess := method == "touch" || method == "populate"; byProcess != (d.counter("netlink_sent_total") > asked) {
					t.Errorf("%s: the processes were asked %d times", method, d.counter("netlink_sent_total")-asked)
				}
				for _, state := range []string{"readonly", "unmapped"} {
					r, code := outcome(d.write("--size", "64KiB", "--dst", state, "--count", "2", "--method", method))
					if code != 1 || r.Failed != 2 || !r.Verified || r.Error == nil {
						t.Errorf("%s, %s: exit code %d, %+v", method, state, code, r)
					}
				}
			}
		})
	}
}
