package mailbox_test

import (
	"fmt"

	"github.com/exanet/pfd/mailbox"
)

// The message by which a driver asks for a block again when its page is there.
func ExampleRAPF() {
	word := mailbox.RAPF{PDID: 2, Claimed: 2, Transaction: 7, Sequence: 3}.Encode()
	fmt.Println(mailbox.OpcodeOf(word) == mailbox.OpRAPF)
	m, err := mailbox.DecodeRAPF(word)
	fmt.Println(m.Transaction, m.Sequence, m.Fail, err)
	// Output:
	// true
	// 7 3 false <nil>
}
