package record_test

import (
	"errors"
	"testing"

	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
)

var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// A failing file ends the recording at any record, even one with a transmission, and affects
// nothing else.
func TestFileFullAtATransmission(t *testing.T) {
	for name, give := range map[string]func(*record.Writer, int64, []soc.Action){
		"step": func(w *record.Writer, now int64, out []soc.Action) {
			w.Step(now, 0, &soc.Event{Kind: soc.Tick}, out)
		},
		"store": func(w *record.Writer, now int64, out []soc.Action) {
			w.Store(now, 0, 0, 0, 4, 0, out)
		},
	} {
		told := 0
		w := record.NewWriter(full{}, record.Header{Nodes: 1}, func(err error) {
			if told++; !errors.Is(err, errFull) {
				t.Errorf("%s: failed with %v", name, err)
			}
		})
		// The second record comes long after the first, so the buffer is written.
		for _, now := range []int64{0, 10e9, 20e9} {
			give(w, now, []soc.Action{{Kind: soc.Transmit, Frame: new(wire.Frame)}})
		}
		if err := w.Close(); told != 1 || !errors.Is(err, errFull) {
			t.Errorf("%s: failed %d times; Close returned %v", name, told, err)
		}
	}
}
