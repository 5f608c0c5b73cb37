package daemon

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/exanet/pfd/daemon/domain"
)

func TestParseGroups(t *testing.T) {
	got, err := ParseGroups("# groups\n\n1000 app 0x100 # of one user\n\t0  b.c_d-9\t65527\n", 8)
	want := []domain.Group{{UID: 1000, Name: "app", First: 0x100}, {UID: 0, Name: "b.c_d-9", First: 65527}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"1000 app", "1000 app 1 2", "me app 1", "-1 app 1", "4294967296 app 1", "1000 a/b 1", "1000 app 0", "1000 app 65528", "1000 app x", "1000 app -5"} {
		if got, err := ParseGroups("# first\n"+text, 8); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestParsePDIDs(t *testing.T) {
	for _, tt := range []struct {
		text        string
		first, last uint16
		ok          bool
	}{
		{"", 0, 0, true}, {"1-8", 1, 8, true}, {"0x100-0x1ff", 0x100, 0x1ff, true}, {"1-65534", 1, 65534, true}, {"1-65535", 0, 0, false},
		{"0-8", 0, 0, false}, {"7-7", 7, 7, true}, {"8-1", 0, 0, false}, {"1", 0, 0, false}, {"1-65536", 0, 0, false}, {"a-b", 0, 0, false}, {"1-8-9", 0, 0, false},
	} {
		first, last, err := ParsePDIDs(tt.text)
		if (err == nil) != tt.ok || uint16(first) != tt.first || uint16(last) != tt.last || err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %d to %d, %v", tt.text, first, last, err)
		}
	}
}

func TestDeviceConfig(t *testing.T) {
	for device, ok := range map[string]bool{
		"emu": true, "vfio-user:/run/node0.sock": true, "vfio-user:a,b": true,
		"": false, "vfio-user": false, "vfio-user:": false, "vfio-user:a,,b": false, "vfio:0000:01:00.0": true, "vfio:": false, "uio:0": false,
	} {
		c := Default()
		c.Socket, c.Device = "/tmp/s", device
		if err := c.Check(); (err == nil) != ok || err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v", device, err)
		}
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Window = 4096 },
		func(c *Config) { c.Window = 1<<20 + 1 },
		func(c *Config) { c.WindowIdle = -1 },
		func(c *Config) { c.Groups = "file" },
	} {
		c := Default()
		c.Socket = "/tmp/s"
		change(&c)
		if err := c.Check(); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// In a user namespace that does not map all users 65534 stands for several: the configuration
// must not name it.
func TestStrangersNumber(t *testing.T) {
	if os.Getenv("DAEMON_TEST_STRANGERS") == "" {
		c := exec.CommandContext(t.Context(), "unshare", "-U", os.Args[0], "-test.run=^TestStrangersNumber$", "-test.v")
		c.Env = append(os.Environ(), "DAEMON_TEST_STRANGERS=1")
		out, err := c.CombinedOutput()
		if strings.Contains(string(out), "unshare failed") {
			t.Skipf("no user namespace can be made here: %s", out)
		}
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if _, err := ParseGroups("65534 app 1", 8); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "user namespace") {
		t.Errorf("groups: %v", err)
	}
	cfg := Default()
	cfg.Device, cfg.DeviceUID = DeviceVFIOUser+"/x", 65534
	if err := cfg.checkDevice(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "--device-uid") {
		t.Errorf("device-uid: %v", err)
	}
}
