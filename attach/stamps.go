package attach

import "github.com/exanet/pfd/device"

// Watched reports whether pfd reads the times at which the process rings and sees the end;
// otherwise no stamp is written.
func (p *Pages) Watched() bool { return p.load32(WakeWatched) != 0 }

// SetWatched sets that, on pfd's side.
func (p *Pages) SetWatched(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	p.store32(WakeWatched, v)
}

func stamps(ch int) uint32 { return WakeStamps + 16*uint32(ch&(device.WriteChannels-1)) }

// SetRung records when the process rang for channel ch, ns of CLOCK_MONOTONIC.
func (p *Pages) SetRung(ch int, at int64) { p.store64(stamps(ch), uint64(at)) }

// SetSeen records when the process saw the end of channel ch's transfer.
func (p *Pages) SetSeen(ch int, at int64) { p.store64(stamps(ch)+8, uint64(at)) }

// Rung returns the process's stamp: any value, 0: none.
func (p *Pages) Rung(ch int) int64 { return int64(p.load64(stamps(ch))) }

// Seen returns the process's stamp: any value, 0: none.
func (p *Pages) Seen(ch int) int64 { return int64(p.load64(stamps(ch) + 8)) }
