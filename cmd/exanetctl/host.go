package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
)

// hostListing has the columns of the links to other hosts.
func hostListing() *listing[control.Host] {
	type host = control.Host
	return &listing[host]{
		name: "host",
		columns: []column[host]{
			{"HOST", 0, func(h *host) any { return h.Name }},
			{"NODES", 0, func(h *host) any {
				if h.FirstNode == h.LastNode {
					return h.FirstNode
				}
				return fmt.Sprintf("%d-%d", h.FirstNode, h.LastNode)
			}},
			{"ADDRESS", 7, func(h *host) any { return h.Address }},
			{"STATE", 0, func(h *host) any {
				if h.Draining && !hostWorks(h) {
					return h.State + ", draining"
				}
				return h.State
			}},
			{"FOR", 2, func(h *host) any { return duration(h.SinceNS, time.Millisecond) }},
			{"TRANSPORT", 8, func(h *host) any {
				transport := "TCP"
				if h.TLS {
					transport = "TLS"
				}
				if h.UDP {
					transport += "+UDP"
				}
				return transport
			}},
			{"RTT_US", 3, func(h *host) any {
				if h.RTTNS == 0 {
					return unmeasured
				}
				return micros(h.RTTNS)
			}},
			{"SENT", 4, func(h *host) any { return bytesCell(h.BytesSent) }},
			{"RECEIVED", 4, func(h *host) any { return bytesCell(h.BytesReceived) }},
			{"QUEUED", 6, func(h *host) any { return bytesCell(uint64(h.QueuedHighBytes + h.QueuedBulkBytes)) }},
			{"CONNECTS", 5, func(h *host) any { return h.Connects }},
			{"DROPPED", 5, func(h *host) any { return h.Dropped }},
			{"FORGED", 9, func(h *host) any { return h.Forged }},
			{"BAD", 9, func(h *host) any { return h.Bad }},
			{"ERROR", 1, func(h *host) any { // of a link that works, an old one is in JSON
				return when(h.Error != "" && !hostWorks(h), fmt.Sprintf("%s (%v ago)", h.Error, time.Duration(h.ErrorAgeNS).Round(time.Second)))
			}},
		},
	}
}

// hostWorks reports whether transfers to a host run, or would.
func hostWorks(h *control.Host) bool {
	return slices.Contains([]string{control.HostUp, control.HostIdle, control.HostDraining, control.HostDrained}, h.State)
}

// hostHidden are the columns that pfd shows only to root and its own user.
var hostHidden = []string{"SENT", "RECEIVED", "QUEUED", "CONNECTS", "DROPPED", "FORGED", "BAD", "ERROR"}

// hostCommand shows the links to other hosts. more are its other commands.
func (a *app) hostCommand(more ...*cobra.Command) *cobra.Command {
	l := hostListing()
	show := a.asking(func(cmd *cobra.Command, c *control.Client, args []string) error {
		t := l.table(a)
		if err := t.check(); err != nil {
			return err
		}
		r, err := c.Hosts(cmd.Context())
		if err != nil {
			return err
		}
		if len(args) > 0 {
			r.Hosts = slices.DeleteFunc(r.Hosts, func(h control.Host) bool { return h.Name != args[0] })
			switch {
			case len(r.Hosts) > 0:
			case args[0] == r.Self:
				return fmt.Errorf("%s is this host: `exanetctl host` lists the others", args[0])
			default:
				return fmt.Errorf("no other host %s: `exanetctl host` lists those that there are, or says why there are none", args[0])
			}
		}
		if a.wantJSON() {
			return a.printJSON(r)
		}
		if len(r.Hosts) == 0 {
			switch {
			case r.Refused != "":
				return a.none(t, hostTrouble(&r), "")
			case !r.Hostd:
				return a.none(t, "no other host: exanet-hostd is not connected: start it with a list of hosts (docs/hosts.md)", "")
			}
			return a.none(t, "no other host is in the list of exanet-hostd (docs/hosts.md)", "")
		}
		scope := hostTrouble(&r)
		if !r.SeesAll && scope == "" {
			scope = "only root and the user of pfd see what the links carry, and their errors"
		}
		for i := range r.Hosts {
			cells := l.cells(&r.Hosts[i])
			for k, c := range l.columns {
				if !r.SeesAll && slices.Contains(hostHidden, c.name) {
					cells[k] = unmeasured
				}
			}
			t.add(cells...)
		}
		return a.flush(t, scope)
	})
	more = append(more, a.drainCommand(), a.cutCommand(), a.hostInitCommand(), a.hostAddCommand())
	return wholeWords(a.object("host", "Show the links to other hosts", "[HOST]", l.names(), once(a.hostWords()), nil, show, more...))
}

// hostTrouble says what is wrong with the connection to exanet-hostd; "": nothing.
func hostTrouble(r *control.Hosts) string {
	switch {
	case r.Refused != "":
		return "pfd refuses the list of hosts: " + r.Refused
	case !r.Hostd:
		return "exanet-hostd is not connected: the links stay, and none is made anew"
	}
	return certificateTrouble(r)
}

// certificateWarning is for how long before its end a certificate is warned of, as the alert does. Defined
// by this project.
const certificateWarning = 30 * 24 * time.Hour

// certificateTrouble says that a certificate ends soon; "": none does.
func certificateTrouble(r *control.Hosts) string {
	left := time.Duration(r.CertificateLeftNS)
	if r.Certificate == "" || left > certificateWarning {
		return ""
	}
	when := "has ended"
	if left > 0 {
		when = fmt.Sprintf("ends in %d days", left/(24*time.Hour))
	}
	return fmt.Sprintf("the certificate %s %s, and the links with it: make a new one (docs/hosts.md, Certificates)", r.Certificate, when)
}

// hostWords completes the name of another host.
func (a *app) hostWords() cobra.CompletionFunc {
	return a.answerWords(func(ctx context.Context, c *control.Client) (list []string, _ error) {
		r, err := c.Hosts(ctx)
		for _, h := range r.Hosts {
			list = append(list, h.Name)
		}
		return list, err
	})
}

// changeHost makes a change of the link to a host, which says describes.
func (a *app) changeHost(change func(c *control.Client) (control.Hosts, error), says func(*control.Host) string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	r, err := change(c)
	if err != nil {
		return err
	}
	if a.wantJSON() {
		return a.printJSON(r)
	}
	for i := range r.Hosts {
		fmt.Fprintf(a.err, "host %s %s\n", r.Hosts[i].Name, says(&r.Hosts[i]))
	}
	return nil
}

func (a *app) drainCommand() *cobra.Command {
	undo := false
	c := &cobra.Command{
		Use:   "drain HOST",
		Short: "Let no new transfers to a host begin",
		Long: `drain lets the transfers to a host that are under way finish and refuses new
ones with status 10, until --undo. exanetctl host shows the host as drained when
none is under way. Only root and the user of pfd may drain a host.`,
		Example:           "  exanetctl host drain b\n  exanetctl host drain b --undo",
		Args:              wantArgs(1, 1),
		ValidArgsFunction: once(a.hostWords()),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeHost(func(c *control.Client) (control.Hosts, error) {
				return c.DrainHost(cmd.Context(), args[0], !undo)
			}, func(h *control.Host) string {
				if h.Draining && !hostWorks(h) {
					return "is " + h.State + ", and gets no new transfers"
				}
				return "is " + h.State
			})
		},
	}
	c.Flags().BoolVar(&undo, "undo", false, "let transfers begin again")
	return c
}

func (a *app) cutCommand() *cobra.Command {
	d := time.Second
	c := &cobra.Command{
		Use:   "cut HOST",
		Short: "Cut the link to a host for some time, for tests",
		Long: `cut ends the connections to a host and makes none for the time of --for.
Transfers wait meanwhile, and no byte is lost. Afterwards the link comes up, also
one that was idle. Only root and the user of pfd may
cut a link.`,
		Example:           "  exanetctl host cut b --for 1s",
		Args:              wantArgs(1, 1),
		ValidArgsFunction: once(a.hostWords()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if d < time.Millisecond || d > control.MaxCut {
				return usagef("--for %v: want 1ms to %v", d, strings.TrimSuffix(control.MaxCut.String(), "0m0s"))
			}
			return a.changeHost(func(c *control.Client) (control.Hosts, error) {
				return c.CutHost(cmd.Context(), args[0], d)
			}, func(*control.Host) string { return fmt.Sprintf("is cut off for %v", d) })
		},
	}
	c.Flags().DurationVar(&d, "for", d, "time for which no connection is made")
	return c
}
