package pagein_test

import (
	"fmt"

	"github.com/exanet/pfd/device/pagein"
)

func ExampleParseMethod() {
	m, err := pagein.ParseMethod("uffd")
	fmt.Println(m == pagein.UFFD, m, err)
	// Output:
	// true uffd <nil>
}
