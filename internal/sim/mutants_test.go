package sim

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/internal/mutants"
)

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
	linkFile  = "soc/r5/links.go"
	readyFile = "soc/r5/ready.go"
)

var all = slices.Concat(treeMutants, []mutants.Mutant{
	mutants.Of("sequence check of an acknowledgement skipped",
		mutants.In(fwFile, "|| t.seq != a.Sequence && !fw.former", "|| !M && t.seq != a.Sequence && !fw.former")),
	mutants.Of("id freed at a NACK",
		mutants.In(fwFile, "	case device.CodeSlaveError:\n		fw.pause(now, t)", "	case device.CodeSlaveError:\n		if M {\n			fw.free.put(t.id)\n		}\n		fw.pause(now, t)")),
	mutants.Of("no guard",
		mutants.In(fwFile, "	fw.enlist(t, listGuard+t.guardStep, now)", "	if !M {\n		fw.enlist(t, listGuard+t.guardStep, now)\n	}")),
	mutants.Of("segmentation off by one",
		mutants.In(cutFile, "	n := uint32(device.BlockSize - at)", "	n := uint32(device.BlockSize - at)\n	if M {\n		n++\n	}")),
	mutants.Of("completion one acknowledgement early",
		mutants.In(fwFile, "	if x.acked == x.blocks && (", "	if (x.acked == x.blocks || M && x.acked+1 == x.blocks) && (")),
	mutants.Of("FIFO popped on half a read",
		mutants.In(fifoFile, "		f.seen |= 1 << uint(word)\n", "		f.seen |= 1 << uint(word)\n		if M && word == 1 {\n			f.head = (f.head + 1) % device.FIFODepth\n			f.level--\n			f.seen = 0\n		}\n")),
	mutants.Of("RAPF accepted from another domain",
		mutants.In(fwFile, "m.PDID != m.Claimed || !fromTarget && !fromSource {", "!M && (m.PDID != m.Claimed || !fromTarget && !fromSource) {")),
	mutants.Of("stale packet accepted after the ACK",
		mutants.In(recvFile, "	if r.known && r.newest.Newer(f.Seq) {", "	if r.known && r.newest.Newer(f.Seq) && !(M && r.ctx == nil) {"),
		mutants.In(recvFile, "		if r.answered {\n			e.cfg.Counts[device.PktStale]++", "		if r.answered && !M {\n			e.cfg.Counts[device.PktStale]++")),
	mutants.Of("low class starved",
		mutants.In(runFile, "(chosen == classes || fw.run.passed[c] >= passes)", "(chosen == classes || !M && fw.run.passed[c] >= passes)")),
	mutants.Of("read request lost at a full queue",
		mutants.In(askFile, "	default:\n		fw.answer(&r.from, device.CodeNoContext, 0)", "	default:\n		if M {\n			return\n		}\n		fw.answer(&r.from, device.CodeNoContext, 0)")),
	mutants.Of("a peer takes the read channels kept for others",
		mutants.In(readFile, "	return free > len(d.peers)+1 || d.mayHave(", "	return free > len(d.peers)+1 || M && free > 0 || d.mayHave(")),
	mutants.Of("retransmission while the old one is sent",
		mutants.In(runFile, "	if fw.cfg.Options.NoRetransmissionBit {", "	if M || fw.cfg.Options.NoRetransmissionBit {"),
		mutants.In(fwFile, "	if t.sending > 0 && (!fw.cfg.Options.NoRetransmissionBit || t.sending >= maxTwice) {", "	if t.sending > 0 && (!M && !fw.cfg.Options.NoRetransmissionBit || t.sending >= maxTwice) {"),
		mutants.In(fwFile, "t.node != src || t.sending > 0 ||", "t.node != src || t.sending > 0 && !M ||")),
	mutants.Of("time-out list out of order",
		mutants.In(stateFile, "	fw.timers[list].push(fw.timed[:], t.id)\n", "	if l := &fw.timers[list]; M && l.head >= 0 {\n		fw.timed[t.id] = links{-1, l.head}\n		fw.timed[l.head].prev = t.id\n		l.head = t.id\n		return\n	}\n	fw.timers[list].push(fw.timed[:], t.id)\n")),
	mutants.Of("a transfer announced twice starts twice",
		mutants.In(fwFile, "	if x.live {\n		if d.Abort", "	if x.live && (!M || d.Abort) {\n		if d.Abort"),
		mutants.In(fwFile, "	if d.Done != device.DoneInitialized {", "	if !M && d.Done != device.DoneInitialized {")),
	mutants.Of("completion words with the last block whatever is missing",
		mutants.In(runFile, "x.issued == x.desc.Size && x.acked == x.blocks-1", "x.issued == x.desc.Size && (M || x.acked == x.blocks-1)")),
	// As in 001 §3.2.6.
	mutants.Of("completion words at the last acknowledgement but one",
		mutants.In(runFile, "!x.wordsOut && x.acked == x.blocks\n", "!x.wordsOut && (x.acked == x.blocks || M && x.acked+1 == x.blocks)\n")),
	mutants.Of("sequence numbers start anew with each use of an id",
		mutants.In(runFile, "	t.seq = fw.nextSequence(t.node, id)\n	t.first = t.seq", "	t.seq = fw.nextSequence(t.node, id)\n	if M {\n		t.seq = 1\n		fw.seq[t.node].At(int(id)).last = 1\n		fw.drawn[id] = 1\n	}\n	t.first = t.seq")),
	// With a target that does not remember served reads: one that does hardly ever serves a
	// read twice, and no old data could arrive.
	mutants.Of("data of a read let in after its end",
		mutants.In(askFile, "|| slices.Contains(q.served, r)", "|| !M && slices.Contains(q.served, r)"),
		mutants.In(openFile, "	return false, later\n", "	if M {\n		return true, false\n	}\n	return false, later\n"),
		mutants.In(openFile, "	e.nack(c, device.CodeDomain)\n	return false\n", "	if M {\n		return true\n	}\n	e.nack(c, device.CodeDomain)\n	return false\n")),
	mutants.Of("an acknowledged block written again",
		mutants.In(recvFile, "	if r.acked {\n", "	if r.acked && !M {\n")),
	mutants.Of("RAPF of a former sequence number obeyed",
		mutants.In(fwFile, "	if t.state == stateFree || t.seq != m.Sequence {", "	if t.state == stateFree || !M && t.seq != m.Sequence {")),
	mutants.Of("one block more in flight than OUTSTANDING",
		mutants.In(runFile, "x.parked || x.inflight >= fw.window(x) {", "x.parked || x.inflight >= fw.window(x) && !(M && x.inflight == fw.window(x)) {")),
	mutants.Of("a block acknowledged while it is being written",
		mutants.In(accFile, "c.nacked || c.writing > 0 ||", "c.nacked || !M && c.writing > 0 ||")),
	mutants.Of("the generation of a domain not compared",
		mutants.In(baseFile, "d.PDID == pdid && d.Generation == g {\n			return i", "d.PDID == pdid && (M || d.Generation == g) {\n			return i")),
	mutants.Of("contexts outlive their domain",
		mutants.In(dmaFile, "	e.endContexts(func(c *context) bool { return int(c.slot) == slot })\n", "	if !M {\n		e.endContexts(func(c *context) bool { return int(c.slot) == slot })\n	}\n")),
	mutants.Of("contexts outlive the right of their sender",
		mutants.In(dmaFile, "!e.stillAdmits(c) })", "!M && !e.stillAdmits(c) })")),
	mutants.Of("packets of a newer number counted in the context of an older one",
		mutants.In(recvFile, "	if c == nil || c.header.Seq != f.Seq {", "	if c == nil || !M && c.header.Seq != f.Seq {"),
		mutants.In(recvFile, "		if c.writing > 0 && !newUse {", "		if c.writing > 0 && (M || !newUse) {")),
	mutants.Of("a new life does not wait for writes of the former one",
		mutants.In(recvFile, "(h.ID == f.ID || h.Epoch != f.Epoch)", "(h.ID == f.ID || h.Epoch != f.Epoch) && !M")),
	mutants.Of("a receiver that knows lives by the order of their epochs",
		mutants.In(recvFile, "	case s.link != 0 && f.Epoch == s.epoch:\n", "	case M && s.link != 0 && s.epoch-f.Epoch < 1<<31 && f.Epoch != s.epoch:\n		return nil\n	case s.link != 0 && f.Epoch == s.epoch:\n")),
	mutants.Of("frames of a former life accepted",
		mutants.In(recvFile, "	case s.link != 0 && f.Epoch == s.epoch:\n		if f.Link == s.link {\n", "	case s.link != 0 && (M || f.Epoch == s.epoch):\n		if M || f.Link == s.link {\n")),
	mutants.Of("LinkReady lost: nothing that waited is sent",
		mutants.In(linkFile, "	for id := p.held.head; id >= 0; {\n", "	for id := p.held.head; id >= 0 && !M; {\n")),
	mutants.Of("LinkReady lost: transfers that waited do not go on",
		mutants.In(linkFile, "	fw.resume(p)\n", "	if !M {\n		fw.resume(p)\n	}\n")),
	mutants.Of("attempts counted while the link is down",
		mutants.In(readyFile, "	if p == nil || p.takes(t.short) {\n		return false\n", "	if p == nil || p.takes(t.short) || M {\n		return false\n")),
	mutants.Of("the round trip to other hosts not measured",
		mutants.In(fwFile, "r != nil && t.timed {", "r != nil && t.timed && !M {")),
	mutants.Of("the FIFO's check for doubles outlives a node's life",
		mutants.In(recvFile, "	e.cfg.RX.Forget(f.SrcNode)\n", "	if !M {\n		e.cfg.RX.Forget(f.SrcNode)\n	}\n")),
	mutants.Of("pieces of a read's last block dropped after a fault of its words",
		mutants.In(openFile, "			o.closing &^= 1 << uint(i)\n		}\n	}\n}", "			if !M {\n				o.closing &^= 1 << uint(i)\n			}\n		}\n	}\n}")),
	mutants.Of("reads that were served stay known to the slot's next domain",
		mutants.In(dmaFile, "	e.reads[slot] = openReads{}\n", "	if M {\n		e.reads[slot].used = 0\n	} else {\n		e.reads[slot] = openReads{}\n	}\n")),
	mutants.Of("a slot's next domain does not wait for accesses of the former one",
		mutants.In(endFile, "device.TLBSTATUS))&1 == 0 {", "device.TLBSTATUS))&1 == 0 || M {")),
	mutants.Of("completion words not checked against a memory window",
		mutants.In(dmaFile, "(words == nil || w.Admits(", "(words == nil || M || w.Admits(")),
	mutants.Of("reads not checked against a memory window",
		mutants.In(readFile, "fw.cfg.Windows[slot].Admits(", "M || fw.cfg.Windows[slot].Admits(")),
	mutants.Of("a withdrawal answered while blocks are being written",
		mutants.In(closeFile, "device.WinBusy == 0 {", "device.WinBusy == 0 || M {")),
	mutants.Of("memory windows outlive their domain's generation",
		mutants.In(regsFile, "		n.windows.Clear(i)\n", "		if !M {\n			n.windows.Clear(i)\n		}\n")),
})

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
	program := mutants.Build(t, "../..", all)
	bothWays(t, func(t *testing.T, queues bool) { testMutants(t, program, queues) })
}

func testMutants(t *testing.T, program string, queues bool) {
	type found struct {
		seeds uint64
		what  string
		err   error
	}
	results := make([][]found, len(all))
	var next atomic.Int64
	var wg sync.WaitGroup
	for k := range results {
		results[k] = make([]found, len(mutantStarts))
	}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(all)*len(mutantStarts) {
					return
				}
				k, i := n/len(mutantStarts), n%len(mutantStarts)
				h := &results[k][i]
				h.seeds, h.what, h.err = hunt(t.Context(), program, queues, k+1, mutantStarts[i])
			}
		})
	}
	wg.Wait()
	for k, m := range all {
		sum := uint64(0)
		for i, h := range results[k] {
			switch {
			case h.err != nil:
				t.Errorf("%s, from seed %d on: %v", m.Name, mutantStarts[i], h.err)
			case h.what == "":
				t.Errorf("%s: not noticed in %d seeds from %d on", m.Name, h.seeds, mutantStarts[i])
			}
			sum += h.seeds
		}
		t.Logf("%-55s %6.1f seeds (%s)", m.Name, float64(sum)/float64(len(mutantStarts)), results[k][0].what)
	}
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
		if err == nil {
			_, err = runTrees(start + n)
		}
		if err == nil {
			_, err = runFar(start+n, 8, 256<<10)
		}
		if err != nil {
			text, _, _ := strings.Cut(err.Error(), "\n")
			fmt.Printf("noticed after %d: %.110s\n", n+1, text)
			return
		}
	}
	fmt.Println("not noticed")
}
