package probe

import "testing"

func TestHelps(t *testing.T) {
	for text, want := range map[string]bool{
		"pfd\x00":                            false,
		"pfd\x00--socket\x00/run/a.sock\x00": false,
		"pfd\x00discard\x00":                 true,
		"pfd\x00memory-helper\x00":           true,
		"":                                   false,
	} {
		if got := helps([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
