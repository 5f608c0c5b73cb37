package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
)

func (r *running) reload(c Config) (Reloaded, error) {
	return r.Reload(r.ctx(), func() (Config, error) { return c, nil })
}

func TestReload(t *testing.T) {
	var level slog.LevelVar
	r := start(t, func(c *Config) { c.Level = &level })
	next := r.cfg
	next.LogLevel, next.TimeoutUS, next.GuardUS = slog.LevelDebug, 1234, 56789
	next.HandshakesPerUID, next.Nodes, next.SourceFaults = 3, 7, SourceTimeout
	got, err := r.reload(next)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"log-level", "timeout-us", "guard-us", "handshakes-per-uid"}; !slices.Equal(got.Changed, want) {
		t.Errorf("changed %q, want %q", got.Changed, want)
	}
	if want := []string{"nodes", "source-faults"}; !slices.Equal(got.Restart, want) {
		t.Errorf("for a restart %q, want %q", got.Restart, want)
	}
	if level.Level() != slog.LevelDebug || r.host.Handshakes().Per() != 3 {
		t.Errorf("level %v, %d handshakes", level.Level(), r.host.Handshakes().Per())
	}
	s, err := r.client.Status(r.ctx())
	if err != nil || s.TimeoutUS != 1234 || s.GuardUS != 56789 || s.Nodes != 2 || s.SourceFaults != SourceFIFO {
		t.Errorf("status %+v, %v", s, err)
	}
	r.fake.do(func() {
		for i, n := range r.fake.nodes {
			if n.Get(device.PL, device.PLTimeoutUS) != 1234 || n.Get(device.PL, device.PLGuardUS) != 56789 {
				t.Errorf("node %d has other time-outs", i)
			}
		}
	})
	// The same file once more changes nothing; the keys that need a restart are reported again.
	if got, err = r.reload(next); err != nil || len(got.Changed) != 0 || len(got.Restart) != 2 {
		t.Errorf("again: %+v, %v", got, err)
	}
	bad := next
	bad.TimeoutUS = 0
	if _, err := r.reload(bad); !errors.Is(err, ErrConfig) {
		t.Errorf("a configuration that cannot be: %v", err)
	}
	if s, err := r.client.Status(r.ctx()); err != nil || s.TimeoutUS != 1234 {
		t.Errorf("after an error: %+v, %v", s, err)
	}
}

// A new quota holds for the next process; the group size needs a restart.
func TestReloadLimits(t *testing.T) {
	r := start(t, func(c *Config) { c.Quota, c.GroupSize = 1, 3 })
	attach := func() error {
		c, err := dialAndGreet(r.ctx(), r.attachSocket(), hello())
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	}
	for i, want := range []bool{true, false} {
		if err := attach(); (err == nil) != want {
			t.Errorf("process %d: %v", i, err)
		}
	}
	next := r.cfg
	next.Quota, next.GroupSize = 2, 16
	got, err := r.reload(next)
	if err != nil || !slices.Equal(got.Changed, []string{"quota"}) || !slices.Equal(got.Restart, []string{"group-size"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for i, want := range []bool{true, false} {
		if err := attach(); (err == nil) != want {
			t.Errorf("process %d after the reload: %v", i, err)
		}
	}
}

// The values that limits accept.
func TestLimitsConfig(t *testing.T) {
	for _, tt := range []struct {
		change func(*Config)
		ok     bool
	}{
		{func(*Config) {}, true},
		{func(c *Config) { c.Quota, c.GroupSize = 1, 1 }, true},
		{func(c *Config) { c.Quota = 17 }, false},
		{func(c *Config) { c.Quota = -1 }, false},
		{func(c *Config) { c.GroupSize = 17 }, false},
		{func(c *Config) { c.GroupSize = -1 }, false},
		{func(c *Config) { c.FirstPDID, c.LastPDID = 100, 115 }, true},
		{func(c *Config) { c.FirstPDID, c.LastPDID = 100, 114 }, false}, // no group fits
		{func(c *Config) { c.FirstPDID, c.LastPDID, c.GroupSize = 100, 107, 8 }, true},
	} {
		c := Default()
		c.Socket = "/tmp/s"
		tt.change(&c)
		if err := c.Check(); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("quota %d, group size %d, PDIDs %d to %d: %v", c.Quota, c.GroupSize, c.FirstPDID, c.LastPDID, err)
		}
	}
}

// manager is a service manager's socket.
func manager(t *testing.T) func() string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return func() string {
		b := make([]byte, 4096)
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

func TestReloadIsToldToTheServiceManager(t *testing.T) {
	next := manager(t)
	r := start(t)
	next() // READY
	if _, err := r.reload(r.cfg); err != nil {
		t.Fatal(err)
	}
	if s := next(); !strings.HasPrefix(s, "RELOADING=1\nMONOTONIC_USEC=") || strings.HasSuffix(s, "=0") {
		t.Errorf("told %q", s)
	}
	if s := next(); s != "READY=1" {
		t.Errorf("told %q", s)
	}
}

// A READY that the service manager does not get is sent again: it would stop a silent service.
func TestReadyIsSaidAgain(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	t.Setenv("NOTIFY_SOCKET", name)
	var out syncBuffer
	start(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&out, nil)) })
	for deadline := time.Now().Add(patience); !strings.Contains(out.String(), `msg="service manager not told" what="READY=1" err=`); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("its failure is not told: %s", out.String())
		}
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 256)
	if n, err := c.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "READY=1\nSTATUS=2 nodes\n") {
		t.Errorf("told %q, %v", b[:n], err)
	}
}

// The watchdog is notified as long as pfd's engine answers.
func TestWatchdog(t *testing.T) {
	next := manager(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	var out syncBuffer
	r := start(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&out, nil)) })
	next() // READY
	for range 3 {
		if s := next(); s != "WATCHDOG=1" {
			t.Fatalf("told %q", s)
		}
	}
	gate := make(chan struct{})
	r.fake.post(func() { <-gate })
	for deadline := time.Now().Add(patience); !strings.Contains(out.String(), "watchdog is not fed"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a stuck engine is not noticed")
		}
	}
	close(gate)
	for range 3 {
		if s := next(); s != "WATCHDOG=1" {
			t.Fatalf("told %q", s)
		}
	}
}

// syncBuffer is a buffer that several goroutines use.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Reload knows each value of the configuration that comes from a flag: none changes without a word.
func TestSettings(t *testing.T) {
	elsewhere := map[string]string{
		"MakeDirectory": "of the default socket", "Log": "made once", "Level": "is set by Reload", "LogLimit": "a part of Log",
		"LogFile": "a part of Log", "Traced": "a part of --trace", "Discard": "not a flag",
	}
	typ := reflect.TypeFor[Config]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if elsewhere[f.Name] != "" {
			continue
		}
		var a, b Config
		set(t, reflect.ValueOf(&b).Elem().Field(i))
		if !slices.ContainsFunc(settings, func(s setting) bool { return s.value(&a) != s.value(&b) }) {
			t.Errorf("Config.%s is in no setting", f.Name)
		}
	}
}

// set changes a zero value.
func set(t *testing.T, v reflect.Value) {
	t.Helper()
	switch {
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint(1)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.Kind() == reflect.String:
		v.SetString("x")
	case v.Kind() == reflect.Struct:
		set(t, v.Field(0))
	default:
		t.Fatalf("no value for %v", v.Type())
	}
}
