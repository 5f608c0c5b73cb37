package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/folios"
	"github.com/exanet/pfd/internal/folios/foliotest"
	"github.com/exanet/pfd/internal/workload"
)

// The rows of folios are there where the machine allows folios, with what brings one in and what finds it
// there; else a line says why they are not.
func TestFolios(t *testing.T) {
	suites, err := Choose([]string{"folios"})
	if err != nil {
		t.Fatal(err)
	}
	for _, kib := range []int{0, 64} {
		t.Run(fmt.Sprint(kib), func(t *testing.T) {
			foliotest.Set(t, kib)
			r, err := newLab(t).Run(t.Context(), suites)
			if err != nil {
				t.Fatal(err)
			}
			table := r.Table("folios")
			rows := []string{"present", "absent, single pages"}
			if kib > 0 {
				const name = "absent, folios of 64 KiB"
				rows = append(rows, name, name+": those that bring one in", name+": the others")
			}
			notes := strings.Join(table.Notes, "\n")
			if !slices.Equal(table.Rows, rows) || len(table.Columns) != 3 || !table.split() {
				t.Errorf("rows %q, columns %q", table.Rows, table.Columns)
			}
			if kib == 0 && (len(table.Notes) != 2 || !strings.Contains(notes, folios.SharedLine) || !strings.Contains(notes, folios.PrivateLine)) || kib > 0 && notes != "" {
				t.Errorf("notes %q", notes)
			}
			readAll(t, r)
			docs := t.TempDir()
			page := filepath.Join(docs, "benchmarks.md")
			const old = "<!-- bench-folios -->\nas before\n<!-- /bench-folios -->\n"
			if err := os.WriteFile(page, []byte(old), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := r.Document(docs); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(page); err != nil || (string(b) == old) != (kib == 0) {
				t.Errorf("the document has %q, %v", b, err)
			}
			for _, row := range rows {
				for _, m := range workload.Memories {
					if c := table.get(row, "4 KiB, p1", m); c == nil || len(c.Samples) == 0 || slices.Min(c.Samples) <= 0 {
						t.Errorf("%s, memory %s: not measured", row, m)
					}
				}
			}
		})
	}
}
