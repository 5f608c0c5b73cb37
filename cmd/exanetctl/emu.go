package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/emu/capture"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/internal/yield"
)

// emuFlags are the flags of emu serve.
type emuFlags struct {
	serve.Config
	directory string
	level     string
	capture   string
}

func (a *app) emuCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "emu",
		Short: "Serve emulated nodes from a separate process",
		Args:  cobra.ArbitraryArgs,
		RunE:  orHelp,
	}
	c.AddCommand(a.emuServeCommand())
	return c
}

func (a *app) emuServeCommand() *cobra.Command {
	f := emuFlags{Config: serve.Config{Nodes: 2, VABits: 48}, level: "warn"}
	c := &cobra.Command{
		Use:   "serve --socket-dir DIR",
		Short: "Serve emulated nodes at vfio-user sockets, each as a PCI device",
		Long: `serve makes --nodes emulated nodes and serves each as a PCI device at a
vfio-user socket: DIR/node0.sock, DIR/node1.sock and so on. A pfd drives them
(pfd --device vfio-user:DIR/node0.sock), or a virtual machine uses them
(qemu-system-x86_64 -device vfio-user-pci). A device keeps its state when one
driver disconnects and another connects, until this process ends. SIGTERM or
SIGINT ends it with exit code 0 and a warning for each connected client: stop
virtual machines first, because QEMU aborts when a device's socket closes.`,
		Example: `  exanetctl emu serve --nodes 2 --socket-dir /tmp/exanet
  pfd --socket /tmp/pfd.sock \
      --device vfio-user:/tmp/exanet/node0.sock,/tmp/exanet/node1.sock`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.emuServe(cmd.Context(), f) },
	}
	fs := c.Flags()
	fs.IntVar(&f.Nodes, "nodes", f.Nodes, "emulated nodes, 1 to 64")
	fs.StringVar(&f.directory, "socket-dir", "", "directory of the sockets; made if it does not exist")
	fs.IntVar(&f.VABits, "va-bits", f.VABits, "width of virtual addresses, 39 to 48")
	fs.BoolVar(&f.NoTXFIFO, "no-txfifo", false, "no FIFO for source faults: the sender's time-out finds them")
	fs.StringVar(&f.Firmware, "firmware-options", "", "optimizations of the firmware: all, none, or a list of fastpath, bypass, tickets, counters, retransmission-bit and whole-blocks, separated by commas; no- before one switches it off (default all)")
	config.Link(fs, &f.Link.Delay, &f.Link.Loss, &f.Link.Seed)
	fs.StringVar(&f.capture, "capture", "", "file for the packets on the links, as pcapng; for nodes inside pfd use exanetctl capture")
	fs.StringVar(&f.level, "log-level", f.level, "debug, info, warn or error")
	return c
}

func (a *app) emuServe(ctx context.Context, f emuFlags) (err error) {
	var level slog.Level
	switch {
	case f.directory == "":
		return usagef("emu serve: --socket-dir is missing: name a directory for the sockets")
	case f.Nodes < 1 || f.Nodes > serve.MaxNodes:
		return usagef("--nodes %d: want 1 to %d", f.Nodes, serve.MaxNodes)
	case f.VABits < serve.MinVABits || f.VABits > serve.MaxVABits:
		return usagef("--va-bits %d: want %d to %d", f.VABits, serve.MinVABits, serve.MaxVABits)
	case level.UnmarshalText([]byte(f.level)) != nil:
		return usagef("--log-level %q: want debug, info, warn or error", f.level)
	}
	// sun_path has 108 bytes, with a NUL at the end (unix(7)).
	if path := serve.SocketPath(f.directory, f.Nodes-1); len(path) > 107 {
		return usagef("--socket-dir: %s has %d bytes, a unix socket's name at most 107: choose a shorter DIR", path, len(path))
	}
	f.Log = slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
	m, err := serve.New(f.Config)
	switch {
	case errors.Is(err, serve.ErrFirmware):
		return usagef("--firmware-options: %w", err)
	case errors.Is(err, serve.ErrLink):
		return usagef("%w", err)
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	defer yield.Spare()()
	if err := sockets.MakeDir(f.directory, 0o700); err != nil {
		return fmt.Errorf("directory of the sockets: %w", err)
	}
	if f.capture != "" {
		end, failed := record(ctx, m.Engine(), f.capture, f.Log)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	err = m.Run(ctx, f.directory, func() {
		for i := range f.Nodes {
			_, _ = fmt.Fprintf(a.out, "node %d at %s\n", i, serve.SocketPath(f.directory, i)) // best effort
		}
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: end it, or name another --socket-dir", err)
	}
	return err
}

// captureTime bounds the wait for a capture's last packets. Defined by this project.
const captureTime = 2 * time.Second

var errCaptureSlow = errors.New("writing the file is too slow: the last packets are missing")

// record writes the packets on all links into a file until end is called or a write fails,
// which it logs at once. If file is a pipe, record waits for a reader until ctx ends.
func record(ctx context.Context, e *emu.Engine, file string, log *slog.Logger) (end func() error, err error) {
	to, err := outfile.Await(ctx, file, outfile.Options{})
	if err != nil {
		return nil, fmt.Errorf("--capture: %w", err)
	}
	c := &capture.Capture{All: true}
	e.Tap(c.See)
	done, over := make(chan struct{}), make(chan error, 1)
	go func() {
		err := c.Copy(done, "exanetctl emu serve "+version.String(), func(b []byte) error {
			_, err := to.Write(b)
			return err
		})
		e.Tap(nil)
		if err != nil {
			log.Error("the capture ends early", "file", file, "err", err)
		}
		over <- err
	}()
	return func() error {
		e.Tap(nil)
		close(done)
		var err error
		select {
		case err = <-over:
		case <-time.After(captureTime): // the reader of a pipe does not read
			err = errCaptureSlow
		}
		if err := errors.Join(err, to.Close()); err != nil {
			return fmt.Errorf("--capture: %w", err)
		}
		return nil
	}, nil
}
