package version

import (
	"runtime/debug"
	"testing"
)

func TestWith(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for _, c := range []struct {
		name     string
		settings []debug.BuildSetting
		want     string
	}{
		{"no settings", nil, "1.2.3"},
		{"commit known", []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "vcs.revision", Value: commit}}, "1.2.3+0123456789ab"},
		{"commit cut off", []debug.BuildSetting{{Key: "vcs.revision", Value: "0123"}}, "1.2.3"},
	} {
		if got := with("1.2.3", c.settings); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
