package main

import (
	"fmt"
	"slices"
	"strings"
)

// stream is a table that prints each row at once. formats determine the widths of the columns.
type stream struct {
	*table
	formats []string
}

// shown returns the columns that fit the terminal.
func (s *stream) shown() (list []int) {
	wide := -1
	for i, format := range s.formats {
		list = append(list, i)
		wide += len(fmt.Sprintf(format, "")) + 1
	}
	for _, name := range s.spare {
		if s.a.format != formatTable || s.a.width() == 0 || wide <= s.a.width() {
			break
		}
		i := slices.Index(s.head, name)
		wide -= len(fmt.Sprintf(s.formats[i], "")) + 1
		list = slices.DeleteFunc(list, func(j int) bool { return j == i })
	}
	return list
}

// begin prints the header.
func (s *stream) begin() error {
	var cells []any
	for _, name := range s.head {
		cells = append(cells, name)
	}
	if n := len(cells) - len(s.shown()); n > 0 {
		fmt.Fprintf(s.a.err, "%s more: -o wide\n", plural(n, "column"))
	}
	return s.print(cells)
}

// print prints a row.
func (s *stream) print(cells []any) error {
	var line []string
	for _, i := range s.shown() {
		line = append(line, fmt.Sprintf(s.formats[i], cell(cells[i])))
	}
	return s.a.println(strings.TrimRight(strings.Join(line, " "), " "))
}
