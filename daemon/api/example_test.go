package api_test

import (
	"fmt"

	"github.com/exanet/pfd/daemon/api"
)

// The control interface changes something by POST alone.
func ExampleEndpoints() {
	for _, e := range api.Endpoints() {
		if e.Post {
			fmt.Println(e.Path, e.Keys)
		}
	}
	// Output:
	// /v1/domains/grant [node slot pdid]
	// /v1/domains/kick [node slot]
	// /v1/hosts/drain [host on]
	// /v1/hosts/cut [host ms]
}
