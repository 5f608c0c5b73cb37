package shadow

import (
	"testing"

	"github.com/exanet/pfd/device"
)

// TestTablesWritten: a device that writes into the tables, which it should only read, misdirects
// only its own accesses.
func TestTablesWritten(t *testing.T) {
	for name, b := range map[string]byte{"zeros": 0, "ones": 0xff, "addresses": 0x7b} {
		for what, do := range map[string]func(m *Memory){
			"drop":   func(m *Memory) { m.Drop(2) },
			"evict":  func(m *Memory) { m.Idle(0) },
			"pagein": func(m *Memory) { m.PageIn(2, 0x40000000+8*page, 1, true) },
			"forget": func(m *Memory) { m.Forget(2, 0x40000000, 4*page) },
		} {
			t.Run(what+" with "+name, func(t *testing.T) {
				u := newUnit(t, 0, 48)
				shareMemory(t, u, 2, 0x40000000, 16, true)
				if r := u.m.PageIn(2, 0x40000000, 4, true); r.Err != nil {
					t.Fatal(r.Err)
				}
				for i := range u.m.tables.own.B {
					u.m.tables.own.B[i] = b
				}
				do(u.m)
				u.m.Drop(2)
				u.m.sweeps.Wait()
				if s := u.m.Stats(); s.Mapped != 0 {
					t.Errorf("%+v", s)
				}
				// The next process's pages are entered correctly.
				shareMemory(t, u, 2, 0x40000000, 16, true)
				if r := u.m.PageIn(2, 0x40000000, 4, true); r.Err != nil {
					t.Error(r.Err)
				}
				for p := range 4 {
					if w := u.m.tables.walk(2, device.VA(0x40000000+p*page)); !w.full {
						t.Errorf("page %d is not entered", p)
					}
				}
			})
		}
	}
}
