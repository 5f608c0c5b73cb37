package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/pcapng"
)

// captureCommand captures the packets on links (docs/exanetctl.md).
func (a *app) captureCommand() *cobra.Command {
	var file string
	var count uint64
	var duration time.Duration
	var snap int
	c := &cobra.Command{
		Use:   "capture [NODE]",
		Short: "Write the packets on the links of a node, or of all, as pcapng for Wireshark",
		Long: `capture writes pcapng, with an interface for each link, to a file or to standard
output, until it is interrupted. Wireshark and tshark decode it with
contrib/wireshark/exanet.lua. Packets contain the data of processes, so only root and the
user of pfd can capture. Packets that come faster than they can be written are lost. The
capture and a message on standard error state their number.`,
		Example: `  exanetctl capture --write links.pcapng --duration 5s
  exanetctl capture 0 --snap 60 |
      tshark -X lua_script:contrib/wireshark/exanet.lua -r -`,
		Args: maxArgs(1),
		RunE: a.asking(func(cmd *cobra.Command, client *control.Client, args []string) (err error) {
			id, err := parseID(args, "NODE")
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("duration") && duration <= 0 {
				return usagef("--duration %v: want more than 0", duration)
			}
			if file == "" && terminal(a.out) {
				return usagef("a capture cannot go to a terminal: use --write FILE, or pipe it into tshark -r -")
			}
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			if duration > 0 {
				defer time.AfterFunc(duration, stop).Stop()
			}
			packets, lost := uint64(0), map[int]uint64{}
			var to io.Writer
			defer func() {
				if f, ok := to.(*os.File); ok && file != "" {
					err = errors.Join(err, f.Close())
				}
			}()
			err = client.Capture(ctx, id[0], snap, func(block []byte) error {
				if to == nil && file != "" { // pfd accepted the request: the file may be replaced
					f, failed := outfile.Await(ctx, file, outfile.Options{})
					if failed != nil {
						return fmt.Errorf("--write: %w", failed)
					}
					to = f
				} else if to == nil {
					to = a.out
				}
				if iface, n, ok := pcapng.Lost(block); ok {
					lost[iface] = n
				}
				if pcapng.TypeOf(block) == pcapng.TypePacket {
					packets++
				}
				if _, err := to.Write(block); err != nil {
					return fmt.Errorf("writing the capture: %w", err)
				}
				if count > 0 && packets == count {
					stop()
					return ctx.Err()
				}
				return nil
			})
			all := uint64(0)
			for _, n := range lost {
				all += n
			}
			if ctx.Err() != nil {
				err = nil // interrupted, or --count or --duration is reached
			}
			if err == nil || errors.Is(err, control.ErrEnded) {
				fmt.Fprintf(a.err, "%d packets captured, %d lost\n", packets, all)
			}
			return err
		}),
	}
	c.ValidArgsFunction = once(a.nodeWords())
	f := c.Flags()
	f.StringVarP(&file, "write", "w", "", "file to write (default standard output)")
	f.Uint64VarP(&count, "count", "c", 0, "end after this many packets")
	f.DurationVar(&duration, "duration", 0, "end after this time: 5s")
	f.IntVar(&snap, "snap", 0, "bytes of each packet to keep: 60 are the header and its CRC (default all)")
	return c
}
