package hostile

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A pfd of a user of its own reaches other users' processes with two capabilities,
// and who has forgotten the second is told its name.
func TestCapabilities(t *testing.T) {
	needRoot(t, "giving capabilities to another user's pfd")
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is not installed (util-linux)")
	}
	const uid, stranger = "3100", 3101
	for _, c := range []struct {
		capabilities, refusal string
	}{
		{"+sys_ptrace", "CAP_DAC_OVERRIDE"},
		{"+sys_ptrace,+dac_override", ""},
	} {
		t.Run(c.capabilities, func(t *testing.T) {
			w := prepareAs(t, pfdProgram, nil)
			if err := os.Chown(w.dir, 3100, 3100); err != nil {
				t.Fatal(err)
			}
			w.args = append([]string{setpriv, "--reuid=" + uid, "--regid=" + uid, "--clear-groups", "--pdeathsig=KILL",
				"--inh-caps=" + c.capabilities, "--ambient-caps=" + c.capabilities}, w.args...)
			if err := w.run(); err != nil {
				t.Fatal(err)
			}
			p := w.spawn("stranger", stranger)
			r, err := p.do(order{Op: "attach", Attach: attachOrder{Socket: w.socket()}})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("another user's process is told: %q", r.Err)
			if c.refusal != "" {
				if !strings.Contains(r.Err, c.refusal) {
					t.Errorf("refused with %q, want the name of %s", r.Err, c.refusal)
				}
				return
			}
			if r.Err != "" {
				t.Fatalf("refused: %s", r.Err)
			}
			b := w.bystander(attachOrder{UID: stranger})
			b.fine()
		})
	}
}
