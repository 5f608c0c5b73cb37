//go:build !man

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/discard"
	"github.com/exanet/pfd/internal/sandbox"
	"github.com/exanet/pfd/internal/yield"
)

// execute runs the whole program and returns the exit code.
func execute() int {
	shortSlices()
	yield.Spare()
	if session.IsMemoryHelper(os.Args) {
		if session.ServeMemory() != nil {
			return config.ExitFailed // the error has been printed
		}
		return config.ExitOK
	}
	if discard.IsServer(os.Args) {
		_ = sandbox.Apply(sandbox.Rules{Calls: append(sandbox.Runtime(), "fallocate", "getsockname", "getpeername", "getsockopt", "recvmsg"), Files: &sandbox.Files{}})
		if discard.Serve() != nil {
			return config.ExitFailed // it has no output
		}
		return config.ExitOK
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal starts the shutdown; a second one ends pfd at once.
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}
