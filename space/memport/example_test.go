//go:build linux

package memport_test

import (
	"fmt"

	"github.com/exanet/pfd/space/memport"
)

// pfd's side of a port, and the socket for the process's helper: memport.Serve serves its other
// end. Without a helper no request is pending.
func ExampleNew() {
	p, socket, err := memport.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Pending(), p.Poll())
	fmt.Println(socket.Close(), p.Close())
	// Output:
	// false false
	// <nil> <nil>
}
