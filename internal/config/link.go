package config

import (
	"time"

	"github.com/spf13/pflag"
)

// Link adds the flags of the links between emulated nodes to f.
func Link(f *pflag.FlagSet, delay *time.Duration, loss *float64, seed *uint64) {
	f.DurationVar(delay, "link-delay", 0, "extra one-way latency of each frame between emulated nodes, added to 150ns and its bytes at 10 Gb/s (default no link: frames arrive at once)")
	f.Float64Var(loss, "link-loss", 0, "probability that such a frame is lost, as 0.01; its block is retransmitted after a time-out")
	f.Uint64Var(seed, "link-seed", 0, "seed of the choice of lost frames (default a new one at each start)")
}
