package config

import (
	"time"

	"github.com/spf13/pflag"
)

// Link names the flags of the links between emulated nodes.
func Link(f *pflag.FlagSet, delay *time.Duration, loss *float64, seed *uint64) {
	f.DurationVar(delay, "link-delay", 0, "what each frame between emulated nodes takes, beside 150ns and its bytes at 10 Gb/s (default no link: frames arrive at once)")
	f.Float64Var(loss, "link-loss", 0, "how likely such a frame is lost, as 0.01; its block is sent again after a time-out")
	f.Uint64Var(seed, "link-seed", 0, "seed of what is lost (default another one at each start)")
}
