// Package version has the release of this program.
package version

import "runtime/debug"

// release is the version of this source tree. A build may set another with
// -ldflags "-X github.com/exanet/pfd/internal/version.release=1.2.3".
var release = "0.1.0-dev"

// String returns the release, followed by the commit if the build knows it:
// "0.1.0-dev+1a2b3c4d5e6f".
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}
	return with(release, info.Settings)
}

func with(release string, settings []debug.BuildSetting) string {
	for _, s := range settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return release + "+" + s.Value[:12]
		}
	}
	return release
}
