package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sim"
)

// replayed is the JSON of replay.
type replayed struct {
	Version   int               `json:"version"`
	Error     *string           `json:"error"` // why the replay differs or the file cannot be read
	Whole     bool              `json:"whole"` // the recording is complete
	Nodes     int               `json:"nodes"`
	VABits    int               `json:"va_bits"`
	TXFIFO    bool              `json:"txfifo"`
	SVA       bool              `json:"sva"`
	Firmware  string            `json:"firmware_options"`
	StartedNS int64             `json:"started_ns"` // since 1970
	LengthNS  int64             `json:"length_ns"`  // of the recorded clock
	Records   uint64            `json:"records"`    // number of replayed records
	Confirmed uint64            `json:"confirmed"`  // number of those that a digest confirmed
	Frames    uint64            `json:"frames"`     // number of frames that the nodes transmitted
	Kinds     map[string]uint64 `json:"kinds"`      // records by kind
	Counters  []control.Counter `json:"counters"`   // of the nodes at the end, except zeros
}

func (a *app) replayCommand() *cobra.Command {
	var counters bool
	c := &cobra.Command{
		Use:   "replay FILE",
		Short: "Replay a recording of pfd --record and compare the results",
		Long: `replay feeds the inputs of a recording (pfd --record FILE) to new emulated nodes and
compares their outputs with the recorded ones. Exit code 0: all outputs were the same,
to the bit, also if the recording ends early because its pfd was killed or its disk
was full. Exit code 1: an output differs, or FILE is not a recording. replay needs the
same release as the recording, and no daemon.`,
		Example: `  pfd --record /tmp/rec --socket /tmp/pfd.sock
  exanetctl replay /tmp/rec`,
		Args: wantArgs(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return a.replay(args[0], counters) },
	}
	c.Flags().BoolVar(&counters, "counters", false, "show the nodes' counters at the end")
	return c
}

func (a *app) replay(file string, counters bool) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	defer f.Close()
	r, err := sim.Replay(f)
	broken := errors.Is(err, sim.ErrTruncated) && r.Header.Nodes > 0
	h := &r.Header
	v := replayed{
		Version: control.Version, Whole: err == nil, Nodes: h.Nodes, VABits: h.VABits, TXFIFO: !h.NoTXFIFO, SVA: h.SVA,
		Firmware: h.Firmware.String(), StartedNS: h.Started, LengthNS: r.Until, Records: r.Records, Confirmed: r.Checked,
		Frames: r.Frames, Kinds: map[string]uint64{}, Counters: []control.Counter{},
	}
	if err != nil {
		text := fmt.Sprintf("%s: %v", file, err)
		err, v.Error = fmt.Errorf("%s: %w", file, err), &text
	}
	for k, n := range r.Kinds {
		v.Kinds[k.String()] = n
	}
	for node, list := range r.Counters {
		for i, n := range list {
			if n > 0 {
				v.Counters = append(v.Counters, control.Counter{Node: int(h.Base) + node, Name: device.Counter(i).String() + "_total", Value: n})
			}
		}
	}
	var perr error
	if a.wantJSON() {
		perr = a.printJSON(v)
	} else if h.Nodes > 0 { // the header could be read
		perr = a.printReplay(&v, broken, counters)
	}
	if perr != nil {
		return perr
	}
	if broken {
		if !a.wantJSON() {
			fmt.Fprintf(a.err, "exanetctl: %v: %d of %d inputs are confirmed\n", err, v.Confirmed, v.Records)
		}
		return nil
	}
	return err
}

func (a *app) printReplay(v *replayed, broken, counters bool) error {
	result := "the same, to the bit"
	switch {
	case broken:
		result = "the same up to its end; the recording is incomplete"
	case !v.Whole:
		result = "NOT the same: see the message"
	}
	kinds := make([]string, 0, len(v.Kinds))
	for k := range v.Kinds {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	for i, k := range kinds {
		kinds[i] = fmt.Sprintf("%s %d", k, v.Kinds[k])
	}
	t := a.table("REPLAY", result)
	t.add("recorded", time.Unix(0, v.StartedNS).UTC().Format(time.RFC3339))
	t.add("length", time.Duration(v.LengthNS).Round(time.Microsecond))
	t.add("nodes", fmt.Sprintf("%d, %d bits of address", v.Nodes, v.VABits))
	t.add("firmware", v.Firmware)
	t.add("txfifo, sva", fmt.Sprintf("%s, %s", cell(v.TXFIFO), cell(v.SVA)))
	t.add("inputs", fmt.Sprintf("%d, %d confirmed", v.Records, v.Confirmed))
	t.add("kinds", strings.Join(kinds, ", "))
	t.add("frames", v.Frames)
	if err := t.flush(); err != nil || !counters {
		return err
	}
	fmt.Fprintln(a.out)
	t = a.table("NODE", "COUNTER", "VALUE")
	for _, c := range v.Counters {
		t.add(c.Node, c.Name, c.Value)
	}
	return t.flush()
}
