package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
)

// object makes an OBJECT whose default COMMAND is show.
func (a *app) object(name, short, id string, flags func(*cobra.Command), show func(cmd *cobra.Command, args []string) error, more ...*cobra.Command) *cobra.Command {
	args := maxArgs(0)
	if id != "" {
		args = maxArgs(1)
		id = " [" + id + "]"
	}
	show = a.watched(show)
	sub := &cobra.Command{Use: "show" + id, Short: short, Args: args, RunE: show}
	obj := &cobra.Command{Use: name + " [show]" + id, Short: short, Args: args, RunE: show}
	for _, c := range []*cobra.Command{sub, obj} {
		a.watchFlag(c)
		if flags != nil {
			flags(c)
		}
	}
	obj.AddCommand(sub)
	obj.AddCommand(more...)
	return obj
}

// path is a parsed ID: NODE, NODE/SLOT or NODE/SLOT/CHANNEL. Parts that were
// not given are -1.
type path [3]int

// parseID reads an ID of at most len(parts) numbers, which the parts name.
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

// match tells whether the numbers, in the order of the ID, are those asked for.
func (p path) match(numbers ...int) bool {
	for i, n := range numbers {
		if p[i] >= 0 && p[i] != n {
			return false
		}
	}
	return true
}

// filter keeps what match says.
func filter[T any](list []T, match func(T) bool) []T {
	kept := make([]T, 0, len(list))
	for _, v := range list {
		if match(v) {
			kept = append(kept, v)
		}
	}
	return kept
}

// missing is the error for an ID that names nothing.
func missing[T any](list []T, args []string, kind string) error {
	if len(list) == 0 && len(args) > 0 {
		return fmt.Errorf("no %s %s: see `exanetctl %s`", kind, args[0], kind)
	}
	return nil
}

func (a *app) nodeCommand() *cobra.Command {
	var window string
	flags := func(c *cobra.Command) {
		c.Flags().StringVar(&window, "registers", "", "dump the registers of a window: pl, smmu, btcm, pktz, mbox or all")
	}
	return a.object("node", "Show the nodes: identity, capabilities, settings", "NODE", flags, func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args, "NODE")
		if err != nil {
			return err
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		if window != "" {
			return a.showRegisters(cmd, c, id[0], window)
		}
		nodes, err := c.Nodes(cmd.Context(), id[0])
		if err != nil {
			return err
		}
		if a.wantJSON() {
			return a.printJSON(control.Nodes{Version: control.Version, Nodes: nodes})
		}
		t := a.table("NODE", "ID", "HW", "ENABLED", "VA", "BANKS", "FIFO", "CAPS", "TIMEOUT_US", "GUARD_US", "OUTSTANDING", "DOMAINS", "FIRMWARE")
		for _, n := range nodes {
			t.add(n.Index, fmt.Sprintf("0x%06x", n.ID), n.Version, n.Enabled, n.VABits, n.Banks, n.FIFODepth, n.CapNames, n.TimeoutUS, n.GuardUS, n.Outstanding, n.Domains, n.Firmware)
		}
		return t.flush()
	})
}

func (a *app) showRegisters(cmd *cobra.Command, c *control.Client, node int, window string) error {
	if window == "all" {
		window = ""
	}
	if node < 0 {
		node = 0
	}
	regs, err := c.Registers(cmd.Context(), node, window)
	if err != nil {
		return err
	}
	if a.wantJSON() {
		return a.printJSON(control.Registers{Version: control.Version, Registers: regs})
	}
	t := a.table("WINDOW", "OFFSET", "WIDTH", "NAME", "VALUE", "SOURCE")
	for _, r := range regs {
		value := r.Value.String()
		if r.Skipped {
			value = "(reading it has an effect)"
		}
		t.add(r.Window, fmt.Sprintf("0x%05x", uint64(r.Offset)), r.Width, r.Name, value, r.Source)
	}
	return t.flush()
}

func (a *app) domainCommand() *cobra.Command {
	return a.object("domain", "Show the protection domains: one process on one node each", "NODE/SLOT", nil, func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args, "NODE", "SLOT")
		if err != nil {
			return err
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		domains, err := c.Domains(cmd.Context(), id[0])
		if err != nil {
			return err
		}
		domains = filter(domains, func(d control.Domain) bool { return id.match(d.Node, d.Slot) })
		if a.wantJSON() {
			return a.printJSON(control.Domains{Version: control.Version, Domains: domains})
		}
		if err := missing(domains, args, "domain"); err != nil {
			return err
		}
		t := a.table("DOMAIN", "PDID", "UID", "PID", "GROUP", "METHOD", "POLICY", "STATE", "AGE", "FAULTS", "PAGES_IN", "FAILED", "PINNED", "PEERS")
		for _, d := range domains {
			t.add(fmt.Sprintf("%d/%d", d.Node, d.Slot), fmt.Sprintf("0x%04x", d.PDID), d.UID, d.PID, d.Group, d.Method, d.Policy, d.State, ageText(d.AgeNS), d.Faults, d.PagesIn, d.Failed, d.PinnedBytes, pdids(d.Peers))
		}
		return t.flush()
	}, a.grantCommand(), a.kickCommand())
}

func pdids(list []uint16) string {
	words := make([]string, len(list))
	for i, p := range list {
		words[i] = fmt.Sprintf("0x%04x", p)
	}
	return strings.Join(words, ",")
}

func (a *app) channelCommand() *cobra.Command {
	return a.object("channel", "Show the channels in use and their transfers", "NODE/SLOT/CHANNEL", nil, func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args, "NODE", "SLOT", "CHANNEL")
		if err != nil {
			return err
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		channels, err := c.Channels(cmd.Context(), id[0])
		if err != nil {
			return err
		}
		channels = filter(channels, func(ch control.Channel) bool { return id.match(ch.Node, ch.Slot, ch.Channel) })
		if a.wantJSON() {
			return a.printJSON(control.Channels{Version: control.Version, Channels: channels})
		}
		if err := missing(channels, args, "channel"); err != nil {
			return err
		}
		t := a.table("CHANNEL", "PDID", "STATE", "STATUS", "CLASS", "SRC", "DST", "SIZE", "ISSUED", "TO", "BLOCKS", "ACKED", "IN_FLIGHT", "WINDOW", "PAUSED", "RESENT", "SEQUENCES", "AGE")
		for _, ch := range channels {
			status := ch.StatusText
			if status == "" && ch.Status != 0 {
				status = strconv.Itoa(int(ch.Status))
			}
			window, sequences, age := "", "", ""
			if ch.Window > 0 {
				window = strconv.Itoa(ch.Window)
			}
			if ch.Window > 0 && ch.InFlight > 0 {
				sequences = fmt.Sprintf("%d-%d", ch.OldestSequence, ch.NewestSequence)
			}
			if ch.AgeNS >= 0 {
				age = time.Duration(ch.AgeNS).Round(time.Microsecond).String()
			}
			t.add(fmt.Sprintf("%d/%d/%d", ch.Node, ch.Slot, ch.Channel), fmt.Sprintf("0x%04x", ch.PDID), ch.State, status, ch.Class, ch.Src, ch.Dst, bytesText(ch.SizeBytes), bytesText(ch.IssuedBytes), fmt.Sprintf("0x%06x:0x%04x", ch.DstNode, ch.DstPDID), ch.Blocks, ch.Acked, ch.InFlight, window, ch.Paused, ch.Retransmitted, sequences, age)
		}
		return t.flush()
	})
}

func (a *app) transactionCommand() *cobra.Command {
	return a.object("transaction", "Show the transactions in flight: one block of a transfer each", "NODE/TRANSACTION", nil, func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args, "NODE", "TRANSACTION")
		if err != nil {
			return err
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		list, err := c.Transactions(cmd.Context(), id[0])
		if err != nil {
			return err
		}
		list = filter(list, func(t control.Transaction) bool { return id.match(t.Node, int(t.ID)) })
		if a.wantJSON() {
			return a.printJSON(control.Transactions{Version: control.Version, Transactions: list})
		}
		if err := missing(list, args, "transaction"); err != nil {
			return err
		}
		t := a.table("TRANSACTION", "CHANNEL", "PDID", "TO", "STATE", "CLASS", "SEQUENCE", "BLOCK", "ACKED", "OFFSET", "LENGTH", "ATTEMPTS", "RAPFS", "LAST_NACK", "AGE", "DUE")
		for _, x := range list {
			due, nack := "", ""
			if x.DueNS >= 0 {
				due = time.Duration(x.DueNS).Round(time.Microsecond).String()
			}
			if x.LastCode != 0 {
				nack = strconv.Itoa(int(x.LastCode))
			}
			t.add(fmt.Sprintf("%d/%d", x.Node, x.ID), fmt.Sprintf("%d/%d/%d", x.Node, x.Slot, x.Channel), fmt.Sprintf("0x%04x", x.PDID), fmt.Sprintf("0x%06x:0x%04x", x.DstNode, x.DstPDID), x.State, x.Class, x.Sequence, x.Block, fmt.Sprintf("%d/%d", x.Acked, x.Blocks), bytesText(uint64(x.OffsetBytes)), bytesText(uint64(x.LengthBytes)), x.Attempts, x.RAPFs, nack, time.Duration(x.AgeNS).Round(time.Microsecond), due)
		}
		return t.flush()
	})
}

func (a *app) smmuCommand() *cobra.Command {
	var all bool
	flags := func(c *cobra.Command) {
		c.Flags().BoolVar(&all, "all", false, "show banks that no domain uses too")
	}
	return a.object("smmu", "Show the SMMU's context banks", "NODE/BANK", flags, func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args, "NODE", "BANK")
		if err != nil {
			return err
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		banks, err := c.SMMU(cmd.Context(), id[0])
		if err != nil {
			return err
		}
		banks = filter(banks, func(b control.SMMUBank) bool {
			return id.match(b.Node, b.Bank) && (all || id[1] >= 0 || b.Enabled || b.PDID != 0 || b.FSR != 0)
		})
		if a.wantJSON() {
			return a.printJSON(control.SMMU{Version: control.Version, Banks: banks})
		}
		if id[1] >= 0 {
			if err := missing(banks, args, "smmu"); err != nil {
				return err
			}
		}
		t := a.table("BANK", "PDID", "STREAM", "ENABLED", "SCTLR", "FSR", "FLAGS", "FAR", "WNR")
		for _, b := range banks {
			stream := b.Stream
			if !b.StreamOn {
				stream = ""
			}
			t.add(fmt.Sprintf("%d/%d", b.Node, b.Bank), fmt.Sprintf("0x%04x", b.PDID), stream, b.Enabled, b.SCTLR, b.FSR, b.FSRFlags, b.FAR, b.FaultWrite)
		}
		return t.flush()
	})
}

func (a *app) fifoCommand() *cobra.Command {
	return a.object("fifo", "Show the page-fault FIFOs without taking anything out", "NODE", nil, func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args, "NODE")
		if err != nil {
			return err
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		fifos, err := c.FIFOs(cmd.Context(), id[0])
		if err != nil {
			return err
		}
		if a.wantJSON() {
			return a.printJSON(control.FIFOs{Version: control.Version, FIFOs: fifos})
		}
		t := a.table("NODE", "FIFO", "LEVEL", "DEPTH", "OVERFLOW")
		entries := 0
		for _, f := range fifos {
			t.add(f.Node, f.Name, f.Level, f.Depth, f.Overflow)
			entries += len(f.Entries)
		}
		if err := t.flush(); err != nil || entries == 0 {
			return err
		}
		fmt.Fprintln(a.out)
		t = a.table("NODE", "FIFO", "FROM", "TRANSACTION", "SEQUENCE", "PDID", "PAGE", "REMAINING")
		for _, f := range fifos {
			for _, e := range f.Entries {
				t.add(f.Node, f.Name, fmt.Sprintf("0x%06x", e.SourceNode), e.Transaction, e.Sequence, fmt.Sprintf("0x%04x", e.PDID), e.VA, bytesText(uint64(e.RemainingBytes)))
			}
		}
		return t.flush()
	})
}

func (a *app) counterCommand() *cobra.Command {
	var all, help bool
	flags := func(c *cobra.Command) {
		c.Flags().BoolVar(&all, "all", false, "show counters that are zero too")
		c.Flags().BoolVar(&help, "describe", false, "say what each counter counts")
	}
	return a.object("counter", "Show the counters of the nodes and of the daemon", "NODE or part of a name", flags, func(cmd *cobra.Command, args []string) error {
		node, part := control.AllNodes, ""
		if len(args) > 0 {
			if n, err := strconv.ParseUint(args[0], 10, 16); err == nil {
				node = int(n)
			} else {
				part = args[0]
			}
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		counters, err := c.Counters(cmd.Context(), node)
		if err != nil {
			return err
		}
		counters = filter(counters, func(c control.Counter) bool { return strings.Contains(c.Name, part) })
		if a.wantJSON() {
			return a.printJSON(control.Counters{Version: control.Version, Counters: counters})
		}
		if err := missing(counters, args, "counter"); err != nil {
			return err
		}
		columns := []string{"NODE", "COUNTER", "VALUE"}
		if help {
			columns = append(columns, "WHAT")
		}
		t := a.table(columns...)
		for _, c := range counters {
			if c.Value == 0 && !all && part == "" {
				continue
			}
			where := strconv.Itoa(c.Node)
			if c.Node == control.AllNodes {
				where = "pfd"
			}
			if help {
				t.add(where, c.Name, c.Value, c.Help)
			} else {
				t.add(where, c.Name, c.Value)
			}
		}
		return t.flush()
	})
}

func (a *app) faultCommand() *cobra.Command {
	var last int
	flags := func(c *cobra.Command) {
		c.Flags().IntVarP(&last, "last", "n", control.MaxFaults, "how many faults, the newest ones")
	}
	return a.object("fault", "Show the last faults with the time of each stage", "NODE", flags, func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args, "NODE")
		if err != nil {
			return err
		}
		if last < 1 || last > control.MaxFaults {
			return usagef("--last %d: want 1 to %d", last, control.MaxFaults)
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		faults, err := c.Faults(cmd.Context(), id[0], last)
		if err != nil {
			return err
		}
		if a.wantJSON() {
			return a.printJSON(control.Faults{Version: control.Version, Faults: faults})
		}
		t := a.table(faultColumns()...)
		for _, f := range faults {
			t.add(faultCells(&f)...)
		}
		return t.flush()
	}, a.monitorCommand())
}

func faultColumns() []string {
	return []string{"DOMAIN", "PAGE", "SIDE", "METHOD", "POLICY", "KIND", "OUTCOME", "TRANSFER", "DRAINED_US", "PAGE-IN_US", "RESIDENT_US", "RAPF_US", "REASON"}
}

func faultCells(f *control.Fault) []any {
	side := "source"
	if f.Write {
		side = "destination"
	}
	transfer := "" // told by FAR alone
	if f.Block {
		transfer = fmt.Sprintf("0x%06x:%d.%d", f.SourceNode, f.Transaction, f.Sequence)
	}
	return []any{
		fmt.Sprintf("%d/%d", f.Node, f.Slot), f.Page, side, f.Method, f.Policy, f.Kind, f.Outcome, transfer,
		micros(f.DrainedNS), micros(f.StartedNS), micros(f.ResidentNS), micros(f.RAPFNS), f.Reason,
	}
}

func (a *app) statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the daemon as a whole",
		Args:  maxArgs(0),
		RunE: a.watched(func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			s, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if a.wantJSON() {
				return a.printJSON(s)
			}
			t := a.table("STATUS", s.State)
			for _, row := range []struct {
				name  string
				value any
			}{
				{"version", s.DaemonVersion},
				{"device", s.Device},
				{"socket", s.Socket},
				{"attach socket", fmt.Sprintf("%s (protocol %d)", s.AttachSocket, s.Protocol)},
				{"pid, uid", fmt.Sprintf("%d, %d", s.PID, s.UID)},
				{"up for", ageText(s.UptimeNS)},
				{"nodes", s.Nodes},
				{"domains", s.Domains},
				{"handshakes", s.Handshakes},
				{"faults", s.Faults},
				{"pinned", fmt.Sprintf("%d bytes", s.PinnedBytes)},
				{"block time-out", fmt.Sprintf("%d us", s.TimeoutUS)},
				{"guard time-out", fmt.Sprintf("%d us", s.GuardUS)},
				{"source faults", s.SourceFaults},
			} {
				t.add(row.name, row.value)
			}
			return t.flush()
		}),
	}
	a.watchFlag(c)
	return c
}
