//go:build linux

package memport_test

import (
	"fmt"

	"github.com/exanet/pfd/memport"
)

// pfd's side of a port, and the socket that the process's helper gets: memport.Serve
// serves at its other end. Without a helper nothing waits.
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
