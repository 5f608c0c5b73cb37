package discard_test

import (
	"fmt"

	"github.com/exanet/pfd/internal/discard"
)

// The program's main function looks first whether it is to discard pages.
func ExampleIsServer() {
	fmt.Println(discard.IsServer([]string{"pfd", "--nodes=2"}), discard.IsServer([]string{"pfd", discard.Command}))
	// Output: false true
}
