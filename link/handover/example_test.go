package handover_test

import (
	"fmt"

	"github.com/exanet/pfd/link/handover"
)

func ExampleDecode() {
	m := handover.Message{Want: &handover.Want{Host: "b"}}
	b, err := m.Encode()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", b)
	got, err := handover.Decode(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(got.Want.Host, got.Descriptors())
	// Output:
	// {"want":{"host":"b"}}
	// b 0
}
