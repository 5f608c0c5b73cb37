package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
)

// gsasCommand shows the trees of threads of the global shared address space. With -o json its commands
// have the trees.
func (a *app) gsasCommand() *cobra.Command {
	type tree = control.GSASTree
	id := []string{"NODE", "INTERFACE"}
	return list(a, &listing[tree]{
		name: "gsas", none: "no process has a thread of the global shared address space", short: "Show the trees of threads of the global shared address space", id: id,
		fetch: func(c *control.Client, ctx context.Context, _ int) ([]tree, error) { return c.GSAS(ctx) },
		idOf:  func(t *tree) []int { return []int{t.Node, t.Interface} },
		json:  treesJSON,
		columns: []column[tree]{
			{"TREE", 0, func(t *tree) any { return fmt.Sprintf("%d/%d", t.Node, t.Interface) }},
			{"PROTECTION", 1, func(t *tree) any { return nodeID(uint32(t.Protection)) }},
			{"OWNER", 1, func(t *tree) any { return when(t.Owner != "", t.Owner) }},
			{"UID", 0, func(t *tree) any { return t.UID }},
			{"STATE", 2, func(t *tree) any { return t.State }},
			{"THREADS", 0, func(t *tree) any { return len(t.Threads) }},
			{"NODES", 3, func(t *tree) any { return len(t.Areas) }},
			{"SIZE", 0, func(t *tree) any { return bytesCell(t.SizeBytes) }},
		},
	}, a.gsasTreeCommand(id), a.gsasThreadCommand(id))
}

func treesJSON(trees []control.GSASTree, seesAll bool) any {
	return control.GSAS{Version: control.Version, SeesAll: seesAll, Trees: trees}
}

// rowsJSON returns the trees of rows, each once, for rows in the order of the trees.
func rowsJSON[T any](rows []T, of func(*T) *control.GSASTree, seesAll bool) any {
	trees := []control.GSASTree{}
	for i := range rows {
		if t := of(&rows[i]); i == 0 || t != of(&rows[i-1]) {
			trees = append(trees, *t)
		}
	}
	return treesJSON(trees, seesAll)
}

// gsasTreeCommand shows what trees have on the nodes.
func (a *app) gsasTreeCommand(id []string) *cobra.Command {
	type area struct {
		tree *control.GSASTree
		control.GSASArea
	}
	return list(a, &listing[area]{
		name: "tree", none: "no tree has memory", short: "Show the memory of trees on each node", id: id, mayBeEmpty: true,
		fetch: func(c *control.Client, ctx context.Context, _ int) (rows []area, err error) {
			trees, err := c.GSAS(ctx)
			for i := range trees {
				for _, m := range trees[i].Areas {
					rows = append(rows, area{&trees[i], m})
				}
			}
			return rows, err
		},
		idOf: func(r *area) []int { return []int{r.tree.Node, r.tree.Interface} },
		json: func(rows []area, seesAll bool) any {
			return rowsJSON(rows, func(r *area) *control.GSASTree { return r.tree }, seesAll)
		},
		columns: []column[area]{
			{"TREE", 0, func(r *area) any { return fmt.Sprintf("%d/%d", r.tree.Node, r.tree.Interface) }},
			{"UID", 1, func(r *area) any { return r.tree.UID }},
			{"NODE", 0, func(r *area) any { return r.Node }},
			{"ADDRESS", 0, func(r *area) any { return r.Address }},
			{"ALLOCATIONS", 0, func(r *area) any { return r.Allocations }},
			{"SIZE", 0, func(r *area) any { return bytesCell(r.SizeBytes) }},
		},
	})
}

// gsasThreadCommand shows the threads.
func (a *app) gsasThreadCommand(id []string) *cobra.Command {
	type thread struct {
		tree *control.GSASTree
		control.GSASThread
	}
	return list(a, &listing[thread]{
		name: "thread", none: "no process has a thread of the global shared address space", short: "Show the threads, of one tree or of all", id: id, mayBeEmpty: true,
		fetch: func(c *control.Client, ctx context.Context, _ int) (rows []thread, err error) {
			trees, err := c.GSAS(ctx)
			for i := range trees {
				for _, t := range trees[i].Threads {
					rows = append(rows, thread{&trees[i], t})
				}
			}
			return rows, err
		},
		idOf: func(r *thread) []int { return []int{r.tree.Node, r.tree.Interface} },
		json: func(rows []thread, seesAll bool) any {
			return rowsJSON(rows, func(r *thread) *control.GSASTree { return r.tree }, seesAll)
		},
		columns: []column[thread]{
			{"THREAD", 0, func(r *thread) any { return fmt.Sprintf("%d/%d", r.Node, r.Interface) }},
			{"ID", 1, func(r *thread) any { return nodeID(uint32(r.Thread)) }},
			{"TREE", 0, func(r *thread) any { return fmt.Sprintf("%d/%d", r.tree.Node, r.tree.Interface) }},
			{"UID", 2, func(r *thread) any { return r.tree.UID }},
			{"DOMAIN", 0, func(r *thread) any { return when(r.Slot >= 0, fmt.Sprintf("%d/%d", r.Node, r.Slot)) }},
			{"PID", 0, func(r *thread) any { return r.PID }},
		},
	})
}
