package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
)

// wantArgs refuses another number of words than n as wrong usage.
func wantArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usagef("something is missing: want `%s`", useLine(cmd))
		}
		return maxArgs(n)(cmd, args)
	}
}

// domainID reads NODE/SLOT, both of them.
func domainID(arg string) (path, error) {
	id, err := parseID([]string{arg}, "NODE", "SLOT")
	if err == nil && id[1] < 0 {
		err = usagef("%q: want NODE/SLOT in numbers, as `exanetctl domain` shows it", arg)
	}
	return id, err
}

func (a *app) grantCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "grant NODE/SLOT PDID",
		Short: "Let the domain with PDID reach the memory of a domain of yours",
		Long: `grant admits another domain by its PDID: its process may then write into and
read from the memory of the process in NODE/SLOT. It lasts as long as that
domain. Only the domain's owner, root and the user of pfd may do it.`,
		Example: "  exanetctl domain grant 1/0 0x0009",
		Args:    wantArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := domainID(args[0])
			if err != nil {
				return err
			}
			pdid, err := strconv.ParseUint(args[1], 0, 16)
			if err != nil || pdid == 0 {
				return usagef("PDID %q: want 1 to 0xffff, as `exanetctl domain` shows it", args[1])
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			r, err := c.Grant(cmd.Context(), id[0], id[1], uint16(pdid))
			if err != nil {
				return err
			}
			if a.wantJSON() {
				return a.printJSON(r)
			}
			fmt.Fprintf(a.err, "domain %s (pid %d, group %s) admits %s\n", args[0], r.Domain.PID, r.Domain.Group, pdids(r.Domain.Peers))
			return nil
		},
	}
}

func (a *app) kickCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kick NODE/SLOT",
		Short: "End the attachment of a process: its transfers end with an error, it lives on",
		Long: `kick takes a process's domain away. Its transfers end with status 10, it is told
so, and it goes on living. Only the domain's owner, root and the user of pfd may
do it.`,
		Example: "  exanetctl domain kick 1/0",
		Args:    wantArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := domainID(args[0])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			r, err := c.Kick(cmd.Context(), id[0], id[1])
			if err != nil {
				return err
			}
			if a.wantJSON() {
				return a.printJSON(r)
			}
			if !r.Ended {
				fmt.Fprintf(a.err, "domain %s (pid %d) is being ended: accesses are still in flight\n", args[0], r.Domain.PID)
				return nil
			}
			fmt.Fprintf(a.err, "domain %s (pid %d) is ended\n", args[0], r.Domain.PID)
			return nil
		},
	}
}

func (a *app) monitorCommand() *cobra.Command {
	return &cobra.Command{
		ValidArgsFunction: once(a.nodeWords()),

		Use:   "monitor [NODE]",
		Short: "Show faults as they happen, until interrupted",
		Long: `monitor prints one line for each fault when its outcome is final, and goes on
until it is interrupted, or pfd ends (exit code 3). Faults that come faster than they can be
printed are counted. Root and the user of pfd see all faults, others their own.
With -o json each line is an object.`,
		Args: maxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID(args, "NODE")
			if err != nil {
				return err
			}
			if a.format == formatCSV {
				return usagef("-o csv: monitor prints lines of text or JSON")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			err = c.MonitorFaults(cmd.Context(), id[0], func(e control.FaultEvent) error { return a.printEvent(&e) })
			if cmd.Context().Err() != nil {
				return nil // interrupted
			}
			return err
		},
	}
}

// eventLine has the columns of `fault show`, wide enough for what stands there.
var eventLine = strings.Fields("%-7v %-18v %-11v %-8v %-6v %-10v %-9v %-18v %8v %8v %10v %9v %8v %7v %-12v %8v %v")

func (a *app) printEvent(e *control.FaultEvent) error {
	if a.wantJSON() {
		if e.Fault == nil && e.Lost == 0 {
			return nil
		}
		return a.printJSON(e)
	}
	l := faultListing()
	t := stream{l.table(a), eventLine}
	switch {
	case e.Lost > 0:
		fmt.Fprintf(a.err, "%d faults left out: they come faster than they are printed\n", e.Lost)
		return nil
	case e.Fault == nil:
		return t.begin()
	}
	return t.print(l.cells(e.Fault))
}
