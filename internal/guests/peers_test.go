package guests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/internal/workload/bench"
)

// rxeKernel is a Debian kernel with rdma_rxe and on-demand paging. The cloud kernel, which the
// other tests boot, has none.
const rxeKernel = "7.2-amd64"

// rxe builds the verbs program statically.
func rxe(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rxe")
	out, err := exec.Command("cc", "-static", "-O2", "-Wall", "-Wextra", "-DRDMA_STATIC_PROVIDERS=rxe", "-o", path, "testdata/rxe.c",
		"-Wl,--start-group", "-lrxe-rdmav34", "-libverbs", "-lnl-route-3", "-lnl-3", "-lpthread", "-Wl,--end-group").CombinedOutput()
	if err != nil {
		unavailable(t, fmt.Errorf("a program of verbs cannot be built: %w: %s: apt-get install gcc libc6-dev libibverbs-dev libnl-route-3-dev", err, out))
	}
	return path
}

// peerCases are the measured sizes, and how many of 100 pages of the destination are absent
// before each write.
var (
	peerSizes   = []row{small, large}
	peerPercent = []int{0, 5, 100}
)

func peerCase(who string, size uint64, percent int) string {
	return fmt.Sprintf("%s %d %d", who, size, percent)
}

// ourKind is memory in which exanetctl perf measures.
type ourKind struct {
	memory workload.Memory
	folios bool
}

var ourKinds = []ourKind{{workload.Shared, false}, {workload.Any, false}, {workload.Shared, true}, {workload.Any, true}}

func (k ourKind) String() string {
	if k.folios {
		return fmt.Sprintf("ours, memory %s, folios", k.memory)
	}
	return fmt.Sprintf("ours, memory %s", k.memory)
}

// allowFolios allows folios of 64 KiB in the guest. The others of private memory would come first.
const allowFolios = "cd /sys/kernel/mm/transparent_hugepage && echo never >hugepages-2048kB/enabled && " +
	"echo advise >hugepages-64kB/shmem_enabled && echo madvise >hugepages-64kB/enabled"

// ourWrite returns the duration of a write by exanetctl perf in us: the median, and the mean if
// most writes have no absent page.
func (f *fleet) ourWrite(k ourKind, r row, percent int) float64 {
	var got []struct {
		Median float64 `json:"typical_us"`
		Mean   float64 `json:"average_us"`
		Folio  uint64  `json:"folio_bytes"`
		Single string  `json:"single_pages"`
	}
	args := []string{"perf", "lat", "-s", fmt.Sprint(r.size), "-n", fmt.Sprint(r.parts), "--policy", r.policy, "--memory", string(k.memory)}
	if k.folios {
		args = append(args, "--folios")
	}
	if percent > 0 {
		args = append(args, "--absent", "dst", "--probability", fmt.Sprint(float64(percent)/100))
	}
	f.answer(0, &got, args...)
	if k.folios && got[0].Folio != 64<<10 {
		f.t.Errorf("%v: %d bytes come in at a touch: %s", k, got[0].Folio, got[0].Single)
	}
	if r == small && (percent == 5 || k.folios && percent == 100) {
		return got[0].Mean
	}
	return got[0].Median
}

// peers measures writes over rdma_rxe and by a pfd with two emulated nodes, in turns, in one
// guest. The verbs program checks each byte and the number of absent pages; exanetctl perf does
// so for ours.
func peers(t testing.TB, rounds int) (fig figures, accelerator string) {
	t.Helper()
	program := rxe(t)
	f := bootKernel(t, rxeKernel)
	f.put(0, program, "/tmp/rxe")
	f.begin(0, "pfd --nodes 2 "+strings.Join(slow, " "))
	verbs := f.lines(0, "/tmp/rxe", "lo")
	fig = figures{}
	kinds := ourKinds
	if out, err := f.try(0, "sh", "-c", allowFolios); err != nil {
		t.Logf("skipped: rows with folios: the guest's kernel does not allow them: %s", out)
		kinds = kinds[:2]
	}
	for i := range rounds + 1 {
		var theirs map[string][]int64
		verbs(&theirs)
		if i == 0 {
			theirs = nil // the first round is a warm-up
		}
		for name, ns := range theirs {
			fig.add(name, ns...)
		}
		for _, k := range kinds {
			for _, r := range peerSizes {
				for _, percent := range peerPercent {
					if v := f.ourWrite(k, r, percent); i > 0 {
						fig.add(peerCase(k.String(), r.size, percent), int64(v*1e3))
					}
				}
			}
		}
		t.Logf("round %d: ns, the last of each: %v", i, fig.last())
	}
	verbs(nil)
	f.run(0, "sh", "-c", "kill $(pidof pfd)")
	return fig, f.accelerator(0)
}

// Writes over rdma_rxe into memory registered for on-demand paging bring the right bytes, like
// ours. Both are slower if pages are absent.
func TestPeers(t *testing.T) {
	fig, _ := peers(t, 1)
	for _, r := range peerSizes {
		for _, who := range []string{"on demand", ourKinds[0].String(), ourKinds[1].String(), ourKinds[2].String(), ourKinds[3].String()} {
			if strings.HasSuffix(who, "folios") && len(fig[peerCase(who, r.size, 0)]) == 0 {
				continue // peers says why
			}
			present, absent := fig.median(peerCase(who, r.size, 0)), fig.median(peerCase(who, r.size, 100))
			t.Logf("%s, %d bytes: %.0f us, absent %.0f us: %.2f", who, r.size, present, absent, absent/present)
			if present <= 0 || absent <= 0 {
				t.Errorf("%s, %d bytes: not measured", who, r.size)
			}
		}
	}
}

// BenchmarkPeers measures the table of docs/benchmarks.md, and writes it there if EXANET_DOCS
// names the directory.
func BenchmarkPeers(b *testing.B) {
	fig, accelerator := peers(b, 8)
	var text strings.Builder
	fmt.Fprintf(&text, "| in one guest (%s), medians | 4 KiB present | 5 %% absent, mean | absent | absent / present | 1 MiB present | 5 %% absent | absent | 5 %% / present | absent / present |\n|%s\n", accelerator, strings.Repeat(" --- |", 10))
	for _, k := range []struct{ who, name string }{{"pinned", "rdma_rxe, pinned"}, {"on demand", "rdma_rxe, on demand"}, {ourKinds[0].String(), "ours (gup; p1, pa)"}, {ourKinds[1].String(), "ours, memory any"},
		{ourKinds[2].String(), "ours, folios of 64 KiB (4 KiB absent: the mean)"}, {ourKinds[3].String(), "ours, memory any, folios"}} {
		if len(fig[peerCase(k.who, small.size, 0)]) == 0 {
			continue
		}
		fmt.Fprintf(&text, "| %s |", k.name)
		for _, r := range peerSizes {
			present := fig.median(peerCase(k.who, r.size, 0))
			fmt.Fprintf(&text, " %.0f us |", present)
			if k.who == "pinned" {
				text.WriteString(strings.Repeat(" |", map[row]int{small: 3, large: 4}[r]))
				continue
			}
			some, absent := fig.median(peerCase(k.who, r.size, 5)), fig.median(peerCase(k.who, r.size, 100))
			if r == small {
				some = fig.mean(peerCase(k.who, r.size, 5))
			}
			fmt.Fprintf(&text, " %.0f us | %.0f us |", some, absent)
			if r == large {
				fmt.Fprintf(&text, " %.2f |", some/present)
			}
			fmt.Fprintf(&text, " %.2f |", absent/present)
		}
		text.WriteString("\n")
	}
	b.Log("\n" + text.String())
	if dir := os.Getenv("EXANET_DOCS"); dir != "" {
		if err := bench.Replace(filepath.Join(dir, "benchmarks.md"), "bench-peers", text.String()); err != nil {
			b.Fatal(err)
		}
	}
}
