//go:build linux

package agent_test

import (
	"fmt"

	"github.com/exanet/pfd/qemu/agent"
)

// A line of a session with output of the guest's command.
func ExampleDecode() {
	m, err := agent.Decode([]byte(`{"session":"1","stdout":"aGVsbG8K"}`))
	fmt.Printf("%s %q %v\n", m.Session, m.Stdout, err)
	_, err = agent.Decode([]byte(`{}`))
	fmt.Println(err != nil)
	// Output:
	// 1 "hello\n" <nil>
	// true
}
