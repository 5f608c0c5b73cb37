package domain_test

import (
	"fmt"

	"github.com/exanet/pfd/daemon/domain"
)

// The PDIDs that a pfd assigns, and how many of a node's slots one user may hold.
func ExampleNewDirectory() {
	dir, err := domain.NewDirectory(domain.DirectoryConfig{First: 1, Last: 999, Quota: 4})
	fmt.Println(dir != nil, err)
	_, err = domain.NewDirectory(domain.DirectoryConfig{First: 5, Last: 4})
	fmt.Println(err)
	// Output:
	// true <nil>
	// bad PDID range: 5 to 4; take one within 1 to 65534
}
