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

	"github.com/exanet/pfd/daemon/control"
)

// column is one column of a table of T.
type column[T any] struct {
	name  string
	spare int // on a narrow terminal columns with the largest number are left out first; 0 stays
	value func(*T) any
}

// listing describes a command that shows a list of T: its source, the IDs of its elements,
// and its columns.
type listing[T any] struct {
	name, short string
	id          []string // names of the parts of an ID
	none        string   // text for an empty list
	rest        string   // added to none unless --all is given
	all         *bool    // --all
	fetch       func(c *control.Client, ctx context.Context, node int) ([]T, error)
	idOf        func(*T) []int // the parts of an element's ID
	mayBeEmpty  bool           // an ID is a node, whose list may be empty
	keep        func(t *T, named bool) bool
	json        func(list []T, seesAll bool) any // seesAll is that of control.Status
	columns     []column[T]
	flags       func(*cobra.Command)
	after       func([]T) error // called after the table is written
}

// list returns the command of a listing.
func list[T any](a *app, l *listing[T], more ...*cobra.Command) *cobra.Command {
	return a.object(l.name, l.short, "["+strings.Join(l.id, "/")+"]", l.names(), once(l.complete(a)), l.flags, a.asking(func(cmd *cobra.Command, c *control.Client, args []string) error {
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
		rows, err := l.fetch(c, cmd.Context(), id[0])
		if err != nil {
			return err
		}
		whole := id[len(l.id)-1] >= 0 // the ID names one element
		rows = slices.DeleteFunc(rows, func(t T) bool {
			return !id.match(l.idOf(&t)...) || l.keep != nil && !l.keep(&t, whole)
		})
		scope, err := a.askScope(cmd.Context(), c)
		if err != nil {
			return err
		}
		if a.wantJSON() {
			return a.printJSON(l.json(rows, scope == ""))
		}
		if len(rows) == 0 && whole && !l.mayBeEmpty {
			return fmt.Errorf("no %s %s: see `exanetctl %s`", l.name, args[0], l.name)
		}
		if len(rows) == 0 {
			none := l.none
			if whole {
				none += " of " + strings.ToLower(strings.Join(l.id, "/")) + " " + args[0]
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
	}), more...)
}

// names returns the names of the columns.
func (l *listing[T]) names() (names []string) {
	for _, c := range l.columns {
		names = append(names, c.name)
	}
	return names
}

// flush writes a table, and a scope that is not "" to standard error.
func (a *app) flush(t *table, scope string) error {
	err := t.flush()
	if err == nil && scope != "" {
		fmt.Fprintln(a.err, scope)
	}
	return err
}

// none writes, in place of a table, that there is nothing to show and why. A CSV has a header.
func (a *app) none(t *table, text, scope string) error {
	if scope != "" {
		text += ": " + scope
	}
	if a.format == formatCSV {
		fmt.Fprintln(a.err, text)
		return t.flush()
	}
	return a.println(text)
}

// askScope asks pfd for its status and returns scopeOf it.
func (a *app) askScope(ctx context.Context, c *control.Client) (string, error) {
	s, err := c.Status(ctx)
	if err != nil {
		return "", fmt.Errorf("whether pfd shows this user everything: %w", err)
	}
	return scopeOf(&s), nil
}

// scopeOf returns a text about the restricted view of a user, or "" if the user sees all.
func scopeOf(s *control.Status) string {
	if s.SeesAll {
		return ""
	}
	text := fmt.Sprintf("pfd shows uid %d only its own processes", os.Geteuid())
	if s.Domains == 0 {
		text += ", and none of them is attached"
	}
	return text
}

// table returns an empty table with the columns.
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
	return a.answerWords(func(ctx context.Context, c *control.Client) (ids []string, _ error) {
		rows, err := l.fetch(c, ctx, control.AllNodes)
		for i := range rows {
			var words []string
			for _, n := range l.idOf(&rows[i]) {
				words = append(words, strconv.Itoa(n))
			}
			ids = append(ids, strings.Join(words, "/"))
		}
		return ids, err
	})
}
