package guests

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/trace/probe"
)

// kernels returns the kernels of the guests: the cache's own, and with EXANET_KERNELS=all those
// of docs/tracing.md, each of which needs a boot.
func kernels(t *testing.T) []string {
	switch v := os.Getenv("EXANET_KERNELS"); v {
	case "":
		return []string{""}
	case "all":
		return []string{"6.12", "6.18", "7.2", ""}
	default:
		return strings.Split(v, ",")
	}
}

// The eBPF probe on Debian's kernels, under each lockdown mode: the attached sources are those
// of docs/tracing.md, and the numbers equal pfd's.
func TestTraceOnKernels(t *testing.T) {
	doc, err := os.ReadFile("../../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kernels(t) {
		t.Run(k, func(t *testing.T) {
			for _, lockdown := range []string{"none", "integrity", "confidentiality"} {
				t.Run(lockdown, func(t *testing.T) {
					// Each has a boot of its own: 6.18.15 does not survive a `trace off` (docs/tracing.md).
					f := bootKernel(t, k)
					release := strings.Join(strings.Split(f.run(0, "uname", "-r"), ".")[:2], ".")
					f.run(0, "sh", "-c", `mount -t securityfs securityfs /sys/kernel/security
[ $0 = none ] || echo $0 >/sys/kernel/security/lockdown
pfd --nodes 2 --timeout-us 1000000 --guard-us 2000000 >/run/pfd.log 2>&1 &
p=$!
until exanetctl status >/dev/null 2>&1; do kill -0 $p || exit 1; sleep 0.1; done`, lockdown)
					row := f.traced(lockdown)
					row = fmt.Sprintf("| %s | %s | %s |", release, lockdown, row)
					if !strings.Contains(string(doc), row+"\n") {
						t.Errorf("docs/tracing.md has no line\n%s", row)
					}
				})
			}
		})
	}
}

// bootKernel boots a guest without a device's nodes.
func bootKernel(t testing.TB, kernel string) *fleet {
	t.Helper()
	usable(t)
	own := *cache
	own.Kernel = kernel
	return bootFrom(t, &own, qemu.Options{Guests: 1})
}

// traced traces some faults, and returns the facts that docs/tracing.md lists: the NOP, and the
// refused sources.
func (f *fleet) traced(lockdown string) string {
	f.t.Helper()
	const count = 40 // a guest without KVM is slow
	f.run(0, "exanetctl", "trace", "on")
	defer f.run(0, "exanetctl", "trace", "off")
	var w struct {
		Verified bool
		Faults   uint64
	}
	f.answer(0, &w, "write", "--dst", "absent", "--count", fmt.Sprint(count))
	if !w.Verified || w.Faults < count {
		f.t.Errorf("the transfers: %+v", w)
	}
	var s probe.Status
	until(f.t, "the faults are shown", func() bool {
		f.answer(0, &s, "trace", "status")
		return s.Counters["faults"] >= w.Faults && s.Counters["refusals"] >= s.Counters["rapfs"]
	})
	c := s.Counters
	if c["faults"] != w.Faults || c["page_ins"] != w.Faults || c["pages"] != w.Faults || c["failures"] != 0 ||
		c["joined"] != c["refusals"] || c["lone"]+c["bad_records"]+c["unreadable"]+c["full"]+c["crowded"] != 0 {
		f.t.Errorf("%d faults, and the maps have %v", w.Faults, c)
	}
	nop, refused := 0, []string{}
	for _, src := range s.Sources {
		f.t.Logf("%s %s: %+v", lockdown, src.Name, src)
		nop += src.Nop
		switch {
		case !src.Attached && src.Reason == "":
			f.t.Errorf("%s is not attached, without a reason", src.Name)
		case !src.Attached && lockdown == "confidentiality" && !strings.Contains(src.Reason, "lockdown=confidentiality"):
			f.t.Errorf("%s does not name the lockdown: %s", src.Name, src.Reason)
			refused = append(refused, src.Name)
		case !src.Attached:
			refused = append(refused, src.Name)
		case src.Name == "pages" && c["kernel_page_ins"] == 0:
			f.t.Errorf("no page-in has a kernel part: %v", c)
		}
	}
	f.t.Logf("%v", c)
	f.t.Logf("%s", f.run(0, "exanetctl", "trace", "latency"))
	if attached := slices.ContainsFunc(s.Sources, func(s probe.SourceState) bool { return s.Name == "latency" && s.Attached }); attached {
		if table := f.run(0, "cat", probe.DefaultDir+"/latency"); !strings.Contains(table, "total           gup       minor") {
			f.t.Errorf("cat reads\n%s", table)
		}
	}
	if len(refused) == 0 {
		refused = []string{"-"}
	}
	return fmt.Sprintf("%d | %s", nop, strings.Join(refused, ", "))
}
