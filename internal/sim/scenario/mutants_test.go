package scenario

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/mutants"
)

const (
	netFile    = "internal/sim/network.go"
	eventsFile = "internal/sim/events.go"
	topoFile   = "internal/sim/topology/topology.go"
	tableFile  = "soc/sparse/sparse.go"
	readyFile  = "soc/r5/ready.go"
	recvFile   = "soc/pldma/receive.go"
	fwFile     = "soc/r5/firmware.go"
	baseFile   = "soc/pldma/state.go"
	regsFile   = "soc/registers.go"
)

// Mutants of the parts that only the simulator has, and of the machines' tables.
var all = []mutants.Mutant{
	mutants.Of("a queue without an end",
		mutants.In(netFile, "{ return len(o.queues[vc])+o.coming[vc] < n.depth }", "{ return M || len(o.queues[vc])+o.coming[vc] < n.depth }")),
	mutants.Of("a place in a queue that is not given back",
		mutants.In(netFile, "	o.coming[h.vc]--\n", "	if !M {\n		o.coming[h.vc]--\n	}\n")),
	mutants.Of("an output that waits for room is not told",
		mutants.In(netFile, "			n.try(int(other))\n", "			if !M {\n				n.try(int(other))\n			}\n")),
	mutants.Of("a frame stays at the first node it reaches",
		mutants.In(netFile, "to != l.To {", "to != l.To && !M {")),
	mutants.Of("a node's own frames are forgotten at a full queue",
		mutants.In(netFile, "	o.own[vc] = append(o.own[vc], f)\n", "	if !M || n.room(o, vc) {\n		o.own[vc] = append(o.own[vc], f)\n	}\n")),
	mutants.Of("one virtual channel",
		mutants.In(topoFile, "		if !wraps {\n", "		if !wraps || M {\n")),
	mutants.Of("the heap looks at three children",
		mutants.In(eventsFile, "c < min(4*i+5, n); c++", "c < min(4*i+map[bool]int{false: 5, true: 4}[M], n); c++")),
	mutants.Of("a driver that was stopped forgets what came",
		mutants.In(eventsFile, "		n.held = append(n.held, *e)\n", "		if !M {\n			n.held = append(n.held, *e)\n		}\n")),
	mutants.Of("a node is not told that its link takes blocks again",
		mutants.In(netFile, "		n.tell(n.Network.Links[link].From, to, wire.ReadyAll)\n", "		if !M {\n			n.tell(n.Network.Links[link].From, to, wire.ReadyAll)\n		}\n")),
	mutants.Of("a transfer that waits for a link is forgotten",
		mutants.In(readyFile, "		fw.enqueueRear(x)\n", "		if !M {\n			fw.enqueueRear(x)\n		}\n")),
	mutants.Of("blocks in flight are counted for ever",
		mutants.In(readyFile, "	p.flying -= int64(t.length)\n", "	if !M {\n		p.flying -= int64(t.length)\n	}\n")),
	mutants.Of("a frame that is lost keeps its place in the next queue",
		mutants.In(netFile, "	next.coming[o.onwardVC]--\n", "	if !M {\n		next.coming[o.onwardVC]--\n	}\n")),
	mutants.Of("a frame that comes again is written again",
		mutants.In(recvFile, "	if r.known && r.newest.Newer(f.Seq) {", "	if r.known && r.newest.Newer(f.Seq) && !M {"),
		mutants.In(recvFile, "	if r.acked {\n", "	if r.acked && !M {\n")),
	mutants.Of("any process may end others' blocks",
		mutants.In(fwFile, "!fromTarget && !fromSource {", "!fromTarget && !fromSource && !M {")),
	mutants.Of("a domain's successor is taken for it",
		mutants.In(baseFile, "d.PDID == pdid && d.Generation == g {\n			return i", "d.PDID == pdid && (M || d.Generation == g) {\n			return i")),
	mutants.Of("rights that are withdrawn stay",
		mutants.In(regsFile, "		n.dma.SetPeers(i/4, &peers)\n", "		if !M {\n			n.dma.SetPeers(i/4, &peers)\n		}\n")),
	mutants.Of("two parts of a table are one",
		mutants.In(tableFile, "func (t *Table[T]) At(i int) *T {\n", "func (t *Table[T]) At(i int) *T {\n	if M {\n		i %= 4 * part\n		i -= i / part / 2 * part\n	}\n")),
}

// TestMutants reports how many random scenarios are needed to notice each mutant. It runs only if
// PFD_MUTANTS is set (make mutants).
func TestMutants(t *testing.T) {
	if os.Getenv("PFD_MUTANTS") == "" {
		t.Skip("builds a program of its own: make mutants runs it (PFD_MUTANTS=1)")
	}
	if os.Getenv("PFD_MUTANT") != "" {
		t.Skip("this is the program with the mutants")
	}
	program := mutants.Build(t, "../../..", all)
	for k, m := range append(all, mutants.Of("none")) {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			c := exec.CommandContext(t.Context(), program, "-test.run", "^TestMutant$", "-test.timeout", "2m")
			c.Env = append(os.Environ(), fmt.Sprintf("PFD_MUTANT=%d", k+1))
			out, err := c.CombinedOutput()
			if err != nil || strings.Contains(string(out), "noticed after") != (k < len(all)) {
				t.Errorf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// TestMutant runs in the program with the mutants.
func TestMutant(t *testing.T) {
	if k, err := strconv.Atoi(os.Getenv("PFD_MUTANT")); err != nil || k <= 0 {
		t.Skip("is for the program that TestMutants builds")
	}
	for seed := range uint64(300) {
		f := random(rand.New(rand.NewPCG(seed, 11)))
		f.Limit = 60e9
		if seed%4 == 0 { // a ring whose queues are all full
			f = New()
			f.Seed, f.Limit, f.Topology = seed, 20e9, Topology{Kind: "torus", Size: []int{5, 1, 1}, Rate: 1e9}
			f.Firmware.Outstanding, f.Firmware.Timeout = 64, 5e9
			f.Workload = []Workload{{Kind: "random", Count: 500, Size: 1, Most: 64 << 10}}
		}
		if err := tryFile(t, f); err != nil {
			fmt.Printf("noticed after %d: %.110s\n", seed+1, err.Error())
			return
		}
	}
	fmt.Println("not noticed")
}

// tryFile runs a file; a machine that panics fails it, too.
func tryFile(t *testing.T, f *File) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: the machine panicked: %v", ErrViolation, r)
		}
	}()
	if _, err = Run(t.Context(), f, Options{}); err != nil && !errors.Is(err, ErrViolation) {
		t.Fatal(err)
	}
	return err
}
