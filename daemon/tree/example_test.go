package tree_test

import (
	"fmt"

	"github.com/exanet/pfd/daemon/tree"
)

func ExampleDirectory() {
	d := tree.New(tree.Config{
		Quota: tree.DefaultQuota, Now: func() int64 { return 0 }, Random: func() tree.Token { return tree.Token{1} },
	})
	root, _ := d.Begin(0, 1000)
	member, _ := d.Join(1, 1000, root.Token)
	pages, _ := d.Alloc(root.Protection, 1, 2, 0)
	fmt.Printf("%#x and %#x, %d pages at %v\n", root.ID, member.ID, pages.Pages, pages.Address())
	// Output: 0x800000 and 0x800001, 2 pages at 0x0002-0000-0000-0000
}
