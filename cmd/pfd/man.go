//go:build man

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/internal/manual"
)

// main writes the manual pages into the directory of its first argument (make man).
func main() {
	if err := pages(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func pages(dir string) error {
	p := manual.Program{
		Section: "8",
		Root: []manual.Section{
			{Name: "EXIT STATUS", Text: `.TP
.B 0
SIGTERM or SIGINT ended it; or, with \fB\-\-check\-config\fP, the configuration is valid.
.TP
.B 1
It failed.
.TP
.B 2
Wrong usage, or a wrong configuration. The service is not restarted.`},
			{Name: "ENVIRONMENT", Text: `.TP
.BR RUNTIME_DIRECTORY ", " XDG_RUNTIME_DIR
Directory of the default socket.
.TP
.BR NOTIFY_SOCKET ", " WATCHDOG_USEC ", " WATCHDOG_PID
Set by the service manager:
.BR sd_notify (3).
.TP
.B JOURNAL_STREAM
If standard error is connected to the journal, lines are sent there with their levels.`},
			{Name: "FILES", Text: `.TP
.I /etc/exanet/pfd.toml
Configuration of the service:
.BR pfd.toml (5).
.TP
.I /run/exanet/pfd.sock
Control socket.
.TP
.I /run/exanet/pfd.sock.attach
Where processes attach.
.TP
.I /run/exanet/pfd.sock.metrics
Metrics only, in Prometheus' text format.
.TP
.I /usr/share/exanet/
Rules of alerts for Prometheus, a dashboard for Grafana, drop-ins for the unit.
.TP
.I /usr/share/doc/exanet/
Documents and examples.`},
		},
		SeeAlso: "\\fBexanet(7)\\fP, \\fBexanet\\-hostd(8)\\fP, \\fBpfd.toml(5)\\fP, \\fBexanetctl(1)\\fP",
	}
	if err := p.Write(command(nil, os.Stderr), dir); err != nil {
		return err
	}
	o := &options{Config: daemon.Default(), level: "info"}
	f := pflag.NewFlagSet("pfd", pflag.ContinueOnError)
	o.flags(f)
	text := manual.Settings("pfd.toml", "5", "configuration of the ExaNet page\\-fault daemon", `.SH DESCRIPTION
.BR pfd (8)
reads the file that
.B \-\-config
names, in TOML. The keys are the names of the
flags, without sections. A flag on the command line overrides the file. A key that pfd
does not know, or an invalid value, is an error that names file and line; pfd
then does not start (exit status 2).
.B pfd \-\-check\-config
reports the same errors without starting.
.PP
SIGHUP
.RB ( "systemctl reload pfd" )
reads the file again. The keys drain\-time, gsas\-quota, guard\-us, handshake\-time, handshakes\-per\-uid,
log\-level, outstanding, quota and timeout\-us take effect at once; for others the log reports
that they need a restart.`, `.SH FILES
.I /etc/exanet/pfd.toml
.SH EXAMPLES
.EX
nodes = 1
quota = 8
log\-level = "debug"
metrics\-listen = "127.0.0.1:9482"
.EE
.SH SEE ALSO
.BR pfd (8),
.BR exanet (7)`, f, flagsOnly...)
	return os.WriteFile(filepath.Join(dir, "pfd.toml.5"), text, 0o644)
}
