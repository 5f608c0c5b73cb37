package workload

import "testing"

// Each channel of a stream makes a transfer, even if the time is over before its turn comes: the
// bytes of all channels are compared with their sources.
func TestStreamOfNoTime(t *testing.T) {
	l := startLive(t)
	s, err := OpenStream(t.Context(), l.client, l.options(t, "gup", "p1"), 1, 4096, Shared)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	const channels = 40
	if got, err := s.Run(channels, 0); err != nil || got.Transfers != channels {
		t.Errorf("%d transfers, %v, want one of each of %d channels", got.Transfers, err, channels)
	}
}
