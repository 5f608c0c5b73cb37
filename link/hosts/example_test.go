package hosts_test

import (
	"fmt"

	"github.com/exanet/pfd/link/hosts"
)

func ExampleParse() {
	f, err := hosts.Parse("hosts.toml", []byte(`cluster = "lab"

[[host]]
name = "a"
address = "192.0.2.1:9480"
nodes = "0-3"
pdids = "0x100-0x1ff"

[[host]]
name = "b"
address = "192.0.2.2:9480"
nodes = "3"
pdids = "0x200-0x2ff"
`))
	fmt.Println(f != nil, err)
	// Output:
	// false hosts file hosts.toml:12: host b: nodes "3" overlap nodes "0-3" of host a (line 6): give each host nodes of its own
}
