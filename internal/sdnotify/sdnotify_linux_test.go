package sdnotify

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// Send reaches the socket, and says which one if that fails; without one it does nothing.
func TestSend(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Send("READY=1"); err != nil {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	t.Setenv("NOTIFY_SOCKET", path)
	if err := Send("READY=1"); err == nil {
		t.Error("no error without a service manager")
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := Send("READY=1"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, err := c.Read(b); string(b[:n]) != "READY=1" || err != nil {
		t.Errorf("%q, %v", b[:n], err)
	}
}

func TestWatchdogIsForThisProcess(t *testing.T) {
	for _, tc := range []struct {
		pid, us string
		want    time.Duration
	}{{"", "30000000", 30 * time.Second}, {"1", "30000000", 0}, {"", "", 0}, {"", "-5", 0}, {"", "x", 0}} {
		env := map[string]string{"WATCHDOG_PID": tc.pid, "WATCHDOG_USEC": tc.us, "NOTIFY_SOCKET": "@x"}
		if got := Watchdog(func(k string) string { return env[k] }); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}
