//go:build arm64

package probe

import _ "embed"

//go:embed probe_arm64_bpfel.o
var object []byte
