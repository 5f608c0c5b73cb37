package attach_test

import (
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device/pagein"
)

// The first message of a process, for authors of another library. Package rdma does all of this.
func ExampleHello() {
	h := attach.Hello{Node: 1, Group: attach.DefaultGroup, Method: pagein.GUP, Policy: pagein.PIO, ProofVA: 0x7f0000001000}
	b, err := h.Append(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	got, err := attach.DecodeHello(b)
	fmt.Println(got.Node, got.Group, got.Method, err)
	// Output:
	// 1 default gup <nil>
}
