package session_test

import (
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/session"
)

// The program of pfd is also that of the memory helpers, so its main function looks first.
func ExampleIsMemoryHelper() {
	fmt.Println(session.IsMemoryHelper([]string{"pfd", "--nodes=2"}), session.IsMemoryHelper([]string{"pfd", attach.HelperCommand}))
	// Output: false true
}
