//go:build !man

//go:debug updatemaxprocs=0

// Pfd is the page-fault daemon: it serves the page faults of RDMA transfers, so that their
// memory need not be pinned. It runs until SIGTERM or SIGINT. Then it waits a bounded time for
// running transfers, ends the attachments and exits 0.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/internal/yield"
)

func main() {
	shortSlices()
	yield.Spare()
	if session.IsMemoryHelper(os.Args) {
		if session.ServeMemory() != nil {
			os.Exit(exitFailed) // the error has been printed
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal starts the shutdown; a second one ends pfd at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
