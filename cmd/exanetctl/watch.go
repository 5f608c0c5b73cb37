package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// watchMin is the shortest interval of --watch, so that it does not keep pfd busy.
const watchMin = 100 * time.Millisecond

// clearScreen moves the cursor home and clears the screen (ECMA-48, CUP and ED).
const clearScreen = "\x1b[H\x1b[2J"

func (a *app) watchFlag(c *cobra.Command) {
	c.Flags().DurationVar(&a.watch, "watch", 0, "repeat at this interval until interrupted, such as 1s")
}

// watched returns a command that repeats show with --watch. On a terminal each output replaces
// the last one. Otherwise it follows the last one, for tables after an empty line.
func (a *app) watched(show func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("watch") {
			return show(cmd, args)
		}
		if a.watch < watchMin {
			return usagef("--watch %v: want %v or more", a.watch, watchMin)
		}
		screen := terminal(a.out) && !a.wantJSON()
		tick := time.NewTicker(a.watch)
		defer tick.Stop()
		for first := true; ; first = false {
			switch {
			case screen:
				fmt.Fprint(a.out, clearScreen)
			case !first && !a.wantJSON():
				fmt.Fprintln(a.out)
			}
			err := show(cmd, args)
			if cmd.Context().Err() != nil {
				return nil // interrupted
			}
			if err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-cmd.Context().Done():
				return nil
			}
		}
	}
}
