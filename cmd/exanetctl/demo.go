package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/workload"
)

// demoCommand is what `make demo` runs: the main job by the programs
// themselves, as a user would type them. Every number of its last line comes
// from their JSON.
func (a *app) demoCommand() *cobra.Command {
	var bin string
	c := &cobra.Command{
		Use:    "demo",
		Short:  "Start a pfd, make transfers into absent memory, show what happened",
		Hidden: true,
		Args:   maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.demo(cmd.Context(), bin)
		},
	}
	c.Flags().StringVar(&bin, "bin", "bin", "directory of the programs")
	return c
}

// demoRun is one run of the demo: a table's line.
type demoRun struct {
	size, method, policy string
	count                int
}

var demoRuns = []demoRun{
	{"4KiB", "gup", "p1", 20},
	{"4KiB", "touch", "p1", 20},
	{"1MiB", "gup", "pa", 10},
	{"1MiB", "touch", "pa", 10},
}

// demoLive is the run that goes on while channels and FIFOs are shown.
var demoLive = demoRun{"1MiB", "gup", "p1", 100}

func (r demoRun) args() []string {
	return []string{"write", "--from", "0", "--to", "1", "--size", r.size, "--count", fmt.Sprint(r.count),
		"--src", "present", "--dst", "absent", "--method", r.method, "--policy", r.policy}
}

// demo is a demo underway.
type demo struct {
	*app
	ctl    string // exanetctl
	socket string
	total  struct {
		faults, bytes uint64
		pinned        int64
	}
}

func (a *app) demo(ctx context.Context, bin string) (err error) {
	// pfd is ended with the thread that started it (workload.StartDaemon).
	runtime.LockOSThread()
	d := &demo{app: a, ctl: filepath.Join(bin, "exanetctl")}
	p, err := workload.StartDaemon(ctx, filepath.Join(bin, "pfd"), 2)
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
	d.say("RDMA writes into memory of another process that nobody has touched:")
	for _, r := range demoRuns {
		if err := d.write(ctx, r); err != nil {
			return err
		}
	}
	if err := d.live(ctx); err != nil {
		return err
	}
	d.say("")
	d.say("The last faults, as pfd resolved them (microseconds after the interrupt):")
	if err := d.show(ctx, "fault", "show", "--last", "8"); err != nil {
		return err
	}
	stopped = true
	if err := p.Stop(); err != nil {
		return err
	}
	d.say("")
	d.say("pfd has stopped in good order.")
	if d.total.pinned != 0 {
		return fmt.Errorf("%d bytes were pinned, want 0", d.total.pinned)
	}
	d.say("demo: ok, %d faults resolved, %d bytes verified, %d bytes pinned", d.total.faults, d.total.bytes, d.total.pinned)
	return nil
}

// say writes a line. A broken standard output shows in the commands' errors.
func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format+"\n", args...) }

// echo shows a command line as a user may type it.
func (d *demo) echo(args []string) {
	d.say("$ %s %s --socket $SOCKET", d.ctl, strings.Join(args, " "))
}

// command is exanetctl with arguments; it ends with this process.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, d.ctl, append(args, "--socket", d.socket)...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	c.Stderr = os.Stderr
	return c
}

// show runs a command and shows what it shows.
func (d *demo) show(ctx context.Context, args ...string) error {
	d.echo(args)
	c := d.command(ctx, args...)
	c.Stdout = d.out
	if err := c.Run(); err != nil {
		return fmt.Errorf("exanetctl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// write makes transfers and tells how they went.
func (d *demo) write(ctx context.Context, r demoRun) error {
	d.echo(r.args())
	c := d.command(ctx, append(r.args(), "-o", "json")...)
	text, err := c.Output()
	return d.result(r, text, err)
}

// result takes the JSON of a run.
func (d *demo) result(r demoRun, text []byte, err error) error {
	name := "exanetctl " + strings.Join(r.args(), " ")
	var w workload.Result
	if jsonErr := json.Unmarshal(text, &w); jsonErr != nil {
		return fmt.Errorf("%s: %w", name, errors.Join(err, jsonErr))
	}
	switch {
	case w.Error != nil:
		return fmt.Errorf("%s: %s", name, *w.Error)
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case !w.OK() || w.Transfers != r.count:
		return fmt.Errorf("%s: %d transfers, %d failed, verified %v", name, w.Transfers, w.Failed, w.Verified)
	case w.Faults == 0:
		return fmt.Errorf("%s: no fault was seen, although the memory was absent", name)
	}
	d.say("  latency %.1f us (median of %d, %s), %d faults, %d pages paged in, %d retransmissions, %d bytes verified, %d pinned",
		w.Latency.P50, w.Transfers, waitingText(w.Waiting), w.Faults, w.PagesPagedIn, w.Retransmits, w.Bytes, w.PinnedBytes)
	d.total.faults += w.Faults
	d.total.bytes += w.Bytes
	d.total.pinned = max(d.total.pinned, w.PinnedBytes)
	return nil
}

// live shows channels and FIFOs while transfers go on.
func (d *demo) live(ctx context.Context) error {
	d.say("")
	d.say("The channels and the page-fault FIFOs while transfers go on:")
	d.echo(demoLive.args())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := d.command(ctx, append(demoLive.args(), "-o", "json")...)
	var text bytes.Buffer
	c.Stdout = &text
	if err := c.Start(); err != nil {
		return fmt.Errorf("exanetctl write: %w", err)
	}
	ended := make(chan struct{})
	var runErr error
	go func() {
		runErr = c.Wait()
		close(ended)
	}()
	err := d.waitChannel(ctx, ended)
	if err == nil {
		err = errors.Join(d.show(ctx, "channel", "show"), d.show(ctx, "fifo", "show"))
	}
	if err != nil {
		cancel()
		<-ended
		return err
	}
	<-ended
	return d.result(demoLive, text.Bytes(), runErr)
}

// waitChannel waits until a channel is in use.
func (d *demo) waitChannel(ctx context.Context, ended <-chan struct{}) error {
	c, err := control.New(d.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		channels, err := c.Channels(ctx, 0)
		if err != nil || len(channels) > 0 {
			return err
		}
		select {
		case <-ended:
			return nil // its result says more
		default:
		}
	}
}
