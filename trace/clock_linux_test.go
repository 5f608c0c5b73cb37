package trace

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A process in a time namespace gets the same time as other processes and the kernel.
func TestBaseInATimeNamespace(t *testing.T) {
	monotonic := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return ts.Nano()
	}
	const child = "EXANET_TIME_TEST"
	if os.Getenv(child) != "" {
		base, err := Base(func() int64 { return 0 })
		fmt.Println(base, err)
		os.Exit(0)
	}
	cmd := exec.Command("unshare", "--time", "--monotonic", "1000000", os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1")
	before := monotonic()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Skipf("no time namespace is available (unshare --time, as root): %v: %s", err, out)
	}
	var base int64
	if _, err := fmt.Sscan(string(out), &base); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if after := monotonic(); base < before || base > after {
		t.Errorf("its time is %d, that of others %d to %d", base, before, after)
	}
}
