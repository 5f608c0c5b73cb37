package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/internal/sim/topology"
	"github.com/exanet/pfd/soc/r5"
)

// ErrFile reports a file that describes no scenario. Its text names the file and the line.
var ErrFile = errors.New("scenario")

// MaxFile limits the size of a file, in bytes (defined by this project).
const MaxFile = 1 << 20

// File is a scenario as a file describes it. Keys that are left out have the values that New returns.
type File struct {
	Seed  uint64   `toml:"seed"`
	Limit Duration `toml:"limit"` // simulated time at which every transfer must have ended
	// Cold: the nodes do not know each other at the start, and the first blocks between two are sent
	// twice (messages.md 5).
	Cold     bool       `toml:"cold,omitempty"`
	Topology Topology   `toml:"topology,inline"`
	Costs    Costs      `toml:"costs,inline"`
	Driver   Driver     `toml:"driver,inline"`
	Firmware Firmware   `toml:"firmware,inline"`
	Workload []Workload `toml:"workload,multiline,inline"`
	Inject   []Inject   `toml:"inject,multiline,inline"`

	recordings map[string]*recording // by name, of workloads of kind recording
}

// Topology describes the nodes and their network.
type Topology struct {
	Kind     string   `toml:"kind"`               // full, qfdb, blade or torus
	Nodes    int      `toml:"nodes,omitempty"`    // of full
	Size     []int    `toml:"size,omitempty"`     // of torus: QFDBs in each dimension
	Rate     Rate     `toml:"rate,omitzero"`      // of links between QFDBs
	QFDBRate Rate     `toml:"qfdb-rate,omitzero"` // of those within
	Hop      Duration `toml:"hop,omitzero"`
	Routes   int      `toml:"routes,omitempty"` // of full: blocks take as many routes
}

// Costs are the durations of all work but the network's.
type Costs struct {
	Board     string   `toml:"board"` // papers: the values of sim.Board, or none: all zero
	Firmware  Duration `toml:"firmware,omitzero"`
	Access    Duration `toml:"access,omitzero"`
	Interrupt Duration `toml:"interrupt,omitzero"`
	Call      Duration `toml:"call,omitzero"`
	Page      Duration `toml:"page,omitzero"`
	Request   Duration `toml:"request,omitzero"`
	Touch     Duration `toml:"touch,omitzero"`
}

// Driver describes how the drivers handle page faults.
type Driver struct {
	Policy string `toml:"policy"` // p1, p4, pa or adaptive, or PART's names
}

// Firmware describes the nodes' firmware and hardware.
type Firmware struct {
	Timeout     Duration `toml:"timeout"`
	Guard       Duration `toml:"guard"`
	Outstanding int      `toml:"outstanding"` // blocks in flight of a transfer
	NoTXFIFO    bool     `toml:"no-txfifo,omitempty"`
	Options     string   `toml:"options,omitempty"` // as of pfd --firmware
	IDs         int      `toml:"ids,omitempty"`
	FIFO        int      `toml:"fifo,omitempty"`
	Contexts    int      `toml:"contexts,omitempty"`
	Rate        string   `toml:"rate,omitempty"` // path-feedback, or "": not limited
}

// Workload is a group of transfers. kinds has its kinds.
type Workload struct {
	Kind   string   `toml:"kind"`
	From   Nodes    `toml:"from,omitempty"`
	To     Nodes    `toml:"to,omitempty"`
	Size   Size     `toml:"size"`
	Most   Size     `toml:"most,omitzero"`    // of random: sizes are Size to Most
	Count  int      `toml:"count,omitempty"`  // transfers of each pair, one after the other
	Start  Duration `toml:"start,omitzero"`   // of the first
	Absent float64  `toml:"absent,omitempty"` // part of the destination's pages that are absent
	Gone   float64  `toml:"absent-source,omitempty"`
	Touch  bool     `toml:"touch,omitempty"` // the target touches its pages first
	Read   bool     `toml:"read,omitempty"`
	Urgent bool     `toml:"urgent,omitempty"`
	File   string   `toml:"file,omitempty"` // of kind recording
	// Pages, unless zero, is the seed of the choice of absent pages: shrinking sets it, so that a
	// transfer keeps its pages when others are taken away.
	Pages uint64 `toml:"pages,omitempty"`
}

// Inject is something that goes wrong. injections has its kinds.
type Inject struct {
	What        string   `toml:"what"`
	Probability float64  `toml:"probability,omitempty"`
	From        Duration `toml:"from,omitzero"`
	Until       Duration `toml:"until,omitzero"`
	Nodes       Nodes    `toml:"nodes,omitempty"` // nil: all
	Most        Duration `toml:"most,omitzero"`   // of delay and replay
	Link        string   `toml:"link,omitempty"`  // of link-cut, as "0-4"
}

// New returns what a file may leave out.
func New() *File {
	return &File{
		Seed: 1, Limit: 100e9, Topology: Topology{Kind: "full"}, Costs: Costs{Board: "papers"}, Driver: Driver{Policy: "pa"},
		Firmware: Firmware{Timeout: 25e6, Guard: 1e9, Outstanding: 2},
	}
}

// Parse reads a file's text. Errors match ErrFile.
func Parse(name string, text []byte) (*File, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("%w %s: it has more than %d bytes", ErrFile, name, MaxFile)
	}
	var values map[string]any
	if err := toml.Unmarshal(text, &values); err != nil {
		return nil, atLine(name, err)
	}
	if err := checkKeys(values); err != nil {
		return nil, fmt.Errorf("%w %s%s: %w", ErrFile, name, place(text, err), err)
	}
	f := New()
	if err := toml.Unmarshal(text, f); err != nil {
		return nil, atLine(name, err)
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%w %s%s: %w", ErrFile, name, place(text, err), err)
	}
	return f, nil
}

// atLine adds a file's name, and the line of the parser's error.
func atLine(name string, err error) error {
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		line, _ := bad.Position()
		return fmt.Errorf("%w %s:%d: %s", ErrFile, name, line, strings.TrimPrefix(bad.Error(), "toml: "))
	}
	return fmt.Errorf("%w %s: %w", ErrFile, name, err)
}

// Text returns the file's text, which Parse reads.
func (f *File) Text() ([]byte, error) {
	var b bytes.Buffer
	err := toml.NewEncoder(&b).Encode(f)
	return b.Bytes(), err
}

// fault is an error of a value of a table.
type fault struct {
	table string // of the file, or ""
	key   string // of the file itself, or ""
	index int    // of workload or inject
	err   error
}

func (f *fault) Error() string {
	switch {
	case f.table == "workload" || f.table == "inject":
		return fmt.Sprintf("%s %d: %v", f.table, f.index+1, f.err)
	case f.table != "":
		return fmt.Sprintf("%s: %v", f.table, f.err)
	}
	return f.err.Error()
}

func (f *fault) Unwrap() error { return f.err }

// place returns ":LINE" of a fault's table, as well as the text shows it: a file is short.
func place(text []byte, err error) string {
	var f *fault
	if !errors.As(err, &f) {
		return ""
	}
	if f.table == "" {
		for i, line := range strings.Split(string(text), "\n") {
			if name, _, ok := strings.Cut(line, "="); ok && f.key != "" && strings.TrimSpace(name) == f.key {
				return fmt.Sprintf(":%d", i+1)
			}
		}
		return ""
	}
	marker := map[string]string{"workload": "kind", "inject": "what"}[f.table]
	seen, inside, first := -1, false, ""
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		start := strings.Contains(strings.TrimLeft(line, "[ \t"), f.table) && (strings.Contains(line, "=") || strings.Contains(line, "["))
		if start && first == "" {
			first = fmt.Sprintf(":%d", i+1)
		}
		if marker == "" && start {
			return first
		}
		inside = inside || start
		if section := strings.TrimSpace(line); strings.HasPrefix(section, "[[") && start {
			if seen++; seen >= f.index {
				return fmt.Sprintf(":%d", i+1)
			}
			inside = false
		}
		if inside && marker != "" {
			if seen += strings.Count(line, marker); seen >= f.index {
				return fmt.Sprintf(":%d", i+1)
			}
		}
	}
	return first
}

// check returns the first value that cannot be.
func (f *File) check() error {
	if f.Limit <= 0 {
		return &fault{key: "limit", err: errors.New("limit is the simulated time at which every transfer must have ended: want more than 0s")}
	}
	for i := range f.Workload {
		if w := &f.Workload[i]; w.Start >= f.Limit {
			return &fault{table: "workload", index: i, err: fmt.Errorf("start is %v, and the limit is %v", w.Start, f.Limit)}
		}
	}
	nodes, err := f.nodes()
	if err != nil {
		return &fault{table: "topology", err: err}
	}
	if f.Costs.Board != "papers" && f.Costs.Board != "none" {
		return &fault{table: "costs", err: fmt.Errorf("board %q: want papers or none", f.Costs.Board)}
	}
	if _, err := pagein.ParsePolicy(f.Driver.Policy); err != nil {
		return &fault{table: "driver", err: err}
	}
	if err := f.Firmware.check(); err != nil {
		return &fault{table: "firmware", err: err}
	}
	if len(f.Workload) == 0 {
		return &fault{err: errors.New("no workload: add one, as workload = [{ kind = \"write\", from = 0, to = 1, size = \"64KiB\" }]")}
	}
	for i := range f.Workload {
		if err := f.Workload[i].check(nodes); err != nil {
			return &fault{table: "workload", index: i, err: err}
		}
	}
	for i := range f.Inject {
		err := f.Inject[i].check(nodes)
		if err == nil && f.Inject[i].What == "link-cut" {
			err = f.checkLink(&f.Inject[i])
		}
		if err != nil {
			return &fault{table: "inject", index: i, err: err}
		}
	}
	return nil
}

// checkLink returns an error unless the topology has the link of link-cut.
func (f *File) checkLink(in *Inject) error {
	a, b, err := in.ends()
	if err != nil {
		return err
	}
	net, err := f.Topology.network()
	if err != nil || net == nil {
		return errors.New("link-cut cuts a link of kind qfdb, blade or torus: full has no links by name")
	}
	if !slices.ContainsFunc(net.Links, func(l topology.Link) bool { return l.From == a && l.To == b }) {
		return fmt.Errorf("%s has no link from node %d to node %d", net.Name, a, b)
	}
	return nil
}

// network returns the topology, nil if each node has one link to all.
func (t *Topology) network() (*topology.Network, error) {
	o := topology.Options{Rate: int64(t.Rate), QFDBRate: int64(t.QFDBRate), Hop: int64(t.Hop)}
	if t.Kind != "torus" && t.Size != nil {
		return nil, fmt.Errorf("size is of kind torus, not of %s", t.Kind)
	}
	if t.Kind != "full" && (t.Nodes != 0 || t.Routes != 0) {
		return nil, fmt.Errorf("nodes and routes are of kind full, not of %s", t.Kind)
	}
	switch t.Kind {
	case "full":
		if t.Rate != 0 || t.QFDBRate != 0 || t.Hop != 0 {
			return nil, fmt.Errorf("rate, qfdb-rate and hop are of kinds qfdb, blade and torus: full has %d Gb/s and %d ns", topology.BladeRate/topology.Gbit, topology.HopLatency)
		}
		if t.Nodes < 1 || t.Nodes > topology.MaxNodes || t.Routes < 0 || t.Routes > 8 {
			return nil, fmt.Errorf("%d nodes and %d routes: want 1 to %d nodes and at most 8 routes", t.Nodes, t.Routes, topology.MaxNodes)
		}
		return nil, nil
	case "qfdb":
		return topology.QFDB(o), nil
	case "blade":
		return topology.Blade(o), nil
	case "torus":
		if len(t.Size) != 3 {
			return nil, fmt.Errorf("a torus has a size of three numbers of QFDBs, as [4, 4, 4], not %d", len(t.Size))
		}
		return topology.Torus(t.Size[0], t.Size[1], t.Size[2], o)
	}
	return nil, fmt.Errorf("kind %q: want full, qfdb, blade or torus", t.Kind)
}

// nodes returns the number of nodes.
func (f *File) nodes() (int, error) {
	t := f.Topology
	if t.Kind == "full" && t.Nodes == 0 {
		t.Nodes = f.named()
	}
	n, err := t.network()
	switch {
	case err != nil:
		return 0, err
	case n != nil:
		return n.Nodes, nil
	}
	return t.Nodes, nil
}

// named returns how many nodes the workloads name, at least two.
func (f *File) named() int {
	n := 2
	for i := range f.Workload {
		if r := f.recordings[f.Workload[i].File]; r != nil {
			n = max(n, r.nodes)
		}
		for _, list := range []Nodes{f.Workload[i].From, f.Workload[i].To} {
			if len(list) > 0 {
				n = max(n, slices.Max(list)+1)
			}
		}
	}
	return n
}

// pathFeedback is the value of Firmware.Rate: the rate to each node is limited by path feedback.
const pathFeedback = "path-feedback"

func (w *Firmware) check() error {
	if _, err := r5.ParseOptions(w.Options); err != nil {
		return err
	}
	if w.Rate != "" && w.Rate != pathFeedback {
		return fmt.Errorf("rate %q: want %s, or no rate", w.Rate, pathFeedback)
	}
	for _, c := range []struct {
		name        string
		v, low, top int64
	}{
		{"timeout (in microseconds)", int64(w.Timeout) / 1e3, 1, 1 << 31}, {"guard (in microseconds)", int64(w.Guard) / 1e3, 1, 1 << 31},
		{"outstanding", int64(w.Outstanding), 1, 1024}, {"ids", int64(w.IDs), 0, 1024}, {"fifo", int64(w.FIFO), 0, 512}, {"contexts", int64(w.Contexts), 0, 128},
	} {
		if c.v < c.low || c.v > c.top {
			return fmt.Errorf("%s is %d: want %d to %d", c.name, c.v, c.low, c.top)
		}
	}
	return nil
}

// costs returns the durations of a run.
func (c *Costs) costs() *sim.Costs {
	v := sim.Costs{}
	if c.Board == "papers" {
		v = sim.Board()
	}
	for _, x := range []struct {
		to   *int64
		from Duration
	}{
		{&v.Firmware, c.Firmware}, {&v.Access, c.Access}, {&v.Interrupt, c.Interrupt}, {&v.Call, c.Call},
		{&v.Page, c.Page}, {&v.Request, c.Request}, {&v.Touch, c.Touch},
	} {
		if x.from != 0 {
			*x.to = int64(x.from)
		}
	}
	return &v
}
