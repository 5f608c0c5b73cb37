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

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/workload"
)

// demoCommand is what `make demo` runs: the main job by the programs
// themselves, as a user would type them. Every number of its last line comes
// from their JSON.
func (a *app) demoCommand() *cobra.Command {
	var bin string
	var link struct {
		delay time.Duration
		loss  float64
		seed  uint64
	}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Start a pfd, make transfers into absent memory, show what happened",
		Args:  maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var args []string
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if strings.HasPrefix(f.Name, "link-") {
					args = append(args, "--"+f.Name, f.Value.String())
				}
			})
			return a.demo(cmd.Context(), bin, args)
		},
	}
	c.Flags().StringVar(&bin, "bin", "", "directory of the programs (default this one's)")
	config.Link(c.Flags(), &link.delay, &link.loss, &link.seed)
	return c
}

// demoLive is the run that goes on while channels and FIFOs are shown.
var demoLive = []string{"write", "--size", "64MiB", "--parallel", "6", "--policy", "p1", "--dst", "absent"}

// demo is a demo underway.
type demo struct {
	*app
	ctl    string // exanetctl
	socket string
	bytes  int // that arrived and were checked
}

func (a *app) demo(ctx context.Context, bin string, args []string) (err error) {
	if bin == "" {
		bin = filepath.Dir(besideThis("exanetctl"))
	}
	// pfd is ended with the thread that started it (workload.StartDaemon).
	runtime.LockOSThread()
	d := &demo{app: a, ctl: filepath.Join(bin, "exanetctl")}
	p, err := workload.StartDaemon(ctx, filepath.Join(bin, "pfd"), 2, args...)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: make build, or name its directory with --bin", err)
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
			// What broke in consequence does not matter.
			err = fmt.Errorf("demo: interrupted: %w", context.Cause(ctx))
		}
	}()
	d.socket = p.Socket()
	d.say("$ %s &", strings.Join(p.Command(), " "))
	d.say("$ export SOCKET=%s", d.socket)
	d.say("")
	d.say("An RDMA write into memory of another process that nobody has touched:")
	if err := d.show(ctx, "write", "--size", "1MiB", "--count", "10", "--dst", "absent", "--policy", "pa", "--socket", "$SOCKET"); err != nil {
		return err
	}
	d.bytes += 10 << 20
	d.say("")
	d.say("What a fault costs, beside present memory:")
	if err := d.show(ctx, "bench", "methods", "--count", "200"); err != nil {
		return err
	}
	d.say("")
	d.say("Where the time of a fault goes:")
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
	total, err := d.counted(ctx)
	if err != nil {
		return err
	}
	stopped = true
	if err := p.Stop(); err != nil {
		return err
	}
	d.say("")
	d.say("pfd has stopped in good order.")
	if total.PinnedBytes != 0 {
		return fmt.Errorf("%d bytes were pinned, want 0", total.PinnedBytes)
	}
	d.say("demo: ok, %d faults resolved, %d bytes verified, %d bytes pinned", total.Faults, d.bytes, total.PinnedBytes)
	return nil
}

// counted is what pfd has counted.
func (d *demo) counted(ctx context.Context) (control.Status, error) {
	c, err := control.New(d.socket)
	if err != nil {
		return control.Status{}, err
	}
	defer c.Close()
	return c.Status(ctx)
}

// say writes a line. A broken standard output shows in the commands' errors.
func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format+"\n", args...) }

// command is exanetctl with arguments, as it is shown; it ends with this process.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	d.say("$ %s %s", d.ctl, strings.Join(args, " "))
	run := slices.Clone(args)
	for i, arg := range run {
		run[i] = strings.ReplaceAll(arg, "$SOCKET", d.socket)
	}
	c := exec.CommandContext(ctx, d.ctl, run...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	c.Stdout, c.Stderr = d.out, d.err
	if d.width() == 0 {
		c.Env = append(os.Environ(), "COLUMNS=80") // in a pipe, too, it is read by people
	}
	return c
}

// show runs a command and shows what it shows.
func (d *demo) show(ctx context.Context, args ...string) error {
	if err := d.command(ctx, args...).Run(); err != nil {
		return fmt.Errorf("exanetctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// live shows channels and FIFOs while transfers go on.
func (d *demo) live(ctx context.Context) error {
	d.say("")
	d.say("Channels and page-fault FIFOs while six transfers of 64 MiB go on:")
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

// underWay waits until all six transfers are.
func (d *demo) underWay(ctx context.Context, ended chan error) error {
	c, err := control.New(d.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		channels, err := c.Channels(ctx, 0)
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
		case err := <-ended: // its result says more
			ended <- err
			return nil
		case <-time.After(time.Millisecond):
		}
	}
}
