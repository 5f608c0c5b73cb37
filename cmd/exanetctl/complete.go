package main

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
)

// words completes an argument or a flag with the words that find returns when a shell asks.
// After an error there are none.
func words(find func(ctx context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		list, err := find(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		slices.Sort(list) // a node has several FIFOs, counters and faults
		return slices.Compact(list), cobra.ShellCompDirectiveNoFileComp
	}
}

// once completes only the first argument.
func once(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f(cmd, args, part)
	}
}

// answerWords is like words, for words that pfd knows.
func (a *app) answerWords(find func(ctx context.Context, c *control.Client) ([]string, error)) cobra.CompletionFunc {
	return words(func(ctx context.Context) ([]string, error) {
		c, err := a.client()
		if err != nil {
			return nil, err
		}
		return find(ctx, c)
	})
}

// nodeWords completes the number of a node.
func (a *app) nodeWords() cobra.CompletionFunc {
	return a.answerWords(func(ctx context.Context, c *control.Client) (list []string, _ error) {
		nodes, err := c.Nodes(ctx, control.AllNodes)
		for _, n := range nodes {
			list = append(list, strconv.Itoa(n.Index))
		}
		return list, err
	})
}

// counterWords completes the arguments of counter: a node, or a counter's name.
func (a *app) counterWords() cobra.CompletionFunc {
	return a.answerWords(func(ctx context.Context, c *control.Client) (list []string, _ error) {
		counters, err := c.Counters(ctx, control.AllNodes)
		for _, n := range counters {
			if list = append(list, n.Name); n.Node != control.AllNodes {
				list = append(list, strconv.Itoa(n.Node))
			}
		}
		return list, err
	})
}

// completeFlag completes the values of a flag with f.
func completeFlag(c *cobra.Command, flag string, f cobra.CompletionFunc) {
	_ = c.RegisterFlagCompletionFunc(flag, f) // fails only for an unknown flag, or if called twice
}

// completeColumns completes --columns and --sort, which are lists separated by commas.
func completeColumns(c *cobra.Command, columns []string) {
	complete := func(signs ...string) cobra.CompletionFunc {
		return func(_ *cobra.Command, _ []string, part string) (list []string, _ cobra.ShellCompDirective) {
			given := part[:strings.LastIndex(part, ",")+1]
			for _, name := range columns {
				for _, sign := range signs {
					list = append(list, given+sign+strings.ToLower(name))
				}
			}
			return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
	}
	completeFlag(c, "columns", complete(""))
	completeFlag(c, "sort", complete("", "-"))
}
