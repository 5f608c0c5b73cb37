//go:build man

package main

import (
	"fmt"
	"os"

	"github.com/exanet/pfd/internal/manual"
)

// main writes the manual pages into a directory, its first argument (make man).
func main() {
	p := manual.Program{
		Section: "1",
		Root: []manual.Section{{Name: "FILES", Text: `.TP
.I /run/exanet/pfd.sock
Control socket of the service; the default for
.BR \-\-socket .`}},
		All: []manual.Section{
			{Name: "EXIT STATUS", Text: `.TP
.B 0
Done.
.TP
.B 1
Failed.
.TP
.B 2
Wrong usage.
.TP
.B 3
No daemon answers, or it ended during the command.
.TP
.B 4
Skipped: this machine does not support it.`},
			{Name: "ENVIRONMENT", Text: `.TP
.BR RUNTIME_DIRECTORY ", " XDG_RUNTIME_DIR
Directories of the default socket.
.TP
.B NO_COLOR
If it is set, the output has no colours.
.TP
.B COLUMNS
Width of tables; overrides the terminal's width.`},
		},
		SeeAlso: "\\fBexanet(7)\\fP, \\fBpfd(8)\\fP",
	}
	if err := p.Write(newRoot(streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}
