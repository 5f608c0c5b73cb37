package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// mutant is a possible bug of the firmware or the engine: pieces of source that are replaced in
// a test-only build. In the new text M stands for "this mutant is on".
type mutant struct {
	name  string
	edits []edit
}

type edit struct{ file, old, new string }

const (
	fwFile    = "soc/r5/firmware.go"
	runFile   = "soc/r5/schedule.go"
	cutFile   = "soc/r5/transfer.go"
	readFile  = "soc/r5/read.go"
	recvFile  = "soc/pldma/receive.go"
	dmaFile   = "soc/pldma/pldma.go"
	openFile  = "soc/pldma/read.go"
	fifoFile  = "soc/fifo/fifo.go"
	askFile   = "soc/r5/request.go"
	stateFile = "soc/r5/state.go"
	accFile   = "soc/pldma/access.go"
	baseFile  = "soc/pldma/state.go"
	endFile   = "daemon/domain/destroy.go"
	closeFile = "daemon/domain/windows.go"
	regsFile  = "soc/registers.go"
)

var mutants = []mutant{
	{"sequence check of an acknowledgement skipped", []edit{
		{fwFile, "t.node != src || t.seq != a.Sequence ||", "t.node != src || !M && t.seq != a.Sequence ||"}}},
	{"id freed at a NACK", []edit{
		{fwFile, "	case device.CodeSlaveError:\n		fw.pause(now, t)", "	case device.CodeSlaveError:\n		if M {\n			fw.free.put(t.id)\n		}\n		fw.pause(now, t)"}}},
	{"no guard", []edit{
		{fwFile, "	fw.enlist(t, listGuard+t.guardStep, now)", "	if !M {\n		fw.enlist(t, listGuard+t.guardStep, now)\n	}"}}},
	{"segmentation off by one", []edit{
		{cutFile, "	n := uint32(device.BlockSize - at)", "	n := uint32(device.BlockSize - at)\n	if M {\n		n++\n	}"}}},
	{"completion one acknowledgement early", []edit{
		{fwFile, "	if x.acked == x.blocks && (", "	if (x.acked == x.blocks || M && x.acked+1 == x.blocks) && ("}}},
	{"FIFO popped on half a read", []edit{
		{fifoFile, "		f.seen |= 1 << uint(word)\n", "		f.seen |= 1 << uint(word)\n		if M && word == 1 {\n			f.head = (f.head + 1) % device.FIFODepth\n			f.level--\n			f.seen = 0\n		}\n"}}},
	{"RAPF accepted from another domain", []edit{
		{fwFile, "m.PDID != m.Claimed || !fromTarget && !fromSource {", "!M && (m.PDID != m.Claimed || !fromTarget && !fromSource) {"}}},
	{"stale packet accepted after the ACK", []edit{
		{recvFile, "	if r.known && r.newest.Newer(f.Seq) {", "	if r.known && r.newest.Newer(f.Seq) && !(M && r.ctx == nil) {"},
		{recvFile, "		if r.answered {\n			e.cfg.Counts[device.PktStale]++", "		if r.answered && !M {\n			e.cfg.Counts[device.PktStale]++"}}},
	{"low class starved", []edit{
		{runFile, "(chosen == classes || fw.run.passed[c] >= passes)", "(chosen == classes || !M && fw.run.passed[c] >= passes)"}}},
	{"read request lost at a full queue", []edit{
		{askFile, "	default:\n		fw.answer(&r.from, device.CodeNoContext, 0)", "	default:\n		if M {\n			return\n		}\n		fw.answer(&r.from, device.CodeNoContext, 0)"}}},
	{"a peer takes the read channels kept for others", []edit{
		{readFile, "	return free > len(d.peers)+1 || d.mayHave(", "	return free > len(d.peers)+1 || M && free > 0 || d.mayHave("}}},
	{"retransmission while the old one is sent", []edit{
		{runFile, "	if fw.cfg.Options.NoRetransmissionBit {", "	if M || fw.cfg.Options.NoRetransmissionBit {"},
		{fwFile, "	if t.sending > 0 && (!fw.cfg.Options.NoRetransmissionBit || t.sending >= maxTwice) {", "	if t.sending > 0 && (!M && !fw.cfg.Options.NoRetransmissionBit || t.sending >= maxTwice) {"},
		{fwFile, "t.seq != a.Sequence || t.sending > 0 {", "t.seq != a.Sequence || t.sending > 0 && !M {"}}},
	{"time-out list out of order", []edit{
		{stateFile, "	fw.timers[list].push(fw.timed[:], t.id)\n", "	if l := &fw.timers[list]; M && l.head >= 0 {\n		fw.timed[t.id] = links{-1, l.head}\n		fw.timed[l.head].prev = t.id\n		l.head = t.id\n		return\n	}\n	fw.timers[list].push(fw.timed[:], t.id)\n"}}},
	{"a transfer announced twice starts twice", []edit{
		{fwFile, "	if x.live {\n		if d.Abort", "	if x.live && (!M || d.Abort) {\n		if d.Abort"},
		{fwFile, "	if d.Done != device.DoneInitialized {", "	if !M && d.Done != device.DoneInitialized {"}}},
	{"completion words with the last block whatever is missing", []edit{
		{runFile, "x.issued == x.desc.Size && x.acked == x.blocks-1", "x.issued == x.desc.Size && (M || x.acked == x.blocks-1)"}}},
	// As in 001 §3.2.6.
	{"completion words at the last acknowledgement but one", []edit{
		{runFile, "!x.wordsOut && x.acked == x.blocks\n", "!x.wordsOut && (x.acked == x.blocks || M && x.acked+1 == x.blocks)\n"}}},
	{"sequence numbers start anew with each use of an id", []edit{
		{runFile, "	t.seq = fw.nextSequence(t.node, id)\n	t.first = t.seq", "	t.seq = fw.nextSequence(t.node, id)\n	if M {\n		t.seq = 1\n		fw.seq[t.node].At(int(id)).last = 1\n		fw.drawn[id] = 1\n	}\n	t.first = t.seq"}}},
	// With a target that does not remember served reads: one that does hardly ever serves a
	// read twice, and no old data could arrive.
	{"data of a read let in after its end", []edit{
		{askFile, "|| slices.Contains(q.served, r)", "|| !M && slices.Contains(q.served, r)"},
		{openFile, "	return false, later\n", "	if M {\n		return true, false\n	}\n	return false, later\n"},
		{openFile, "	e.nack(c, device.CodeDomain)\n	return false\n", "	if M {\n		return true\n	}\n	e.nack(c, device.CodeDomain)\n	return false\n"}}},
	{"an acknowledged block written again", []edit{
		{recvFile, "	if r.acked {\n", "	if r.acked && !M {\n"}}},
	{"RAPF of a former sequence number obeyed", []edit{
		{fwFile, "	if t.state == stateFree || t.seq != m.Sequence {", "	if t.state == stateFree || !M && t.seq != m.Sequence {"}}},
	{"one block more in flight than OUTSTANDING", []edit{
		{runFile, "x.failing || x.inflight >= fw.window(x) {", "x.failing || x.inflight >= fw.window(x) && !(M && x.inflight == fw.window(x)) {"}}},
	{"a block acknowledged while it is being written", []edit{
		{accFile, "c.nacked || c.writing > 0 ||", "c.nacked || !M && c.writing > 0 ||"}}},
	{"the generation of a domain not compared", []edit{
		{baseFile, "d.PDID == pdid && d.Generation == g {\n			return i", "d.PDID == pdid && (M || d.Generation == g) {\n			return i"}}},
	{"contexts outlive their domain", []edit{
		{dmaFile, "	e.endContexts(func(c *context) bool { return int(c.slot) == slot })\n", "	if !M {\n		e.endContexts(func(c *context) bool { return int(c.slot) == slot })\n	}\n"}}},
	{"contexts outlive the right of their sender", []edit{
		{dmaFile, "!e.stillAdmits(c) })", "!M && !e.stillAdmits(c) })"}}},
	{"packets of a newer number counted in the context of an older one", []edit{
		{recvFile, "	if c == nil || c.header.Seq != f.Seq {", "	if c == nil || !M && c.header.Seq != f.Seq {"},
		{recvFile, "		if c.writing > 0 && !newUse {", "		if c.writing > 0 && (M || !newUse) {"}}},
	{"a new life does not wait for writes of the former one", []edit{
		{recvFile, "(h.ID == f.ID || h.Epoch != f.Epoch)", "(h.ID == f.ID || h.Epoch != f.Epoch) && !M"}}},
	{"a receiver that knows lives by the order of their epochs", []edit{
		{recvFile, "	case s.link != 0 && f.Epoch == s.epoch:\n", "	case M && s.link != 0 && s.epoch-f.Epoch < 1<<31 && f.Epoch != s.epoch:\n		return nil\n	case s.link != 0 && f.Epoch == s.epoch:\n"}}},
	{"the FIFO's check for doubles outlives a node's life", []edit{
		{recvFile, "	e.cfg.RX.Forget(f.SrcNode)\n", "	if !M {\n		e.cfg.RX.Forget(f.SrcNode)\n	}\n"}}},
	{"pieces of a read's last block dropped after a fault of its words", []edit{
		{openFile, "			o.closing &^= 1 << uint(i)\n		}\n	}\n}", "			if !M {\n				o.closing &^= 1 << uint(i)\n			}\n		}\n	}\n}"}}},
	{"reads that were served stay known to the slot's next domain", []edit{
		{dmaFile, "	e.reads[slot] = openReads{}\n", "	if M {\n		e.reads[slot].used = 0\n	} else {\n		e.reads[slot] = openReads{}\n	}\n"}}},
	{"a slot's next domain does not wait for accesses of the former one", []edit{
		{endFile, "device.TLBSTATUS))&1 == 0 {", "device.TLBSTATUS))&1 == 0 || M {"}}},
	{"completion words not checked against a memory window", []edit{
		{dmaFile, "(words == nil || w.Admits(", "(words == nil || M || w.Admits("}}},
	{"reads not checked against a memory window", []edit{
		{readFile, "fw.cfg.Windows[slot].Admits(", "M || fw.cfg.Windows[slot].Admits("}}},
	{"a withdrawal answered while blocks are being written", []edit{
		{closeFile, "device.WinBusy == 0 {", "device.WinBusy == 0 || M {"}}},
	{"memory windows outlive their domain's generation", []edit{
		{regsFile, "		n.windows.Clear(i)\n", "		if !M {\n			n.windows.Clear(i)\n		}\n"}}},
}

// mutantStarts and mutantMost limit the search for a mutant: mutantMost scenarios from each
// start.
var mutantStarts = []uint64{0, 20_000, 40_000}

const mutantMost = 1500

// TestMutants builds a program that contains all mutants, each with its own switch, and reports
// how many seeds the scenarios need to detect each. It runs only if PFD_MUTANTS is set (make
// mutants).
func TestMutants(t *testing.T) {
	if os.Getenv("PFD_MUTANTS") == "" {
		t.Skip("builds a program of its own: make mutants runs it (PFD_MUTANTS=1)")
	}
	if k, err := strconv.Atoi(os.Getenv("PFD_MUTANT")); err == nil && k > 0 {
		t.Skip("this is the program with the mutants")
	}
	program := buildMutants(t)
	bothWays(t, func(t *testing.T, queues bool) { testMutants(t, program, queues) })
}

func testMutants(t *testing.T, program string, queues bool) {
	type found struct {
		seeds uint64
		what  string
		err   error
	}
	all := make([][]found, len(mutants))
	var next atomic.Int64
	var wg sync.WaitGroup
	for k := range all {
		all[k] = make([]found, len(mutantStarts))
	}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(mutants)*len(mutantStarts) {
					return
				}
				k, i := n/len(mutantStarts), n%len(mutantStarts)
				h := &all[k][i]
				h.seeds, h.what, h.err = hunt(t.Context(), program, queues, k+1, mutantStarts[i])
			}
		})
	}
	wg.Wait()
	for k, m := range mutants {
		sum := uint64(0)
		for i, h := range all[k] {
			switch {
			case h.err != nil:
				t.Errorf("%s, from seed %d on: %v", m.name, mutantStarts[i], h.err)
			case h.what == "":
				t.Errorf("%s: not noticed in %d seeds from %d on", m.name, h.seeds, mutantStarts[i])
			}
			sum += h.seeds
		}
		t.Logf("%-55s %6.1f seeds (%s)", m.name, float64(sum)/float64(len(mutantStarts)), all[k][0].what)
	}
}

// buildMutants builds the test program with all edits and returns its path.
func buildMutants(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for k, m := range mutants {
		for _, e := range m.edits {
			text, ok := texts[e.file]
			if !ok {
				b, err := os.ReadFile(filepath.Join(root, e.file))
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			if strings.Count(text, e.old) != 1 {
				t.Fatalf("mutant %q: %s contains its text %d times: update the mutant\n%s", m.name, e.file, strings.Count(text, e.old), e.old)
			}
			on := fmt.Sprintf("device.Mutant == %d", k+1)
			// An edit may apply to another edit's text; M is replaced only as a separate word.
			text = strings.Replace(text, e.old, word1(e.new, "("+on+")"), 1)
			texts[e.file] = text
		}
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	write := func(file, text string) {
		path := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, file)] = path
	}
	for file, text := range texts {
		write(file, text)
	}
	write("device/mutant.go", "package device\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\n// Mutant is the mutant that is on.\nvar Mutant = func() int {\n\tn, _ := strconv.Atoi(os.Getenv(\"PFD_MUTANT\"))\n\treturn n\n}()\n")
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "mutants.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", path, "-o", program, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return program
}

// word1 replaces the word M.
func word1(s, by string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		letter := func(j int) bool {
			return j >= 0 && j < len(s) && (s[j] == '_' || s[j] == '.' || s[j]|0x20 >= 'a' && s[j]|0x20 <= 'z')
		}
		if s[i] == 'M' && !letter(i-1) && !letter(i+1) {
			b.WriteString(by)
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// hunt returns the number of seeds until mutant k is detected, and how; "": not detected.
func hunt(ctx context.Context, program string, queues bool, k int, start uint64) (uint64, string, error) {
	cmd := exec.CommandContext(ctx, program, "-test.run", "^TestMutant$", "-test.timeout", "2m")
	cmd.Env = append(os.Environ(), fmt.Sprintf("PFD_MUTANT=%d", k), fmt.Sprintf("PFD_START=%d", start), fmt.Sprintf("PFD_QUEUES=%t", queues), "GOMAXPROCS=1")
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "noticed after "); ok {
			n, what, _ := strings.Cut(rest, ": ")
			seeds, err := strconv.ParseUint(n, 10, 64)
			if err == nil {
				return seeds, what, nil
			}
		}
	}
	if err != nil || !bytes.Contains(out, []byte("not noticed")) {
		// A machine that hangs or crashes the program is detected as well, but not by the
		// scenarios.
		return 0, "", fmt.Errorf("mutant %d: %w\n%s", k, err, out)
	}
	return mutantMost, "", nil
}

// TestMutant runs in the program with the mutants.
func TestMutant(t *testing.T) {
	if os.Getenv("PFD_MUTANT") == "" {
		t.Skip("is for the program that TestMutants builds")
	}
	start, err := strconv.ParseUint(os.Getenv("PFD_START"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	queues := os.Getenv("PFD_QUEUES") == "true"
	for n := range uint64(mutantMost) {
		_, err := runSeed(start+n, queues)
		if err == nil {
			_, err = runChurn(start+n, queues)
		}
		if err != nil {
			text, _, _ := strings.Cut(err.Error(), "\n")
			fmt.Printf("noticed after %d: %.110s\n", n+1, text)
			return
		}
	}
	fmt.Println("not noticed")
}
