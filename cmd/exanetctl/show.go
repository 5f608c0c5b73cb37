package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
)

// object returns the command of an OBJECT whose default COMMAND is show. words are the
// arguments for the usage line, and complete completes them.
func (a *app) object(name, short, words string, columns []string, complete cobra.CompletionFunc, flags func(*cobra.Command), show func(cmd *cobra.Command, args []string) error, more ...*cobra.Command) *cobra.Command {
	args := maxArgs(strings.Count(words, "["))
	shown := a.watched(show)
	show = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && args[0] == "help" {
			return cmd.Help()
		}
		return shown(cmd, args)
	}
	sub := &cobra.Command{Use: "show " + words, Aliases: []string{"list", "ls"}, Short: short, Args: args, RunE: show}
	obj := &cobra.Command{Use: name + " [show] " + words, Short: short, Args: args, RunE: show}
	for _, c := range []*cobra.Command{sub, obj} {
		c.SuggestionsMinimumDistance = 2
		a.watchFlag(c)
		a.tableFlags(c, columns...)
		c.ValidArgsFunction = complete
		if flags != nil {
			flags(c)
		}
	}
	obj.AddCommand(sub)
	obj.AddCommand(more...)
	return obj
}

// wholeWords makes the commands of an object need their whole names: a shorter word is the name of
// what to show, as `exanetctl host a` and `exanetctl counter s`. Cobra takes no abbreviation of two commands.
func wholeWords(object *cobra.Command) *cobra.Command {
	other := &cobra.Command{Use: "-", Hidden: true, Run: func(*cobra.Command, []string) {}}
	for _, c := range object.Commands() {
		other.Aliases = append(append(other.Aliases, c.Name()), c.Aliases...)
	}
	object.AddCommand(other) // behind those that it equals, which Cobra finds first
	return object
}

// path is a parsed ID: NODE, NODE/SLOT or NODE/SLOT/CHANNEL. Missing parts are -1.
type path [3]int

// parseID parses an ID of at most len(parts) numbers. parts are their names.
func parseID(args []string, parts ...string) (path, error) {
	p := path{-1, -1, -1}
	if len(args) == 0 {
		return p, nil
	}
	words := strings.Split(args[0], "/")
	want := strings.Join(parts, "/")
	if len(words) > len(parts) {
		return p, usagef("%q: want %s", args[0], want)
	}
	for i, w := range words {
		n, err := strconv.ParseUint(w, 10, 16)
		if err != nil {
			return p, usagef("%q: want %s in numbers", args[0], want)
		}
		p[i] = int(n)
	}
	return p, nil
}

// match reports whether the numbers, in the order of the ID, are those of p.
func (p path) match(numbers ...int) bool {
	for i, n := range numbers {
		if p[i] >= 0 && p[i] != n {
			return false
		}
	}
	return true
}

func pdids(list []uint16) string {
	words := make([]string, len(list))
	for i, p := range list {
		words[i] = pdid(p)
	}
	return strings.Join(words, ",")
}

func pdid(p uint16) string { return fmt.Sprintf("0x%04x", p) }

func nodeID(n uint32) string { return fmt.Sprintf("0x%06x", n) }

func (a *app) nodeCommand() *cobra.Command {
	var window string
	l := listing[control.Node]{
		name: "node", none: "no node answers: pfd has lost its device and waits for it: restart the server of the device (pfd --device); pfd's log has the reason", short: "Show the nodes: identity, capabilities, settings", id: []string{"NODE"},
		fetch: (*control.Client).Nodes,
		idOf:  func(n *control.Node) []int { return []int{n.Index} },
		json: func(n []control.Node, seesAll bool) any {
			return control.Nodes{Version: control.Version, SeesAll: seesAll, Nodes: n}
		},
		columns: []column[control.Node]{
			{"NODE", 0, func(n *control.Node) any { return n.Index }},
			{"ID", 4, func(n *control.Node) any { return nodeID(n.ID) }},
			{"HW", 9, func(n *control.Node) any { return n.Version }},
			{"ENABLED", 0, func(n *control.Node) any { return n.Enabled }},
			{"VA", 7, func(n *control.Node) any { return n.VABits }},
			{"BANKS", 8, func(n *control.Node) any { return n.Banks }},
			{"FIFO", 6, func(n *control.Node) any { return n.FIFODepth }},
			{"CAPS", 2, func(n *control.Node) any { return n.CapNames }},
			{"TIMEOUT_US", 0, func(n *control.Node) any { return n.TimeoutUS }},
			{"GUARD_US", 0, func(n *control.Node) any { return n.GuardUS }},
			{"OUTSTANDING", 3, func(n *control.Node) any { return n.Outstanding }},
			{"DOMAINS", 0, func(n *control.Node) any { return n.Domains }},
			{"FIRMWARE", 5, func(n *control.Node) any { return n.Firmware }},
		},
	}
	l.flags = func(c *cobra.Command) {
		c.Flags().StringVar(&window, "registers", "", "dump the registers of a window: pl, smmu, btcm, pktz, mbox or all")
		values(c, "registers", windows...)
	}
	c := list(a, &l)
	for _, c := range []*cobra.Command{c, c.Commands()[0]} {
		show := c.RunE
		c.RunE = a.asking(func(cmd *cobra.Command, client *control.Client, args []string) error {
			if window == "" {
				return show(cmd, args)
			}
			return a.showRegisters(cmd.Context(), client, args, window)
		})
	}
	return c
}

// windows are the values of --registers.
var windows = []string{"pl", "smmu", "btcm", "pktz", "mbox", "all"}

func (a *app) showRegisters(ctx context.Context, c *control.Client, args []string, window string) error {
	id, err := parseID(args, "NODE")
	if err != nil {
		return err
	}
	if !slices.Contains(windows, window) {
		return usagef("--registers %s: want %s", window, strings.Join(windows, ", "))
	}
	if window == "all" {
		window = ""
	}
	regs, err := c.Registers(ctx, max(id[0], 0), window)
	if err != nil {
		return err
	}
	if a.wantJSON() {
		return a.printJSON(control.Registers{Version: control.Version, Registers: regs})
	}
	t := a.table("WINDOW", "OFFSET", "WIDTH", "NAME", "VALUE", "SOURCE")
	t.spare = []string{"WIDTH", "WINDOW"}
	for _, r := range regs {
		value := "(not read)" // reading it has a side effect
		if r.Value != nil {
			value = r.Value.String()
		}
		t.add(r.Window, fmt.Sprintf("0x%05x", uint64(r.Offset)), r.Width, r.Name, value, r.Source)
	}
	return t.flush()
}

func (a *app) domainCommand() *cobra.Command {
	type domain = control.Domain
	return list(a, &listing[domain]{
		name: "domain", none: "no process is attached", short: "Show the protection domains, each of one process on one node", id: []string{"NODE", "SLOT"},
		fetch: (*control.Client).Domains,
		idOf:  func(d *domain) []int { return []int{d.Node, d.Slot} },
		json: func(d []domain, seesAll bool) any {
			return control.Domains{Version: control.Version, SeesAll: seesAll, Domains: d}
		},
		columns: []column[domain]{
			{"DOMAIN", 0, func(d *domain) any { return fmt.Sprintf("%d/%d", d.Node, d.Slot) }},
			{"PDID", 1, func(d *domain) any { return pdid(d.PDID) }},
			{"UID", 3, func(d *domain) any { return d.UID }},
			{"PID", 0, func(d *domain) any { return d.PID }},
			{"GROUP", 0, func(d *domain) any { return d.Group }},
			{"METHOD", 2, func(d *domain) any { return d.Method }},
			{"POLICY", 2, func(d *domain) any { return d.Policy }},
			{"STATE", 0, func(d *domain) any { return d.State }},
			{"AGE", 4, func(d *domain) any { return duration(d.AgeNS, time.Second) }},
			{"FAULTS", 0, func(d *domain) any { return d.Faults }},
			{"PAGES_IN", 0, func(d *domain) any { return d.PagesIn }},
			{"FAILED", 0, func(d *domain) any { return d.Failed }},
			{"INVALIDATED", 7, func(d *domain) any { return d.InvalidationPages }},
			{"PINNED", 5, func(d *domain) any { return pinnedCell(d.PinnedBytes) }},
			{"PEERS", 6, func(d *domain) any { return pdids(d.Peers) }},
		},
	}, a.grantCommand(), a.kickCommand(), a.windowCommand())
}

// windowCommand shows the memory windows of domains. -o json has the domains that have some.
func (a *app) windowCommand() *cobra.Command {
	type window struct {
		*control.Domain
		control.MemoryWindow
	}
	return list(a, &listing[window]{
		name: "window", none: "no memory windows", short: "Show the memory windows, each a range of a domain's memory that is open to a peer", id: []string{"NODE", "SLOT"}, mayBeEmpty: true,
		fetch: func(c *control.Client, ctx context.Context, node int) (rows []window, err error) {
			domains, err := c.Domains(ctx, node)
			for i := range domains {
				for _, w := range domains[i].Windows {
					rows = append(rows, window{&domains[i], w})
				}
			}
			return rows, err
		},
		idOf: func(w *window) []int { return []int{w.Node, w.Slot} },
		json: func(rows []window, seesAll bool) any {
			r := control.Domains{Version: control.Version, SeesAll: seesAll, Domains: []control.Domain{}}
			for i := range rows {
				if i == 0 || rows[i].Domain != rows[i-1].Domain {
					r.Domains = append(r.Domains, *rows[i].Domain)
				}
			}
			return r
		},
		columns: []column[window]{
			{"DOMAIN", 0, func(w *window) any { return fmt.Sprintf("%d/%d", w.Node, w.Slot) }},
			{"PID", 1, func(w *window) any { return w.PID }},
			{"GROUP", 2, func(w *window) any { return w.Group }},
			{"ADDRESS", 0, func(w *window) any { return w.Address }},
			{"SIZE", 0, func(w *window) any { return bytesCell(w.SizeBytes) }},
			{"PEER", 0, func(w *window) any {
				if w.Peer == 0 {
					return "any"
				}
				return pdid(w.Peer)
			}},
			{"RIGHTS", 0, func(w *window) any { return strings.Join(w.Rights, "+") }},
		},
	})
}

func (a *app) channelCommand() *cobra.Command {
	type channel = control.Channel
	var all bool
	live := map[[2]int]uint16{} // PDIDs of live domains by node and slot
	return list(a, &listing[channel]{
		name: "channel", none: "no channel is in use", rest: " (--all shows those of ended processes)", all: &all, short: "Show the channels in use and their transfers", id: []string{"NODE", "SLOT", "CHANNEL"},
		flags: func(c *cobra.Command) {
			c.Flags().BoolVar(&all, "all", false, "also show the last transfers of ended processes")
		},
		fetch: func(c *control.Client, ctx context.Context, node int) ([]channel, error) {
			domains, err := c.Domains(ctx, node)
			if err != nil {
				return nil, err
			}
			clear(live)
			for _, d := range domains {
				live[[2]int{d.Node, d.Slot}] = d.PDID
			}
			return c.Channels(ctx, node)
		},
		idOf: func(ch *channel) []int { return []int{ch.Node, ch.Slot, ch.Channel} },
		keep: func(ch *channel, named bool) bool {
			owner, ok := live[[2]int{ch.Node, ch.Slot}]
			return all || named || ok && (ch.PDID == 0 || owner == ch.PDID)
		},
		json: func(ch []channel, seesAll bool) any {
			return control.Channels{Version: control.Version, SeesAll: seesAll, Channels: ch}
		},
		columns: []column[channel]{
			{"CHANNEL", 0, func(ch *channel) any { return fmt.Sprintf("%d/%d/%d", ch.Node, ch.Slot, ch.Channel) }},
			{"PDID", 8, func(ch *channel) any { return pdid(ch.PDID) }},
			{"STATE", 0, func(ch *channel) any { return ch.State }},
			{"STATUS", 3, func(ch *channel) any {
				if ch.StatusText == "" && ch.Status != 0 {
					return strconv.Itoa(int(ch.Status))
				}
				return ch.StatusText
			}},
			{"CLASS", 4, func(ch *channel) any { return ch.Class }},
			{"SRC", 12, func(ch *channel) any { return ch.Src }},
			{"DST", 11, func(ch *channel) any { return ch.Dst }},
			{"SIZE", 0, func(ch *channel) any { return bytesCell(ch.SizeBytes) }},
			{"ISSUED", 5, func(ch *channel) any { return bytesCell(ch.IssuedBytes) }},
			{"TO", 7, func(ch *channel) any { return nodeID(ch.DstNode) + ":" + pdid(ch.DstPDID) }},
			{"BLOCKS", 0, func(ch *channel) any { return ch.Blocks }},
			{"ACKED", 0, func(ch *channel) any { return ch.Acked }},
			{"IN_FLIGHT", 0, func(ch *channel) any { return ch.InFlight }},
			{"WINDOW", 9, func(ch *channel) any { return when(ch.Window != 0, ch.Window) }},
			{"PAUSED", 0, func(ch *channel) any { return ch.Paused }},
			{"RESENT", 2, func(ch *channel) any { return ch.Retransmitted }},
			{"SEQUENCES", 10, func(ch *channel) any {
				return when(ch.Window != 0 && ch.InFlight != 0, fmt.Sprintf("%d-%d", ch.OldestSequence, ch.NewestSequence))
			}},
			{"AGE", 1, func(ch *channel) any { return duration(ch.AgeNS, time.Microsecond) }},
		},
	})
}

func (a *app) transactionCommand() *cobra.Command {
	type transaction = control.Transaction
	return list(a, &listing[transaction]{
		name: "transaction", none: "no block is in flight", short: "Show the transactions in flight, each a block of a transfer", id: []string{"NODE", "TRANSACTION"},
		fetch: (*control.Client).Transactions,
		idOf:  func(x *transaction) []int { return []int{x.Node, int(x.ID)} },
		json: func(x []transaction, seesAll bool) any {
			return control.Transactions{Version: control.Version, SeesAll: seesAll, Transactions: x}
		},
		columns: []column[transaction]{
			{"TRANSACTION", 0, func(x *transaction) any { return fmt.Sprintf("%d/%d", x.Node, x.ID) }},
			{"CHANNEL", 0, func(x *transaction) any { return fmt.Sprintf("%d/%d/%d", x.Node, x.Slot, x.Channel) }},
			{"PDID", 7, func(x *transaction) any { return pdid(x.PDID) }},
			{"TO", 6, func(x *transaction) any { return nodeID(x.DstNode) + ":" + pdid(x.DstPDID) }},
			{"STATE", 0, func(x *transaction) any { return x.State }},
			{"CLASS", 3, func(x *transaction) any { return x.Class }},
			{"SEQUENCE", 2, func(x *transaction) any { return x.Sequence }},
			{"BLOCK", 0, func(x *transaction) any { return x.Block }},
			{"ACKED", 5, func(x *transaction) any { return fmt.Sprintf("%d/%d", x.Acked, x.Blocks) }},
			{"OFFSET", 8, func(x *transaction) any { return bytesCell(uint64(x.OffsetBytes)) }},
			{"LENGTH", 4, func(x *transaction) any { return bytesCell(uint64(x.LengthBytes)) }},
			{"ATTEMPTS", 0, func(x *transaction) any { return x.Attempts }},
			{"RAPFS", 1, func(x *transaction) any { return x.RAPFs }},
			{"LAST_NACK", 1, func(x *transaction) any { return when(x.LastCode != 0, x.LastCode) }},
			{"AGE", 0, func(x *transaction) any { return duration(x.AgeNS, time.Microsecond) }},
			{"DUE", 0, func(x *transaction) any { return duration(x.DueNS, time.Microsecond) }},
		},
	})
}

func (a *app) smmuCommand() *cobra.Command {
	type bank = control.SMMUBank
	var all bool
	return list(a, &listing[bank]{
		name: "smmu", none: "no domain uses a bank", rest: " (--all shows all banks)", all: &all, short: "Show the SMMU's context banks", id: []string{"NODE", "BANK"},
		flags: func(c *cobra.Command) {
			c.Flags().BoolVar(&all, "all", false, "also show banks that no domain uses")
		},
		fetch: (*control.Client).SMMU,
		idOf:  func(b *bank) []int { return []int{b.Node, b.Bank} },
		keep:  func(b *bank, named bool) bool { return all || named || b.PDID != 0 },
		json: func(b []bank, seesAll bool) any {
			return control.SMMU{Version: control.Version, SeesAll: seesAll, Banks: b}
		},
		columns: []column[bank]{
			{"BANK", 0, func(b *bank) any { return fmt.Sprintf("%d/%d", b.Node, b.Bank) }},
			{"PDID", 0, func(b *bank) any { return pdid(b.PDID) }},
			{"STREAM", 2, func(b *bank) any { return when(b.StreamOn, b.Stream) }},
			{"ENABLED", 0, func(b *bank) any { return b.Enabled }},
			{"SCTLR", 3, func(b *bank) any { return b.SCTLR }},
			{"FSR", 0, func(b *bank) any { return b.FSR }},
			{"FLAGS", 0, func(b *bank) any { return b.FSRFlags }},
			{"FAR", 0, func(b *bank) any { return b.FAR }},
			{"WNR", 1, func(b *bank) any { return b.FaultWrite }},
		},
	})
}

func (a *app) fifoCommand() *cobra.Command {
	type fifo = control.FIFO
	return list(a, &listing[fifo]{
		name: "fifo", none: "no FIFO", short: "Show the page-fault FIFOs without removing entries", id: []string{"NODE"},
		fetch: (*control.Client).FIFOs,
		idOf:  func(f *fifo) []int { return []int{f.Node} },
		json: func(f []fifo, seesAll bool) any {
			return control.FIFOs{Version: control.Version, SeesAll: seesAll, FIFOs: f}
		},
		columns: []column[fifo]{
			{"NODE", 0, func(f *fifo) any { return f.Node }},
			{"FIFO", 0, func(f *fifo) any { return f.Name }},
			{"LEVEL", 0, func(f *fifo) any { return f.Level }},
			{"HIGHEST", 0, func(f *fifo) any { return countCell(f.Highest) }},
			{"DEPTH", 0, func(f *fifo) any { return f.Depth }},
			{"OVERFLOW", 0, func(f *fifo) any { return f.Overflow }},
		},
		after: func(fifos []fifo) error {
			if a.columns != nil || a.format == formatCSV || !slices.ContainsFunc(fifos, func(f fifo) bool { return len(f.Entries) > 0 }) {
				return nil
			}
			fmt.Fprintln(a.out)
			t := a.table("NODE", "FIFO", "FROM", "TRANSACTION", "SEQUENCE", "PDID", "PAGE", "REMAINING")
			t.spare = []string{"SEQUENCE", "PDID"}
			for _, f := range fifos {
				for _, e := range f.Entries {
					t.add(f.Node, f.Name, nodeID(e.SourceNode), e.Transaction, e.Sequence, pdid(e.PDID), e.VA, bytesCell(uint64(e.RemainingBytes)))
				}
			}
			return t.flush()
		},
	})
}

func (a *app) counterCommand() *cobra.Command {
	var all, help bool
	columns := []string{"NODE", "COUNTER", "VALUE", "WHAT"}
	flags := func(c *cobra.Command) {
		c.Flags().BoolVar(&all, "all", false, "also show counters that are zero")
		c.Flags().BoolVar(&help, "describe", false, "show a description of each counter")
	}
	show := a.asking(func(cmd *cobra.Command, client *control.Client, args []string) error {
		node, part := control.AllNodes, ""
		for _, arg := range args {
			if n, err := strconv.ParseUint(arg, 10, 16); err == nil {
				node = int(n)
			} else {
				part = strings.ToLower(arg)
			}
		}
		counters, err := client.Counters(cmd.Context(), node)
		if err != nil {
			return err
		}
		none := len(counters) == 0 // this user has none
		counters = slices.DeleteFunc(counters, func(c control.Counter) bool { return !strings.Contains(c.Name, part) })
		scope, err := a.askScope(cmd.Context(), client)
		if err != nil {
			return err
		}
		if a.wantJSON() {
			return a.printJSON(control.Counters{Version: control.Version, SeesAll: scope == "", Counters: counters})
		}
		if len(counters) == 0 && !none {
			return fmt.Errorf("no counter has %q in its name: see `exanetctl counter --all`", part)
		}
		t := a.table(columns[:3]...)
		if help {
			t = a.table(columns...)
		}
		for _, c := range counters {
			if c.Value == 0 && !all && part == "" {
				continue
			}
			where := strconv.Itoa(c.Node)
			if c.Node == control.AllNodes {
				where = "pfd"
			}
			cells := []any{where, c.Name, c.Value}
			if help {
				cells = append(cells, c.Help)
			}
			t.add(cells...)
		}
		switch {
		case none:
			return a.none(t, "no counter", scope)
		case len(t.rows) == 0:
			return a.none(t, "no counter is above 0 (--all shows all)", scope)
		}
		return a.flush(t, scope)
	})
	return wholeWords(a.object("counter", "Show the counters of the nodes and of the daemon", "[NODE] [NAME]", columns, a.counterWords(), flags, show))
}

func (a *app) faultCommand() *cobra.Command {
	var last int
	l := faultListing()
	l.flags = func(c *cobra.Command) {
		c.Flags().IntVarP(&last, "last", "n", control.MaxFaults, "number of faults, the newest ones")
	}
	l.fetch = func(c *control.Client, ctx context.Context, node int) ([]control.Fault, error) {
		if last < 1 || last > control.MaxFaults {
			return nil, usagef("--last %d: want 1 to %d", last, control.MaxFaults)
		}
		return c.Faults(ctx, node, last)
	}
	return list(a, l, a.monitorCommand(), a.stagesCommand())
}

// wallTime returns the time of a fault by this machine's clock; in CSV in ns since 1970.
func wallTime(f *control.Fault) quantity {
	if f.UnixNS == 0 {
		return unmeasured // an older pfd does not send it
	}
	layout := "15:04:05.000"
	if f.AgeNS >= int64(24*time.Hour) {
		layout = "01-02 15:04"
	}
	return quantity{n: float64(f.UnixNS), text: time.Unix(0, f.UnixNS).Format(layout), exact: strconv.FormatInt(f.UnixNS, 10)}
}

// faultListing returns the listing of faults with the time of each stage (docs/tracing.md).
func faultListing() *listing[control.Fault] {
	type fault = control.Fault
	return &listing[fault]{
		name: "fault", none: "no fault is in the log", mayBeEmpty: true, short: "Show the last faults with the time of each stage", id: []string{"NODE"},
		idOf: func(f *fault) []int { return []int{f.Node} },
		json: func(f []fault, seesAll bool) any {
			return control.Faults{Version: control.Version, SeesAll: seesAll, Faults: f}
		},
		columns: []column[fault]{
			{"DOMAIN", 0, func(f *fault) any { return fmt.Sprintf("%d/%d", f.Node, f.Slot) }},
			{"PAGE", 0, func(f *fault) any { return f.Page }},
			{"SIDE", 3, func(f *fault) any {
				if f.Write {
					return "destination"
				}
				return "source"
			}},
			{"METHOD", 4, func(f *fault) any { return f.Method }},
			{"POLICY", 5, func(f *fault) any { return f.Policy }},
			{"KIND", 0, func(f *fault) any { return f.Kind }},
			{"OUTCOME", 0, func(f *fault) any { return f.Outcome }},
			{"TRANSFER", 6, func(f *fault) any { // unknown if only FAR reports the fault
				return when(f.Block, fmt.Sprintf("%s:%d.%d", nodeID(f.SourceNode), f.Transaction, f.Sequence))
			}},
			{"DRAIN_US", 2, func(f *fault) any { return micros(f.Stages.Drain) }},
			{"QUEUE_US", 2, func(f *fault) any { return micros(f.Stages.Queue) }},
			{"PAGE_IN_US", 1, func(f *fault) any { return micros(f.Stages.PageIn) }},
			{"ANSWER_US", 2, func(f *fault) any { return micros(f.Stages.Answer) }},
			{"TOTAL_US", 0, func(f *fault) any { return micros(f.Stages.Total) }},
			{"PID", 0, func(f *fault) any { return countCell(cmp.Or(f.PID, -1)) }},
			{"TIME", 0, func(f *fault) any { return wallTime(f) }},
			{"AGE", 8, func(f *fault) any { return when(f.UnixNS != 0, duration(f.AgeNS, time.Millisecond)) }},
			{"REASON", 7, func(f *fault) any { return f.Reason }},
		},
	}
}

func (a *app) statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the daemon",
		Args:  maxArgs(0),
		RunE: a.watched(a.asking(func(cmd *cobra.Command, c *control.Client, _ []string) error {
			s, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if a.wantJSON() {
				return a.printJSON(s)
			}
			t, faults, scope := a.table("STATUS", s.State), any(s.Faults), scopeOf(&s)
			if scope != "" && s.Domains == 0 {
				faults = unmeasured
			}
			t.add("version", s.DaemonVersion)
			t.add("device", s.Device)
			t.add("socket", s.Socket)
			t.add("attach socket", fmt.Sprintf("%s (protocol %d)", s.AttachSocket, s.Protocol))
			t.add("pid, uid", fmt.Sprintf("%d, %d", s.PID, s.UID))
			t.add("up for", duration(s.UptimeNS, time.Second))
			t.add("nodes", s.Nodes)
			t.add("domains", s.Domains)
			t.add("handshakes", countCell(s.Handshakes))
			t.add("faults", faults)
			t.add("pinned", pinnedCell(s.PinnedBytes))
			t.add("block time-out", duration(int64(s.TimeoutUS)*1e3, time.Microsecond))
			t.add("guard time-out", duration(int64(s.GuardUS)*1e3, time.Microsecond))
			t.add("source faults", s.SourceFaults)
			if scope != "" {
				t.add("scope", scope)
			}
			return t.flush()
		})),
	}
	a.watchFlag(c)
	return c
}
