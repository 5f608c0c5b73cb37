package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/dht/resp"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/rdma"
)

// dhtFlags are the flags of the commands of tables.
type dhtFlags struct {
	tree  string // file of the tree's token
	node  int    // that this process attaches to
	nodes []int  // of a new table
	keys  float64
	dense bool
}

func (f *dhtFlags) add(a *app, c *cobra.Command, makes bool) {
	c.Flags().StringVar(&f.tree, "tree", "", "file with the token of the table's tree")
	nodeFlag(c.Flags(), &f.node, "node", "the first", "node that this process attaches to")
	completeFlag(c, "node", a.nodeWords())
	if makes {
		c.Flags().IntSliceVar(&f.nodes, "nodes", nil, "nodes that the table is spread over (default that of --node)")
		c.Flags().Float64Var(&f.keys, "keys", 1e5, "number of keys that the table is made for, such as 1e6")
		c.Flags().BoolVar(&f.dense, "dense", false, "use a quarter of the memory, and two reads for a get")
	}
}

func (f *dhtFlags) options() (dht.Options, error) {
	o := dht.Options{Dense: f.dense}
	if !(f.keys >= 1 && f.keys <= 1<<40) {
		return o, usagef("--keys %v: want a number from 1 to %d", f.keys, uint64(1)<<40)
	}
	o.Keys = uint64(f.keys)
	for _, n := range f.nodes {
		if n < 0 || n > atomics.MaxNode {
			return o, usagef("--nodes %d: want numbers of nodes, as `exanetctl node` shows them", n)
		}
		o.Nodes = append(o.Nodes, device.NodeID(n))
	}
	return o, nil
}

func (a *app) dhtCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "dht",
		Short: "Make and use hash tables in the global address space",
		Long: `dht makes and uses hash tables whose memory is spread over the nodes of a running pfd
(docs/dht.md). A table belongs to a protection tree and lives as long as the tree. create
and serve make a tree, write its token to the file of --tree, and keep it until they end;
the other commands join the tree by the file.`,
		RunE: orHelp,
		Args: cobra.ArbitraryArgs,
	}
	c.AddCommand(a.dhtCreateCommand(), a.dhtShowCommand(), a.dhtGetCommand(), a.dhtPutCommand(), a.dhtDeleteCommand(),
		a.dhtServeCommand(), a.dhtBenchCommand())
	return c
}

// threads attaches to pfd and calls use with threads of a tree: of the one whose token is in the file of
// --tree, or of a new one. The context of use ends with the attachment, too.
func (a *app) threads(ctx context.Context, f *dhtFlags, n int, fresh bool, use func(context.Context, []*gsas.Thread) error) (err error) {
	var token gsas.Token
	if !fresh {
		if f.tree == "" {
			return usagef("which tree? Give --tree FILE, the file that `exanetctl dht create` wrote")
		}
		text, err := os.ReadFile(f.tree)
		if err != nil {
			return fmt.Errorf("--tree: %w", err)
		}
		if token, err = gsas.ParseToken(strings.TrimSpace(string(text))); err != nil {
			return usagef("--tree %s: %w", f.tree, err)
		}
	}
	d, err := a.client()
	if err != nil {
		return err
	}
	if _, err := d.Status(ctx); err != nil {
		return err
	}
	node := workload.Options{From: f.node}
	if err := node.SetNodes(ctx, d, nil); err != nil {
		return err
	}
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: d.Socket(), Node: device.NodeID(node.From), Trust: a.trusted(), Threads: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	var threads []*gsas.Thread
	for range n {
		var t *gsas.Thread
		if token == (gsas.Token{}) {
			t, err = gsas.NewThread(ep)
		} else {
			t, err = gsas.Join(ep, token)
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Close()) }()
		token = t.Token()
		threads = append(threads, t)
	}
	attached, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { end(ep.Await(attached, func() bool { return false })) })
	err = use(attached, threads)
	end(nil)
	watch.Wait()
	if cause := context.Cause(attached); err == nil && ctx.Err() == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// withTable calls f with a handle of the table that the tree of --tree has.
func (a *app) withTable(cmd *cobra.Command, f *dhtFlags, name string, use func(context.Context, *dht.Table) error) error {
	ctx := cmd.Context()
	return a.threads(ctx, f, 1, false, func(ctx context.Context, threads []*gsas.Thread) error {
		t, err := dht.Open(ctx, threads[0], name)
		if err != nil {
			return err
		}
		return errors.Join(use(ctx, t), t.Close(ctx))
	})
}

// writeToken writes the token of a tree to a file, for its owner alone.
func writeToken(path string, t gsas.Token) error {
	w, err := outfile.Open(path, outfile.Options{})
	if err == nil {
		_, err = fmt.Fprintln(w, t)
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return fmt.Errorf("--tree: %w", err)
	}
	return nil
}

func (a *app) dhtCreateCommand() *cobra.Command {
	var f dhtFlags
	c := &cobra.Command{
		Use:     "create NAME --tree FILE",
		Short:   "Make a table, and keep it until the command is interrupted",
		Example: "  exanetctl dht create words --nodes 0,1 --keys 1e6 --tree words.tree",
		Args:    wantArgs(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.tree == "" {
				return usagef("--tree FILE is missing: the token by which other commands join is written there")
			}
			o, err := f.options()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			return a.threads(ctx, &f, 1, true, func(ctx context.Context, threads []*gsas.Thread) error {
				t, err := createTable(ctx, threads[0], args[0], o)
				if err != nil {
					return err
				}
				if err := writeToken(f.tree, threads[0].Token()); err != nil {
					return err
				}
				defer os.Remove(f.tree)
				if err := a.println(fmt.Sprintf("Table %s is there, for %d keys on %s, until this command ends: others join with --tree %s.", t.Name(), o.Keys, plural(len(t.Nodes()), "node"), f.tree)); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			})
		},
	}
	f.add(a, c, true)
	return c
}

// dhtPart is a part of a table, as `dht show` prints it.
type dhtPart struct {
	Node       int `json:"node"`
	Keys       int `json:"keys"`
	Deleted    int `json:"deleted"`
	Elements   int `json:"elements"`
	Containers int `json:"containers"`
	Depth      int `json:"depth"`
}

// dhtTableCommand is a command that uses the table that its first argument names.
func (a *app) dhtTableCommand(use, short, long string, run func(context.Context, *dht.Table, []string) error) *cobra.Command {
	var f dhtFlags
	args := strings.Count(use, " ")
	c := &cobra.Command{
		Use: use + " --tree FILE", Short: short, Long: long, Args: wantArgs(args, args),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTable(cmd, &f, args[0], func(ctx context.Context, t *dht.Table) error { return run(ctx, t, args) })
		},
	}
	f.add(a, c, false)
	return c
}

func (a *app) dhtShowCommand() *cobra.Command {
	return a.dhtTableCommand("show NAME", "Show what a table has on each node",
		`show reads the whole table, which brings each page of its first level into memory, and
prints for each node the keys, the elements of deleted keys, the elements of the first
level, the containers, and how many containers are below the deepest element.`,
		func(ctx context.Context, t *dht.Table, _ []string) error {
			var parts []dhtPart
			tab := a.table("NODE", "KEYS", "DELETED", "ELEMENTS", "CONTAINERS", "DEPTH")
			for i, node := range t.Nodes() {
				s, err := t.Stats(ctx, i)
				if err != nil {
					return err
				}
				parts = append(parts, dhtPart{int(node), s.Keys, s.Deleted, s.Elements, s.Containers, s.Depth})
				tab.add(node, s.Keys, s.Deleted, s.Elements, s.Containers, s.Depth)
			}
			if a.wantJSON() {
				return a.printJSON(parts)
			}
			return tab.flush()
		})
}

// errNoKey: the table does not have the key.
var errNoKey = errors.New("the table does not have the key")

// keyed adds to an error of a search that the table does not have the key.
func keyed(args []string, has bool, err error) error {
	if err == nil && !has {
		err = fmt.Errorf("key %q of table %q: %w", args[1], args[0], errNoKey)
	}
	return err
}

func (a *app) dhtGetCommand() *cobra.Command {
	return a.dhtTableCommand("get NAME KEY", "Print the value of a key", "", func(ctx context.Context, t *dht.Table, args []string) error {
		v, has, err := t.GetBytes(ctx, []byte(args[1]))
		if err = keyed(args, has, err); err != nil {
			return err
		}
		return a.println(string(v))
	})
}

func (a *app) dhtPutCommand() *cobra.Command {
	return a.dhtTableCommand("put NAME KEY VALUE", "Give a key a value; VALUE - reads it from standard input", "", func(ctx context.Context, t *dht.Table, args []string) error {
		value := []byte(args[2])
		if args[2] == "-" {
			var err error
			if value, err = io.ReadAll(io.LimitReader(a.in, dht.MaxValue+1)); err != nil {
				return fmt.Errorf("standard input: %w", err)
			}
		}
		return t.PutBytes(ctx, []byte(args[1]), value)
	})
}

func (a *app) dhtDeleteCommand() *cobra.Command {
	return a.dhtTableCommand("delete NAME KEY", "Take a key away", "", func(ctx context.Context, t *dht.Table, args []string) error {
		had, err := t.DeleteBytes(ctx, []byte(args[1]))
		return keyed(args, had, err)
	})
}

// serveThreads is how many threads serve Redis's clients: as many as an attachment may have.
const serveThreads = 8

func (a *app) dhtServeCommand() *cobra.Command {
	var f dhtFlags
	var address string
	c := &cobra.Command{
		Use:   "serve NAME --resp ADDRESS",
		Short: "Serve a table to Redis clients",
		Long: `serve answers Redis clients at a TCP address, or at a unix socket whose path begins with
/ or a dot, from a table: of the tree of --tree, or, if that file does not exist or is not
given, from a new one. There is no password: who reaches the address has your rights.`,
		Example: "  exanetctl dht serve words --nodes 0,1 --resp 127.0.0.1:7379",
		Args:    wantArgs(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options()
			if err != nil {
				return err
			}
			return a.dhtServe(cmd.Context(), &f, o, args[0], address)
		},
	}
	f.add(a, c, true)
	c.Flags().StringVar(&address, "resp", "", "address to serve at")
	return c
}

func (a *app) dhtServe(ctx context.Context, f *dhtFlags, o dht.Options, name, address string) error {
	network := "tcp"
	switch {
	case address == "":
		return usagef("--resp ADDRESS is missing, such as 127.0.0.1:7379")
	case strings.HasPrefix(address, "/") || strings.HasPrefix(address, "."):
		network = "unix"
	default:
		host, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if host == "" { // not all interfaces, which 0.0.0.0 and [::] name
			address = net.JoinHostPort("127.0.0.1", port)
		}
		if err != nil {
			return usagef("--resp %s: want HOST:PORT or the path of a socket: %w", address, err)
		}
	}
	fresh := f.tree == ""
	if !fresh {
		_, err := os.Stat(f.tree)
		fresh = errors.Is(err, os.ErrNotExist)
	}
	return a.threads(ctx, f, serveThreads, fresh, func(ctx context.Context, threads []*gsas.Thread) (err error) {
		if network == "unix" {
			if err := removeDead(ctx, address); err != nil {
				return fmt.Errorf("--resp: %w", err)
			}
		}
		l, err := new(net.ListenConfig).Listen(ctx, network, address)
		if err != nil {
			return fmt.Errorf("--resp: %w", err)
		}
		defer l.Close()
		var s resp.Server
		for i, thread := range threads {
			t, err := openOrCreate(ctx, thread, name, o, fresh && i == 0)
			if err != nil {
				return err
			}
			defer func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // pfd may be stopped
				defer cancel()
				err = errors.Join(err, t.Close(ctx))
			}()
			s.Tables = append(s.Tables, t)
		}
		if fresh && f.tree != "" {
			if err := writeToken(f.tree, threads[0].Token()); err != nil {
				return err
			}
			defer os.Remove(f.tree)
		}
		if err := a.println(fmt.Sprintf("Table %s is served at %s, with your rights for all who connect.", name, l.Addr())); err != nil {
			return err
		}
		return s.Serve(ctx, l)
	})
}

// removeDead removes a socket that a process left when it was killed: nobody listens there.
func removeDead(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return nil // Listen says what is wrong
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(c.Close(), fmt.Errorf("%s: another process listens there", path))
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return os.Remove(path)
	}
	return nil
}

// createTable makes a table, on the thread's node if no nodes are named.
func createTable(ctx context.Context, t *gsas.Thread, name string, o dht.Options) (*dht.Table, error) {
	if len(o.Nodes) == 0 {
		o.Nodes = []device.NodeID{t.Node()}
	}
	return dht.Create(ctx, t, name, o)
}

func openOrCreate(ctx context.Context, t *gsas.Thread, name string, o dht.Options, create bool) (*dht.Table, error) {
	if create {
		return createTable(ctx, t, name, o)
	}
	return dht.Open(ctx, t, name)
}
