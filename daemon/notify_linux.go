package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/sdnotify"
)

// Intervals of upkeep. Values below are defined by this project.
const (
	keepTime    = 10 * time.Second // of the status line, and of the lines that the log holds back
	socketsTime = 5 * time.Second  // of the check that the sockets are where they were made
	// readyAgain is the pause before a READY that was not delivered is sent again: a service
	// manager stops a service that stays silent.
	readyAgain = 250 * time.Millisecond
)

// upkeep is pfd's periodic work, and its connection to the service manager.
type upkeep struct {
	log      *slog.Logger
	limit    *logs.Handler // nil: none
	host     *session.Host
	sockets  *sockets
	draining func() bool
	unsaid   chan string // a READY that was not delivered
}

// notify is like the function notify, and reports whether the service manager was notified.
func (u *upkeep) notify(state string) bool {
	err := sdnotify.Send(state)
	if err != nil {
		what, _, _ := strings.Cut(state, "\n")
		u.log.Warn("service manager not told", "what", what, "err", err)
	}
	return err == nil
}

// ready notifies the service manager that pfd serves. If that fails, keep repeats it.
func (u *upkeep) ready(more string) {
	if state := "READY=1" + more; !u.notify(state) {
		select {
		case u.unsaid <- state:
		default: // keep already repeats one
		}
	}
}

// keep does the upkeep until ctx ends. It feeds the service manager's watchdog only while
// every node's owner answers, so a stuck engine is restarted.
func (u *upkeep) keep(ctx context.Context) {
	period, dog := socketsTime, sdnotify.Watchdog(os.Getenv)
	if dog > 0 {
		period = min(period, dog/2)
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	told, swept, lost := "", time.Now(), ""
	var unsaid string
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case unsaid = <-u.unsaid:
			again = time.After(readyAgain)
			continue
		case <-again:
			switch {
			case u.draining(): // STOPPING was the last message
			case u.notify(unsaid):
				u.log.Info("service manager told after all", "what", "READY=1")
			default:
				again = time.After(readyAgain)
			}
			continue
		case <-tick.C:
		}
		alive := true
		if dog > 0 {
			if alive = u.alive(ctx, dog/2); alive {
				u.notify("WATCHDOG=1")
			} else if ctx.Err() == nil {
				u.log.Error("the engine does not answer: the service manager's watchdog is not fed", "after", dog/2)
			}
		}
		lost = u.lookForSockets(lost)
		if time.Since(swept) < keepTime {
			continue
		}
		swept = time.Now()
		if l := u.limit; l != nil {
			l.Sweep()
		}
		if s := u.statusLine(ctx); alive && s != "" && s != told {
			u.notify("STATUS=" + s)
			told = s
		}
	}
}

// lookForSockets logs each change of whether the sockets are where they were made. It returns
// what is wrong; before is what it returned last.
func (u *upkeep) lookForSockets(before string) (now string) {
	err := u.sockets.lost()
	if err != nil {
		now = err.Error()
	}
	switch {
	case now == before:
	case err == nil:
		u.log.Info("the sockets are where they were")
	default:
		u.log.Warn("a socket of this pfd is gone: nobody reaches it there: start it anew (a cleaner of temporary files, another pfd, rm)", "err", err)
	}
	return now
}

// alive reports whether the owner of every node's windows answers in time.
func (u *upkeep) alive(ctx context.Context, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return !slices.ContainsFunc(u.host.Nodes(), func(n *session.Node) bool {
		return u.host.Own(ctx, n, func() error { return nil }) != nil
	})
}

// statusLine returns what systemctl status shows, "" without a service manager.
func (u *upkeep) statusLine(ctx context.Context) string {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return ""
	}
	domains, faults, away := 0, uint64(0), ""
	err := u.host.Each(ctx, control.AllNodes, func(n *session.Node) error {
		domains += len(n.Manager().Domains())
		faults += n.Stats().Total.Entries
		return nil
	})
	if err != nil {
		return ""
	}
	for _, n := range u.host.Nodes() {
		if n.Down() {
			away += fmt.Sprintf(", waiting for the device of node %d", n.Number())
		}
	}
	return fmt.Sprintf("%d nodes, %d domains, %d faults served%s", len(u.host.Nodes()), domains, faults, away)
}
