package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/link/hosts"
)

func (a *app) hostInitCommand() *cobra.Command {
	cluster := ""
	c := &cobra.Command{
		Use:   "init DIR HOST=ADDRESS[,nodes=N]...",
		Short: "Make the list of hosts and the certificates of a new cluster",
		Long: `init makes in DIR what the machines of a cluster need: hosts.toml, which lists
them, a certificate authority, the groups whose processes are on several hosts
(your default group), and for each HOST a certificate, its key, and the lines of
its pfd.toml. ADDRESS is a name or a number, with or without :PORT; a
host has one node without nodes=N. init prints which files to copy where, and
what to run there. It overwrites nothing. It does not need pfd.

DIR/ca.key makes certificates for any host: keep it secret, and on no host.`,
		Example: `  exanetctl host init lab --cluster lab a=192.0.2.1 b=192.0.2.2,nodes=4
  exanetctl host add lab c=192.0.2.3`,
		Args: wantArgs(2, 1+maxHosts),
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := newHosts(args[1:])
			if err != nil {
				return err
			}
			if strings.Contains(args[0], "=") {
				return usagef("%q is a host, and the directory is missing: want it first, as exanetctl host init lab %[1]s", args[0])
			}
			if cluster == "" {
				cluster = filepath.Base(filepath.Clean(args[0]))
			}
			ready, err := hosts.Init(args[0], cluster, list, time.Now())
			if err != nil {
				return hostError(err)
			}
			if a.wantJSON() {
				return a.printJSON(hostsMade(ready))
			}
			fmt.Fprintf(a.out, "%s has the files of cluster %s. Keep %s secret, and here: it makes certificates.\n", args[0], cluster, filepath.Join(args[0], "ca.key"))
			fmt.Fprintf(a.out, "Only uid %d writes to other hosts so far: before you copy %s, add a line to it for each user who does (docs/hosts.md).\n", os.Getuid(), filepath.Join(args[0], "groups"))
			for i := range ready {
				a.sayHost(&ready[i])
			}
			return nil
		},
	}
	c.Flags().StringVar(&cluster, "cluster", "", "name of the cluster (default the name of DIR)")
	return c
}

func (a *app) hostAddCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "add DIR HOST=ADDRESS[,nodes=N]",
		Short: "Add a host to a cluster, or renew its certificate",
		Long: `add adds one host to the files that exanetctl host init has made in DIR. All
other hosts keep their numbers; hosts.toml must be copied to them. It overwrites
no other file. A HOST that is in the list already, with the same ADDRESS, gets a
new certificate if DIR/HOST.pem and DIR/HOST.key are gone; then only the files
to renew are named.`,
		Example: "  exanetctl host add lab c=192.0.2.3",
		Args:    wantArgs(2, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := newHosts(args[1:])
			if err != nil {
				return err
			}
			ready, err := hosts.Add(args[0], list[0], time.Now())
			if err != nil {
				return hostError(err)
			}
			if a.wantJSON() {
				return a.printJSON(hostsMade([]hosts.Ready{*ready}))
			}
			a.sayHost(ready)
			f, err := hosts.Read(ready.Files[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, "\nOn all other hosts the list must be the same:")
			for _, h := range f.Hosts {
				if h.Name != ready.Name {
					to := at(h.Address)
					fmt.Fprintf(a.out, "  scp %s %s:/etc/exanet/ && ssh %s systemctl reload exanet-hostd\n", ready.Files[0], bracketed(to), to)
				}
			}
			return nil
		},
	}
}

// maxHosts bounds the arguments of host init; the list itself has the same bound.
const maxHosts = 256

// newHosts parses HOST=ADDRESS[,nodes=N]....
func newHosts(args []string) (list []hosts.New, err error) {
	for _, arg := range args {
		name, rest, ok := strings.Cut(arg, "=")
		address, option, more := strings.Cut(rest, ",")
		n := hosts.New{Name: name, Address: address}
		if more {
			count, isNodes := strings.CutPrefix(option, "nodes=")
			n.Nodes, err = strconv.Atoi(count)
			ok = ok && isNodes && err == nil && n.Nodes > 0
		}
		if !ok || name == "" || address == "" {
			return nil, usagef("%q: want HOST=ADDRESS or HOST=ADDRESS,nodes=N, as a=192.0.2.1,nodes=4", arg)
		}
		list = append(list, n)
	}
	return list, nil
}

// hostError makes a wrong list an error of usage.
func hostError(err error) error {
	if errors.Is(err, hosts.ErrFile) && !errors.Is(err, os.ErrNotExist) {
		return &usageError{err}
	}
	return err
}

// hostMade is a host whose files were made, as JSON.
type hostMade struct {
	Name    string   `json:"name"`
	Address string   `json:"address"`
	Nodes   string   `json:"nodes"`
	PDIDs   string   `json:"pdids"`
	Files   []string `json:"files"`
}

func hostsMade(ready []hosts.Ready) (list []hostMade) {
	for _, r := range ready {
		list = append(list, hostMade{r.Name, r.Address, r.Nodes, r.PDIDs, r.Files})
	}
	return list
}

// sayHost prints which files a host needs, and what to run there.
func (a *app) sayHost(r *hosts.Ready) {
	to := at(r.Address)
	fmt.Fprintf(a.out, "\nHost %s: address %s, nodes %s, PDIDs %s.\n", r.Name, r.Address, r.Nodes, r.PDIDs)
	fmt.Fprintf(a.out, "  scp %s %s:/etc/exanet/\n", strings.Join(r.Files, " "), bracketed(to))
	if r.Renewed {
		fmt.Fprintf(a.out, "  ssh %s 'chown exanet-host /etc/exanet/%s && systemctl reload-or-restart exanet-hostd'\n", to, filepath.Base(r.Files[2]))
		return
	}
	// The keys of an earlier part are removed: pfd takes no key twice.
	fmt.Fprintf(a.out, `  ssh %s 'cd /etc/exanet && touch pfd.toml && sed -i -E "/^(nodes|node-base|pdid-range|groups) *=/d" pfd.toml && cat %s.pfd.toml >>pfd.toml && chown exanet-host %s && echo HOSTD_OPTIONS=--name=%s >>/etc/default/exanet-hostd && systemctl restart pfd && systemctl enable exanet-hostd && systemctl restart exanet-hostd'
`, to, r.Name, filepath.Base(r.Files[3]), r.Name)
}

// at returns root at the host of an address, as ssh names it.
func at(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return "root@" + host
}

// bracketed returns the same as scp names it.
func bracketed(to string) string {
	if user, host, _ := strings.Cut(to, "@"); strings.Contains(host, ":") {
		return user + "@[" + host + "]"
	}
	return to
}
