package main

import (
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// Hidden numbers are not shown as zero, and the reason for an empty list is named.
func TestHostWords(t *testing.T) {
	b := []control.Host{{Name: "b", State: control.HostUp}}
	for _, c := range []struct {
		hosts control.Hosts
		want  string
	}{
		{control.Hosts{Hostd: true, Hosts: b}, "b,,,\nonly root and the user of pfd see what the links carry"},
		{control.Hosts{Hostd: true, SeesAll: true, Hosts: b}, "b,0,0,\n"},
		{control.Hosts{Hostd: true, SeesAll: true, Hosts: []control.Host{{Name: "c", State: control.HostIdle, Error: "cut"}, {Name: "d", State: control.HostConnecting, Draining: true, Error: "refused"}}}, "c,0,0,\nd,0,0,refused (0s ago)\n"},
		{control.Hosts{Hostd: true, SeesAll: true}, "no other host is in the list"},
		{control.Hosts{Hostd: true, SeesAll: true, Hosts: b, Certificate: "of host a", CertificateLeftNS: int64(170 * time.Hour)}, "the certificate of host a ends in 7 days"},
		{control.Hosts{Hostd: true, SeesAll: true, Hosts: b, Certificate: "of the authority", CertificateLeftNS: -1}, "the certificate of the authority has ended"},
		{control.Hosts{SeesAll: true}, "no other host: exanet-hostd is not connected"},
		{control.Hosts{Hostd: true, SeesAll: true, Refused: "host b has nodes 1 there"}, "pfd refuses the list of hosts: host b has nodes 1 there"},
		{control.Hosts{Hostd: true, SeesAll: true, Hosts: b, Refused: "host b"}, "pfd refuses the list of hosts: host b"},
	} {
		c.hosts.Version = 1
		d := startDaemon(t, map[string]any{control.PathHosts: c.hosts})
		_, out, errs := ctl("host", "--columns", "host,sent,connects,error", "-o", "csv", "--socket", d.socket)
		if got := out + errs; !strings.Contains(got, c.want) {
			t.Errorf("%+v:\n%s\twant %s", c.hosts, got, c.want)
		}
	}
}

// The name of this host is told from one that no host has.
func TestOwnHost(t *testing.T) {
	d := startDaemon(t, map[string]any{control.PathHosts: control.Hosts{Version: 1, Self: "a", Hosts: []control.Host{{Name: "b"}}}})
	for name, want := range map[string]string{"a": "a is this host", "z": "no other host z"} {
		if code, _, errs := ctl("host", name, "--socket", d.socket); code != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("code %d, %s, want %s", code, errs, want)
		}
	}
}
