package emu

import (
	"testing"

	"github.com/exanet/pfd/soc/wire"
)

// BenchmarkTap times a frame without a capture, and with one that does nothing.
func BenchmarkTap(b *testing.B) {
	e := &Engine{nodes: make([]*node, 2)}
	f := new(wire.Frame)
	b.Run("off", func(b *testing.B) {
		for b.Loop() {
			e.tapped(f)
		}
	})
	e.Tap(func(int64, *wire.Frame) {})
	b.Run("on", func(b *testing.B) {
		for b.Loop() {
			e.tapped(f)
		}
	})
}
