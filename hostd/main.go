//go:build !man

// Exanet-hostd connects the pfds of several hosts. It reads hosts.toml, listens and dials, and
// hands connected sockets to the pfd of its host, which has no network of its own. It runs until
// SIGTERM or SIGINT and then exits 0; links of pfd stay up.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(execute()) }

// execute runs the whole program and returns the exit code.
func execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}
