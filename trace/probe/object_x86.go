//go:build 386 || amd64

package probe

import _ "embed"

//go:embed probe_x86_bpfel.o
var object []byte
