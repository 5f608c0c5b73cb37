package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
)

// changeDomain makes a change of the domain NODE/SLOT, which says describes.
func (a *app) changeDomain(arg string, change func(c *control.Client, node, slot int) (control.Changed, error), says func(control.Changed) string) error {
	id, err := parseID([]string{arg}, "NODE", "SLOT")
	if err == nil && id[1] < 0 {
		err = usagef("%q: want NODE/SLOT in numbers, as `exanetctl domain` shows it", arg)
	}
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	r, err := change(c, id[0], id[1])
	if err != nil {
		return err
	}
	if a.wantJSON() {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.err, "domain %s (pid %d%s\n", arg, r.Domain.PID, says(r))
	return nil
}

func (a *app) grantCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "grant NODE/SLOT PDID",
		Short: "Allow the domain with PDID to access the memory of your domain",
		Long: `grant admits another domain by its PDID: its process may then read and write
the memory of the process in NODE/SLOT, until the other domain ends. Only the
owner of NODE/SLOT, root and the user of pfd may grant.`,
		Example: "  exanetctl domain grant 1/0 0x0009",
		Args:    wantArgs(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			pdid, err := strconv.ParseUint(args[1], 0, 16)
			if err != nil || pdid == 0 {
				return usagef("PDID %q: want 1 to 0xffff, as `exanetctl domain` shows it", args[1])
			}
			return a.changeDomain(args[0], func(c *control.Client, node, slot int) (control.Changed, error) {
				return c.Grant(cmd.Context(), node, slot, uint16(pdid))
			}, func(r control.Changed) string {
				return fmt.Sprintf(", group %s) admits %s", r.Domain.Group, pdids(r.Domain.Peers))
			})
		},
	}
}

func (a *app) kickCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kick NODE/SLOT",
		Short: "Detach a process: its transfers fail, the process continues",
		Long: `kick revokes the domain of a process. The transfers of the process end with
status 10. The process is notified and continues to run. Only the owner of the
domain, root and the user of pfd may kick.`,
		Example: "  exanetctl domain kick 1/0",
		Args:    wantArgs(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeDomain(args[0], func(c *control.Client, node, slot int) (control.Changed, error) {
				return c.Kick(cmd.Context(), node, slot)
			}, func(r control.Changed) string {
				if !r.Ended {
					return ") is ending: accesses are still in flight"
				}
				return ") is ended"
			})
		},
	}
}

func (a *app) monitorCommand() *cobra.Command {
	return &cobra.Command{
		ValidArgsFunction: once(a.nodeWords()),

		Use:   "monitor [NODE]",
		Short: "Show faults as they happen, until interrupted",
		Long: `monitor prints one line for each fault when its outcome is final, until it is
interrupted or pfd ends (exit code 3). It omits faults that come faster than it can print
them and prints their number. Root and the user of pfd see all faults, other users
their own. With -o json each line is an object.`,
		Args: maxArgs(1),
		RunE: a.asking(func(cmd *cobra.Command, c *control.Client, args []string) error {
			id, err := parseID(args, "NODE")
			if err != nil {
				return err
			}
			if a.format == formatCSV {
				return usagef("-o csv: monitor prints lines of text or JSON")
			}
			err = c.MonitorFaults(cmd.Context(), id[0], func(e control.FaultEvent) error { return a.printEvent(&e) })
			if cmd.Context().Err() != nil {
				return nil // interrupted
			}
			return err
		}),
	}
}

// eventLine has the formats of the columns of `fault show`.
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
		fmt.Fprintf(a.err, "%d faults omitted: they come faster than they can be printed\n", e.Lost)
		return nil
	case e.Fault == nil:
		return t.begin()
	}
	return t.print(l.cells(e.Fault))
}
