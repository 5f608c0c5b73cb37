//go:build man

package main

import (
	"fmt"
	"os"

	"github.com/exanet/pfd/internal/manual"
)

// main writes the manual page into the directory of its first argument (make man).
func main() {
	p := manual.Program{
		Section: "8",
		Root: []manual.Section{
			{Name: "EXIT STATUS", Text: `.TP
.B 0
SIGTERM or SIGINT ended it; or, with \fB\-\-check\fP, the list of hosts is valid.
.TP
.B 1
It failed.
.TP
.B 2
Wrong usage, or a wrong list of hosts or certificate. The service is not restarted.`},
			{Name: "ENVIRONMENT", Text: `.TP
.BR RUNTIME_DIRECTORY ", " XDG_RUNTIME_DIR
Directories of the default socket.
.TP
.BR NOTIFY_SOCKET ", " WATCHDOG_USEC ", " WATCHDOG_PID
Set by the service manager:
.BR sd_notify (3).`},
			{Name: "FILES", Text: `.TP
.I /etc/exanet/hosts.toml
The hosts of the cluster, the same on each of them.
.TP
.IR /etc/exanet/ca.pem ", " /etc/exanet/HOST.pem ", " /etc/exanet/HOST.key
Certificates of the cluster and of this host, and the key of this host.
.TP
.I /run/exanet/pfd.sock.hosts
Socket of pfd.`},
		},
		SeeAlso: "\\fBpfd(8)\\fP, \\fBexanetctl\\-host\\-init(1)\\fP, \\fBexanet(7)\\fP",
	}
	if err := p.Write(command(os.Stderr), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}
