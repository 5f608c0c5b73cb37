package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/workload"
)

// benchCommand is what `make bench` runs.
func (a *app) benchCommand() *cobra.Command {
	var pfd string
	var small, large int
	c := &cobra.Command{
		Use:    "bench",
		Short:  "Measure writes into absent memory against writes into present memory",
		Hidden: true,
		Args:   maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if small < 1 || large < 1 {
				return usagef("--small and --large: want 1 transfer or more")
			}
			return a.bench(cmd.Context(), pfd, small, large)
		},
	}
	f := c.Flags()
	f.StringVar(&pfd, "pfd", "bin/pfd", "the pfd to start, unless --socket names a running one")
	f.IntVar(&small, "small", 1000, "transfers of 4 KiB of each kind")
	f.IntVar(&large, "large", 200, "transfers of 1 MiB of each kind")
	return c
}

func (a *app) bench(ctx context.Context, pfd string, small, large int) (err error) {
	socket := a.socket
	if socket == "" {
		// pfd is ended with the thread that started it (workload.StartDaemon).
		runtime.LockOSThread()
		p, err := workload.StartDaemon(ctx, pfd, 2)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.Stop()) }()
		socket = p.Socket()
	}
	c, err := control.New(socket)
	if err != nil {
		return err
	}
	defer c.Close()
	o := workload.Options{Socket: socket, From: 0, To: 1, Method: "gup", Command: testProcess()}
	r, err := workload.BenchFirstLight(ctx, c, o, small, large)
	if err != nil {
		return err
	}
	if r.PinnedBytes != 0 {
		return fmt.Errorf("%d bytes were pinned, want 0", r.PinnedBytes)
	}
	if a.wantJSON() {
		return a.printJSON(r)
	}
	t := a.table("4 KiB", fmt.Sprintf("present %.1f us", r.Small.Present), fmt.Sprintf("absent (gup, p1) %.1f us", r.Small.Absent), fmt.Sprintf("%.2fx present", r.Small.Ratio))
	t.add("1 MiB", fmt.Sprintf("present %.1f us", r.Large.Present), fmt.Sprintf("absent (gup, pa) %.1f us", r.Large.Absent), fmt.Sprintf("%.2fx present", r.Large.Ratio),
		fmt.Sprintf("touch first, then write %.1f us", r.Large.TouchFirst), fmt.Sprintf("%.2fx that", r.Large.ByTouchFirst))
	return t.flush()
}
