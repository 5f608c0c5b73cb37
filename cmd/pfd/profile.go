//go:build profile

//go:debug updatemaxprocs=0

package main

import (
	"fmt"
	"os"
	"runtime/pprof"

	"github.com/exanet/pfd/internal/config"
)

// main runs pfd and writes a CPU profile of it into the directory $PFD_PROFILES (make pgo).
func main() { os.Exit(profiled(os.Getenv("PFD_PROFILES"))) }

func profiled(dir string) int {
	f, err := os.CreateTemp(dir, "pfd-")
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pfd: profile:", err)
		return config.ExitFailed
	}
	code := execute()
	pprof.StopCPUProfile()
	if err := f.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "pfd: profile:", err)
		return config.ExitFailed
	}
	return code
}
