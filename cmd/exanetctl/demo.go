package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/workload"
)

// demoCommand is the command that `make demo` runs. It runs the programs as a user would. The
// counters in its last line come from pfd.
func (a *app) demoCommand() *cobra.Command {
	var bin string
	var hosts int
	var link struct {
		delay time.Duration
		loss  float64
		seed  uint64
	}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Start a pfd, make transfers into absent memory, show the faults",
		Args:  maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var args []string
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if strings.HasPrefix(f.Name, "link-") {
					args = append(args, "--"+f.Name, f.Value.String())
				}
			})
			if bin == "" {
				bin = filepath.Dir(besideThis("exanetctl"))
			}
			switch hosts {
			case 1:
				return a.demo(cmd.Context(), bin, args)
			case 2:
				if len(args) > 0 {
					return usagef("--hosts 2: the --link- flags are for the links within one pfd")
				}
				return a.demoHosts(cmd.Context(), bin)
			}
			return usagef("--hosts %d: want 1 or 2", hosts)
		},
	}
	c.Flags().IntVar(&hosts, "hosts", 1, "1, or 2: two machines as network namespaces, and a cable between them that is cut")
	c.Flags().StringVar(&bin, "bin", "", "directory of the programs (default that of this program)")
	config.Link(c.Flags(), &link.delay, &link.loss, &link.seed)
	return c
}

// demoLive is the run during which channels and FIFOs are shown.
var demoLive = []string{"write", "--size", "64MiB", "--parallel", "6", "--policy", "p1", "--dst", "absent"}

// demo is the state of a running demo.
type demo struct {
	*app
	ctl   string            // path of exanetctl
	names map[string]string // replaced in command lines
	pfd   *control.Client
	bytes int // number of bytes that arrived and were checked
}

func (a *app) demo(ctx context.Context, bin string, args []string) (err error) {
	// pfd ends with the thread that started it (workload.StartDaemon).
	runtime.LockOSThread()
	d := &demo{app: a, ctl: filepath.Join(bin, "exanetctl")}
	p, err := workload.StartDaemon(ctx, filepath.Join(bin, "pfd"), 2, args...)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: run `make build`, or name its directory with --bin", err)
	}
	if err != nil {
		return err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, p.Stop())
		}
		if err != nil && ctx.Err() != nil {
			// The first error is a consequence of the interruption.
			err = fmt.Errorf("demo: interrupted: %w", context.Cause(ctx))
		}
	}()
	d.names = map[string]string{"$SOCKET": p.Socket()}
	if d.pfd, err = control.New(p.Socket()); err != nil {
		return err
	}
	defer d.pfd.Close()
	d.say("$ %s &", strings.Join(p.Command(), " "))
	d.say("$ export SOCKET=%s", p.Socket())
	d.say("\nAn RDMA write into absent memory of another process:")
	if err := d.show(ctx, "write", "--size", "1MiB", "--count", "10", "--dst", "absent", "--policy", "pa", "--socket", "$SOCKET"); err != nil {
		return err
	}
	d.bytes += 10 << 20
	d.say("\nThe cost of a fault, compared with present memory:")
	if err := d.show(ctx, "bench", "methods", "--count", "200"); err != nil {
		return err
	}
	d.say("\nThe stages of a fault:")
	for _, args := range [][]string{
		{"write", "--count", "200", "--warm", "--dst", "absent", "--socket", "$SOCKET"},
		{"fault", "stages", "--last", "200", "--socket", "$SOCKET"},
	} {
		if err := d.show(ctx, args...); err != nil {
			return err
		}
	}
	d.bytes += 200 * 4 << 10
	if err := d.live(ctx); err != nil {
		return err
	}
	total, err := d.pfd.Status(ctx)
	if err != nil {
		return err
	}
	stopped = true
	if err := p.Stop(); err != nil {
		return err
	}
	d.say("\npfd has stopped with exit code 0.")
	if total.PinnedBytes != 0 {
		return fmt.Errorf("%d bytes were pinned, want 0", total.PinnedBytes)
	}
	d.say("demo: ok, %d faults resolved, %d bytes verified, %d bytes pinned", total.Faults, d.bytes, total.PinnedBytes)
	return nil
}

// say writes a line. The commands report errors of standard output.
func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format+"\n", args...) }

// command prints a command line of exanetctl and returns the command. It ends with this
// process.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	d.say("$ %s %s", d.ctl, strings.Join(args, " "))
	run := slices.Clone(args)
	for i, arg := range run {
		if v, ok := d.names[arg]; ok {
			run[i] = v
		}
	}
	c := exec.CommandContext(ctx, d.ctl, run...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	c.Stdout, c.Stderr = d.out, d.err
	if d.width() == 0 {
		c.Env = append(os.Environ(), "COLUMNS=80") // people read it also behind a pipe
	}
	return c
}

// show runs a command and shows its output.
func (d *demo) show(ctx context.Context, args ...string) error {
	if err := d.command(ctx, args...).Run(); err != nil {
		return fmt.Errorf("exanetctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// live shows channels and FIFOs during transfers.
func (d *demo) live(ctx context.Context) error {
	d.say("\nChannels and page-fault FIFOs during six transfers of 64 MiB:")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := d.command(ctx, append(demoLive, "--socket", "$SOCKET")...)
	var text bytes.Buffer
	c.Stdout = &text
	if err := c.Start(); err != nil {
		return fmt.Errorf("exanetctl write: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	err := d.underWay(ctx, ended)
	for _, args := range [][]string{{"channel"}, {"fifo"}, {"counter", "fifo"}} {
		if err == nil {
			err = d.show(ctx, append(args, "--socket", "$SOCKET")...)
		}
	}
	if err != nil {
		cancel()
		<-ended
		return err
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("exanetctl %s: %w\n%s", strings.Join(demoLive, " "), err, text.String())
	}
	d.bytes += 6 * 64 << 20
	return nil
}

// underWay waits until all six transfers are in flight.
func (d *demo) underWay(ctx context.Context, ended chan error) error {
	for {
		channels, err := d.pfd.Channels(ctx, 0)
		if err != nil {
			return err
		}
		busy := 0
		for _, ch := range channels {
			if ch.InFlight > 0 {
				busy++
			}
		}
		if busy >= 6 {
			return nil
		}
		select {
		case err := <-ended: // live reports its error
			ended <- err
			return nil
		case <-time.After(time.Millisecond):
		}
	}
}
