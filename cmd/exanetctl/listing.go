package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
)

// column is one column of a table of T.
type column[T any] struct {
	name  string
	spare int // the columns with the largest number go first where a terminal is narrow; 0 stays
	value func(*T) any
}

// listing is an object that is a list of T: where it comes from, which of them an ID
// names, and its columns.
type listing[T any] struct {
	name, short string
	id          []string // the parts of an ID
	none        string   // what an empty list says
	rest        string   // what it says besides unless --all is given
	all         *bool    // --all
	fetch       func(ctx context.Context, c *control.Client, node int) ([]T, error)
	place       func(*T) []int // the parts of its ID
	log         bool           // an ID names a node, of which the list may be empty
	keep        func(t *T, named bool) bool
	json        func(list []T, all bool) any // all: as SeesAll of control.Status
	columns     []column[T]
	flags       func(*cobra.Command)
	after       func([]T) error // what follows the table
}

// list makes an object of a listing.
func list[T any](a *app, l *listing[T], more ...*cobra.Command) *cobra.Command {
	return a.object(l.name, l.short, "["+strings.Join(l.id, "/")+"]", l.names(), once(l.complete(a)), l.flags, func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args, l.id...)
		if err != nil {
			if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
				err = usagef("%w; did you mean %s?", err, strings.Join(meant, " or "))
			}
			return err
		}
		t := l.table(a)
		if err := t.check(); err != nil {
			return err
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		rows, err := l.fetch(cmd.Context(), c, id[0])
		if err != nil {
			return err
		}
		whole := id[len(l.id)-1] >= 0 // it names one
		rows = slices.DeleteFunc(rows, func(t T) bool {
			return !id.match(l.place(&t)...) || l.keep != nil && !l.keep(&t, whole)
		})
		scope := a.scope(cmd.Context(), c)
		if a.wantJSON() {
			return a.printJSON(l.json(rows, scope == ""))
		}
		if len(rows) == 0 && whole && !l.log {
			return fmt.Errorf("no %s %s: see `exanetctl %s`", l.name, args[0], l.name)
		}
		if len(rows) == 0 {
			none := l.none
			if whole {
				none += " of " + strings.ToLower(l.id[0]) + " " + args[0]
			}
			if l.all != nil && !*l.all {
				none += l.rest
			}
			return a.none(t, none, scope)
		}
		for i := range rows {
			t.add(l.cells(&rows[i])...)
		}
		if err := a.flush(t, scope); err != nil || l.after == nil {
			return err
		}
		return l.after(rows)
	}, more...)
}

// names are those of the columns.
func (l *listing[T]) names() (names []string) {
	for _, c := range l.columns {
		names = append(names, c.name)
	}
	return names
}

// flush writes a table. If the user does not see everything, it also writes what the table covers to standard error.
func (a *app) flush(t *table, scope string) error {
	err := t.flush()
	if err == nil && scope != "" {
		fmt.Fprintln(a.err, scope)
	}
	return err
}

// none says in place of a table that there is nothing to show, and why; a CSV has its head.
func (a *app) none(t *table, text, scope string) error {
	if scope != "" {
		text += ": " + scope
	}
	if a.format == formatCSV {
		fmt.Fprintln(a.err, text)
		return t.flush()
	}
	if _, err := fmt.Fprintln(a.out, text); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	return nil
}

// scope asks pfd whether this user sees all, and returns scopeOf its answer.
func (a *app) scope(ctx context.Context, c *control.Client) string {
	s, err := c.Status(ctx)
	if err != nil {
		return "" // what was asked for was answered
	}
	return scopeOf(&s)
}

// scopeOf says of what a user sees that it is not all; "" where it is.
func scopeOf(s *control.Status) string {
	if s.SeesAll {
		return ""
	}
	text := fmt.Sprintf("pfd shows uid %d what belongs to its own processes alone", os.Geteuid())
	if s.Domains == 0 {
		text += ", and none of them is attached now"
	}
	return text
}

// table is an empty one with the columns.
func (l *listing[T]) table(a *app) *table {
	spare := slices.Clone(l.columns)
	slices.SortStableFunc(spare, func(x, y column[T]) int { return cmp.Compare(y.spare, x.spare) })
	t := a.table(l.names()...)
	for _, c := range spare {
		if c.spare > 0 {
			t.spare = append(t.spare, c.name)
		}
	}
	return t
}

func (l *listing[T]) cells(v *T) []any {
	var cells []any
	for _, c := range l.columns {
		cells = append(cells, c.value(v))
	}
	return cells
}

// complete returns the IDs that exist, for a shell's completion.
func (l *listing[T]) complete(a *app) cobra.CompletionFunc {
	return words(func(ctx context.Context) (ids []string, _ error) {
		c, err := a.client()
		if err != nil {
			return nil, err
		}
		rows, err := l.fetch(ctx, c, control.AllNodes)
		for i := range rows {
			var words []string
			for _, n := range l.place(&rows[i]) {
				words = append(words, strconv.Itoa(n))
			}
			ids = append(ids, strings.Join(words, "/"))
		}
		return ids, err
	})
}
