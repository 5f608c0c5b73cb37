package resp_test

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/exanet/pfd/dht/resp"
)

func ExampleReadCommand() {
	r := bufio.NewReader(strings.NewReader("*2\r\n$3\r\nGET\r\n$6\r\ncolour\r\n"))
	command, err := resp.ReadCommand(r)
	fmt.Printf("%q %v\n", command, err)
	// Output: ["GET" "colour"] <nil>
}
