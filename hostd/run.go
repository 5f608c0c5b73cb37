package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/spool"
	"github.com/exanet/pfd/link/handover"
	"github.com/exanet/pfd/link/hosts"
)

// Bounds of the log, as pfd's. Values below are defined by this project.
const (
	logRoom = 1 << 20 // bytes for a slow reader
	logTime = time.Second
)

// options are the flags.
type options struct {
	file, name, pfd, listen, level string

	check bool
}

func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "hosts", "/etc/exanet/hosts.toml", "file of the cluster's hosts, in TOML (exanetctl host init)")
	f.StringVar(&o.name, "name", "", "name of this host in the file (default the machine's name, whole or up to the first dot)")
	f.StringVar(&o.pfd, "pfd", "", "control socket of this host's pfd; exanet-hostd connects to PATH.hosts (default: as exanetctl finds it)")
	f.StringVar(&o.listen, "listen", "", "TCP address on which to accept other hosts, as 192.0.2.1:9480 (default all addresses, the port of this host in the file)")
	f.StringVar(&o.level, "log-level", "info", "debug, info, warn or error")
	f.BoolVar(&o.check, "check", false, "check the file and the certificate, print any error, and exit: 0 valid, 2 invalid")
}

// run runs one command line until ctx ends, and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return config.Execute(ctx, command(stderr), args, stdout, stderr, hosts.ErrFile)
}

func command(stderr io.Writer) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "exanet-hostd",
		Short: "The program that connects the ExaNet daemons of several hosts",
		Long: `exanet-hostd has the network that pfd has not: it reads the list of hosts, accepts
and dials connections, and hands the connected sockets, the list and the
certificate to the pfd of its host. pfd encrypts and uses the connections itself.
Connections of pfd stay up when exanet-hostd ends. When pfd starts anew
exanet-hostd connects to it again.

SIGHUP makes it read the list and the certificate again; after an error it keeps
what it had. SIGTERM ends it with exit code 0. Other exit codes: 1 failed, 2
wrong usage, or a wrong list of hosts.`,
		Example: `  exanet-hostd --hosts lab/hosts.toml --name a --pfd /tmp/pfd.sock
  exanetctl --socket /tmp/pfd.sock host`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level, set, err := o.load()
			if err != nil {
				return err
			}
			if o.check {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is valid for host %s\n", o.file, o.name)
				return err
			}
			return serve(cmd.Context(), o, level, set, stderr)
		},
	}
	config.Program(cmd)
	o.flags(cmd.Flags())
	return cmd
}

// load completes and checks the flags, and reads the file.
func (o *options) load() (level slog.Level, set *settings, err error) {
	if err := level.UnmarshalText([]byte(o.level)); err != nil {
		return 0, nil, fmt.Errorf("%w: --log-level %q: want debug, info, warn or error", config.ErrUsage, o.level)
	}
	if o.listen != "" {
		if err := handover.CheckAddress(o.listen); err != nil {
			return 0, nil, fmt.Errorf("%w: --listen: %w", config.ErrUsage, err)
		}
	}
	if o.pfd == "" {
		if o.pfd, err = sockets.Find(); err != nil {
			return 0, nil, fmt.Errorf("%w: no pfd is at %s, and the environment names no other: name its control socket with --pfd PATH", config.ErrUsage, sockets.Root)
		}
	}
	f, err := hosts.Read(o.file)
	if err != nil {
		return 0, nil, err
	}
	if o.name == "" {
		if o.name, err = ownName(f); err != nil {
			return 0, nil, err
		}
	}
	set, err = newSettings(f, o.name)
	return level, set, err
}

// ownName returns the name of this machine, whole or up to the first dot, as the file has it.
func ownName(f *hosts.File) (string, error) {
	whole, err := os.Hostname()
	if err != nil {
		return "", err
	}
	short, _, _ := strings.Cut(whole, ".")
	if _, err := f.Find(whole); err == nil {
		return whole, nil
	}
	_, err = f.Find(short)
	return short, err
}

// settings is the part of the file that concerns this host.
type settings struct {
	file        *hosts.File
	self        *hosts.Host
	table       *handover.Table
	credentials *handover.Credentials // nil without TLS
}

func newSettings(f *hosts.File, name string) (*settings, error) {
	self, err := f.Find(name)
	if err != nil {
		return nil, err
	}
	table, err := f.Table(name)
	if err != nil {
		return nil, err
	}
	credentials, err := f.Credentials(name)
	return &settings{f, self, table, credentials}, err
}

// again reads the file again.
func (o *options) again() (*settings, error) {
	f, err := hosts.Read(o.file)
	if err != nil {
		return nil, err
	}
	return newSettings(f, o.name)
}

// serve runs the server, with its log and its signals, until ctx ends.
func serve(ctx context.Context, o *options, level slog.Level, set *settings, stderr io.Writer) error {
	// The end of the log's reader must not end the program.
	signal.Ignore(syscall.SIGPIPE)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	f, ok := stderr.(*os.File)
	journal := ok && logs.OnJournal(f, os.Getenv)
	out := spool.New(stderr, logRoom)
	defer out.Close(logTime) // an error cannot be reported anywhere
	log := slog.New(logs.New(out, logs.Options{Level: level, Journal: journal}))

	l, err := listen(ctx, o, set)
	if err != nil {
		return err
	}
	s := &server{o: o, log: log, settings: set, states: map[string]string{}, dials: map[handover.Want]int{}, more: map[handover.Want]bool{}}
	return s.run(ctx, l, hup)
}
