package hostile

import "testing"

// devices are where the nodes may be: in pfd, or in a process of their own, whose
// device sees what is shared with it and no process's tables. What is tested of one
// is tested of all.
var devices = []struct {
	name   string
	args   func(t *testing.T) []string // of pfd
	shared bool                        // memory must be shared: its rights and its end are the share's
}{
	{"emu", func(*testing.T) []string { return nil }, false},
	{"vfio-user", emulator, true},
}

// onEach runs a test with a pfd over each kind of device.
func onEach(t *testing.T, f func(t *testing.T, w *world)) {
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			w := start(t, d.args(t)...)
			w.shared = d.shared
			f(t, w)
		})
	}
}
