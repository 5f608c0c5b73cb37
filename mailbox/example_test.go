package mailbox_test

import (
	"fmt"

	"github.com/exanet/pfd/mailbox"
)

// The message with which a driver requests a retransmission when the block's page is resident.
func ExampleRAPF() {
	word := mailbox.RAPF{PDID: 2, Claimed: 2, Transaction: 7, Sequence: 3}.Encode()
	fmt.Println(mailbox.OpcodeOf(word) == mailbox.OpRAPF)
	m, err := mailbox.DecodeRAPF(word)
	fmt.Println(m.Transaction, m.Sequence, m.Fail, err)
	// Output:
	// true
	// 7 3 false <nil>
}
