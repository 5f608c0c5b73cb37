//go:build !man && !profile

//go:debug updatemaxprocs=0

// Pfd is the page-fault daemon: it serves the page faults of RDMA transfers, so that their
// memory need not be pinned. It runs until SIGTERM or SIGINT. Then it waits a bounded time for
// running transfers, ends the attachments and exits 0.
package main

import "os"

func main() { os.Exit(execute()) }
