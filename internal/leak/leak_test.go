package leak

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// told is a testing.TB that records an error.
type told struct {
	testing.TB
	text string
}

func (t *told) Helper()                   {}
func (t *told) Errorf(f string, v ...any) { t.text += fmt.Sprintf(f, v...) }

func TestRounds(t *testing.T) {
	var objects []*[64]byte
	calls := 0
	stop := make(chan struct{})
	defer close(stop)
	for name, f := range map[string]func(int){
		"":        func(int) { _ = make([]byte, 100) },
		"objects": func(int) { objects = append(objects, new([64]byte)) },
		"once": func(int) { // also after the warm-up
			if calls++; calls == 1500 {
				objects = append(objects, make([]*[64]byte, 600)...)
				for i := range objects {
					objects[i] = new([64]byte)
				}
			}
		},
		"goroutines": func(i int) {
			if i == 0 {
				go func() { <-stop }()
			}
		},
		"descriptors": func(i int) {
			if i == 0 {
				f, err := os.Open("/dev/null")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
			}
		},
	} {
		c := &told{TB: t}
		check(c, 1000, 20*time.Millisecond, f)
		if (name != "" && name != "once") != strings.Contains(c.text, "left something behind") {
			t.Errorf("%q: %q", name, c.text)
		}
	}
	_ = objects
}
