package scenario

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Transfer is one write or read.
type Transfer struct {
	Read   bool
	From   int // node of the source
	To     int // node of the destination
	Size   int
	Start  int64 // ns
	After  int   // it starts when this one has ended, -1: at Start
	Absent float64
	Gone   float64 // as Absent, of the source
	Touch  bool
	Urgent bool
	Pages  uint64 // seed of the choice of absent pages
	Group  int    // index of its workload
}

// Limits of a scenario (defined by this project).
const (
	maxTransfers = 1 << 20
	maxSize      = 64 << 20
)

// kinds are the kinds of workload, and what each makes of its nodes.
var kinds = map[string]string{
	"write":      "each node of from writes to each of to",
	"ping-pong":  "two nodes write to each other in turns, count times each",
	"incast":     "all nodes of from write to one node at once",
	"all-to-all": "each node of from writes to each of to, beginning with the next one",
	"halo":       "each node of from writes to the nodes before and after it",
	"random":     "count writes between random pairs, of random sizes and at random times",
	"recording":  "the transfers of a recording of pfd, at their times",
}

func kindNames() string { return "write, ping-pong, incast, all-to-all, halo, random or recording" }

// check returns the first value that cannot be, in a scenario of so many nodes.
func (w *Workload) check(nodes int) error {
	if kinds[w.Kind] == "" {
		return fmt.Errorf("kind %q: want %s", w.Kind, kindNames())
	}
	for name, list := range map[string]Nodes{"from": w.From, "to": w.To} {
		for _, n := range list {
			if n >= nodes {
				return fmt.Errorf("%s: node %d, and the topology has %d: 0 to %d", name, n, nodes, nodes-1)
			}
		}
	}
	switch {
	case (w.File != "") != (w.Kind == "recording"):
		return errors.New("recording, and no other kind, has the file of a recording, as file = \"pfd.rec\"")
	case w.File != "" && (w.Size != 0 || w.From != nil || w.To != nil || w.Count != 0 || w.Read || w.Urgent):
		return errors.New("the recording has size, from, to, count, read and urgent")
	case w.File != "":
	case w.Size == 0 || w.Size > maxSize || w.Most > maxSize:
		return fmt.Errorf("size: want 1B to %dMiB", maxSize>>20)
	case w.Most != 0 && w.Kind != "random":
		return errors.New("most is of kind random")
	case w.Most != 0 && w.Most < w.Size:
		return errors.New("most is less than size")
	case w.Count < 0 || w.Count > maxTransfers:
		return fmt.Errorf("count is %d: want 1 to %d", w.Count, maxTransfers)
	case !(w.Absent >= 0 && w.Absent <= 1 && w.Gone >= 0 && w.Gone <= 1): // nor NaN
		return errors.New("absent and absent-source are parts of the pages: want 0 to 1")
	case w.Kind == "incast" && len(w.To) != 1:
		return errors.New("incast has one node as its to")
	case w.Kind == "ping-pong" && (len(w.From) != 1 || len(w.To) != 1 || w.From[0] == w.To[0]):
		return errors.New("ping-pong has one node as its from, and another one as its to")
	case w.Kind == "halo" && w.To != nil:
		return errors.New("halo has no to: each node writes to its neighbours in from")
	case w.Kind == "random" && nodes < 2:
		return errors.New("random wants two nodes or more")
	}
	return nil
}

// Expand returns the transfers of a file, which Parse has accepted.
func (f *File) Expand() ([]Transfer, error) {
	nodes, err := f.nodes()
	if err != nil {
		return nil, err
	}
	e := expansion{rng: rand.New(rand.NewPCG(f.Seed, 0x5ce0)), nodes: nodes}
	for i := range f.Workload {
		if w := &f.Workload[i]; w.Kind != "recording" {
			e.add(i, w)
		} else if err := e.replay(i, w, f.recordings[w.File]); err != nil {
			return nil, err
		}
		if len(e.list) > maxTransfers {
			return nil, fmt.Errorf("%w: more than %d transfers", ErrFile, maxTransfers)
		}
	}
	if len(e.list) == 0 {
		return nil, fmt.Errorf("%w: no transfer: every node would write to itself", ErrFile)
	}
	return e.list, nil
}

type expansion struct {
	rng   *rand.Rand
	nodes int
	list  []Transfer
}

func (e *expansion) all(n Nodes) Nodes {
	if n != nil {
		return n
	}
	for i := range e.nodes {
		n = append(n, i)
	}
	return n
}

// put adds a transfer and returns its index.
func (e *expansion) put(group int, w *Workload, from, to, size, after int) int {
	if len(e.list) > maxTransfers { // Expand refuses the file
		return len(e.list) - 1
	}
	t := Transfer{
		Read: w.Read, From: from, To: to, Size: size, Start: int64(w.Start), After: after,
		Absent: w.Absent, Gone: w.Gone, Touch: w.Touch, Urgent: w.Urgent, Pages: w.Pages, Group: group,
	}
	if t.Pages == 0 {
		t.Pages = e.rng.Uint64() | 1
	}
	e.list = append(e.list, t)
	return len(e.list) - 1
}

// repeat adds count transfers of a pair, one after the other.
func (e *expansion) repeat(group int, w *Workload, from, to, after int) int {
	for range max(w.Count, 1) {
		after = e.put(group, w, from, to, int(w.Size), after)
	}
	return after
}

func (e *expansion) add(group int, w *Workload) {
	from, to := e.all(w.From), e.all(w.To)
	switch w.Kind {
	case "write", "incast":
		for _, a := range from {
			for _, b := range to {
				if a != b || len(from) == 1 && len(to) == 1 {
					e.repeat(group, w, a, b, -1)
				}
			}
		}
	case "ping-pong":
		after := -1
		for range max(w.Count, 1) {
			after = e.put(group, w, from[0], to[0], int(w.Size), after)
			after = e.put(group, w, to[0], from[0], int(w.Size), after)
		}
	case "all-to-all":
		for k, a := range from {
			after := -1
			for i := range to {
				if b := to[(k+1+i)%len(to)]; a != b {
					after = e.repeat(group, w, a, b, after)
				}
			}
		}
	case "halo":
		for k, a := range from {
			for _, b := range []int{from[(k+1)%len(from)], from[(k+len(from)-1)%len(from)]} {
				if a != b {
					e.repeat(group, w, a, b, -1)
				}
			}
		}
	case "random":
		for range max(w.Count, 1) {
			a, b := from[e.rng.IntN(len(from))], to[e.rng.IntN(len(to))]
			if a == b {
				b = (b + 1) % e.nodes
			}
			size := int(w.Size)
			if w.Most > w.Size {
				size += e.rng.IntN(int(w.Most-w.Size) + 1)
			}
			i := e.put(group, w, a, b, size, -1)
			e.list[i].Start += e.rng.Int64N(100_000)
		}
	}
}

// injection is a kind of Inject.
type injection struct {
	text    string
	frames  bool // it happens to frames, with a probability
	instant bool // it happens once, at From
	most    bool // it has a longest delay
	ends    bool // the nodes' processes end, and others follow
}

// injections are the kinds of injections.
var injections = map[string]injection{
	"lose-data":    {text: "a block is lost", frames: true},
	"lose-ack":     {text: "an acknowledgement is lost", frames: true},
	"lose-nack":    {text: "a refusal of a block is lost", frames: true},
	"lose-request": {text: "a request for retransmission is lost", frames: true},
	"lose-read":    {text: "a request of a read is lost", frames: true},
	"lose-answer":  {text: "an answer to such a request is lost", frames: true},
	"duplicate":    {text: "a frame arrives twice", frames: true},
	"delay":        {text: "a frame arrives up to most later", frames: true, most: true},
	"tear":         {text: "packets of a block are lost", frames: true},
	"corrupt":      {text: "packets of a block are corrupt", frames: true},
	"replay":       {text: "a frame arrives once more, up to most later", frames: true, most: true},
	"evict-again":  {text: "pages that were brought in become absent before the retransmission", frames: true},
	"link-down":    {text: "the nodes' links lose every frame"},
	"link-cut":     {text: "a link of the topology loses every frame"},
	"withdraw":     {text: "the nodes' processes withdraw the rights of others"},
	"pfd-killed":   {text: "the nodes' pfds are killed, and start again", ends: true},
	"power":        {text: "the nodes have no power", ends: true},
	"reset":        {text: "the nodes are reset, and start again", ends: true},
	"hostile":      {text: "another user's processes on the nodes, and nodes that do not exist, send anything"},
	"pfd-stopped":  {text: "the nodes' drivers handle nothing"},
	"evict":        {text: "all pages of the nodes' processes become absent", instant: true},
	"kill":         {text: "the nodes' processes end", instant: true},
	"unmap":        {text: "the nodes' processes unmap their memory", instant: true},
	"abort":        {text: "the nodes' processes abort their transfers", instant: true},
	"forge":        {text: "another user's processes on the nodes request retransmissions and ends of others' blocks"},
}

func injectionNames() string {
	return strings.Join(slices.Sorted(maps.Keys(injections)), ", ")
}

// check returns the first value that cannot be.
func (j *Inject) check(nodes int) error {
	kind, ok := injections[j.What]
	if !ok {
		return fmt.Errorf("what is %q: want %s", j.What, injectionNames())
	}
	for _, n := range j.Nodes {
		if n >= nodes {
			return fmt.Errorf("node %d, and the topology has %d: 0 to %d", n, nodes, nodes-1)
		}
	}
	switch {
	case !(j.Probability >= 0 && j.Probability <= 1): // nor NaN
		return errors.New("probability: want 0 to 1")
	case kind.frames && j.Probability == 0:
		return fmt.Errorf("%s has a probability for each frame, as probability = 0.01", j.What)
	case !kind.frames && j.Probability != 0:
		return fmt.Errorf("%s happens for certain: it has no probability", j.What)
	case kind.most != (j.Most != 0):
		return errors.New("delay and replay, and nothing else, have the longest delay, as most = \"10us\"")
	case j.What == "link-cut" && j.Nodes != nil, j.What != "link-cut" && j.Link != "":
		return errors.New("link-cut, and nothing else, has a link, as link = \"0-4\", and no nodes")
	case kind.instant && j.Until != 0:
		return fmt.Errorf("%s happens at from: it has no until", j.What)
	case !kind.instant && !kind.frames && j.Until == 0:
		return fmt.Errorf("%s has an end, as until = \"5ms\"", j.What)
	case j.Until != 0 && j.Until <= j.From:
		return errors.New("until is not after from")
	}
	return nil
}

// String describes an injection in words.
func (j *Inject) String() string {
	var b strings.Builder
	b.WriteString(injections[j.What].text)
	if j.Probability != 0 {
		fmt.Fprintf(&b, ", one in %.4g", 1/j.Probability)
	}
	nodes, _ := j.Nodes.MarshalText()
	fmt.Fprintf(&b, ", nodes %s, from %v", nodes, j.From)
	if j.Until != 0 {
		fmt.Fprintf(&b, " until %v", j.Until)
	}
	return b.String()
}
