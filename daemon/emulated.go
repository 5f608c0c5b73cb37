package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/soc/r5"
)

// emulated is the emulated SoC in pfd's own process as a Machine.
type emulated struct {
	engine *emu.Engine
	rec    *recording // nil: none
}

// Emulated builds the machine of --device emu, as the configuration has it.
func Emulated(cfg Config) (Machine, error) {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	firmware, err := r5.ParseOptions(cfg.Firmware)
	if err != nil {
		return nil, fmt.Errorf("%w: --firmware-options: %w", ErrConfig, err)
	}
	e, err := emu.New(emu.Config{
		Nodes: cfg.Nodes, Firmware: firmware,
		// Without a TXFIFO the firmware does not pause a source fault's block,
		// and its time-out sends it again: the thesis's way.
		NoTXFIFO: cfg.SourceFaults == SourceTimeout,
		Log:      log,
	})
	if err != nil {
		return nil, fmt.Errorf("building the emulated machine: %w", err)
	}
	m := emulated{engine: e}
	if cfg.Record != "" {
		if m.rec, err = startRecording(cfg.Record, e, log); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m emulated) LeasesLost(node int) uint64 { return m.engine.LeasesLost(node) }
func (m emulated) Nodes() int                 { return m.engine.Nodes() }
func (m emulated) Invalidations(node int) uint64 {
	return m.engine.Node(node).Invalidations()
}
func (m emulated) Firmware() string        { return m.engine.Firmware().String() }
func (m emulated) Bus(node int) device.Bus { return m.engine.Bus(node) }

// Run drives the machine until ctx ends, and ends the recording.
func (m emulated) Run(ctx context.Context) error {
	err := m.engine.Run(ctx)
	if m.rec != nil {
		m.rec.close()
	}
	return err
}

// Recording tells whether inputs are being recorded; known is false where
// nobody asked for it.
func (m emulated) Recording() (on, known bool) {
	if m.rec == nil {
		return false, false
	}
	return !m.rec.broken.Load(), true
}

func (m emulated) Attach(node, slot int, a *Attachment) error {
	return m.engine.Attach(node, slot, &emu.Attachment{
		Pages: a.Pages, Wake: a.Wake, Memory: a.Process, Gone: a.Gone, Log: a.Log,
	})
}

func (m emulated) Detach(node, slot int) { m.engine.Detach(node, slot) }

// Channels joins what the firmware knows with the descriptors in btcm, which
// hold done and status.
func (m emulated) Channels(node int) []ChannelInfo {
	var list []ChannelInfo
	r, now := &reader{bus: m.engine.Bus(node)}, m.engine.Now()
	for c := range device.Channels {
		slot, ch := c/device.ChannelsPerSlot, c%device.ChannelsPerSlot
		at := uint32(device.BTCMDescriptors + slot*device.PageSize + ch*device.DescriptorSize)
		reset := device.DoneReset
		if ch >= device.WriteChannels {
			reset = device.DoneReadReset
		}
		if r.read32(device.BTCM, at+device.DescDone) == reset {
			continue // never used
		}
		var words [device.DescriptorWords]uint64
		for i := range words {
			words[i] = r.read64(device.BTCM, at+8*uint32(i))
		}
		fw := m.engine.Node(node).Channel(slot, ch)
		info := ChannelInfo{
			Slot: slot, Channel: ch, PDID: fw.SourcePDID, DstPDID: fw.DestinationPDID,
			Descriptor: device.DescriptorOf(&words), IssuedBytes: uint64(fw.Issued),
			Blocks: int(fw.Blocks), Acked: int(fw.Acked), InFlight: fw.InFlight, Paused: fw.Paused,
		}
		if fw.Live {
			info.Live, info.Class, info.Window = true, fw.Class.String(), fw.Window
			info.Oldest, info.Newest, info.AgeNS = fw.Oldest, fw.Newest, max(now-fw.Began, 0)
		}
		list = append(list, info)
	}
	return list // the emulated windows give no errors
}

func (m emulated) Transactions(node int) ([]r5.TransactionInfo, int64) {
	return m.engine.Node(node).Transactions(), m.engine.Now()
}

func (m emulated) FIFO(node int, source bool) []FIFOInfo {
	var list []FIFOInfo
	for i := range device.FIFODepth {
		e, ext, ok := m.engine.Node(node).PeekFault(source, i)
		if !ok {
			break
		}
		list = append(list, FIFOInfo{Entry: e, Remaining: ext})
	}
	return list
}
