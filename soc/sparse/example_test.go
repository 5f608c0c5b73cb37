package sparse_test

import (
	"fmt"

	"github.com/exanet/pfd/soc/sparse"
)

func Example() {
	var t sparse.Table[string]
	*t.At(1000) = "a row"
	fmt.Println(*t.At(1000), t.Find(3) == nil)
	// Output: a row true
}
