package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// watchMin keeps --watch from keeping pfd busy.
const watchMin = 100 * time.Millisecond

// clearScreen brings the cursor home and erases what stands there (ECMA-48, CUP
// and ED).
const clearScreen = "\x1b[H\x1b[2J"

func (a *app) watchFlag(c *cobra.Command) {
	c.Flags().DurationVar(&a.watch, "watch", 0, "show it again each time this has passed, until interrupted: 1s")
}

// watched makes a show command one that --watch repeats. On a terminal each
// picture replaces the last; elsewhere they follow each other, JSON values one
// a time and tables with an empty line between.
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
