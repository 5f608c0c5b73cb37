package hosts

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/link/handover"
)

const (
	hostA = "[[host]]\nname = \"a\"\naddress = \"192.0.2.1:9480\"\nnodes = \"0-3\"\npdids = \"0x100-0x1ff\"\n"
	hostB = "[[host]]\nname = \"b\"\naddress = \"[2001:db8::1]:1\"\nnodes = \"4\"\npdids = \"512-767\"\nudp = true\n"
	head  = "cluster = \"lab\"\n"
)

func TestParse(t *testing.T) {
	f, err := Parse("d/hosts.toml", []byte(head+"revoked = [\"0A:1F\", \"serial=FF\"]\n"+hostA+hostB))
	if err != nil {
		t.Fatal(err)
	}
	want := &handover.Table{Cluster: "lab", Self: "b", TLS: true, Revoked: []string{"a1f", "ff"}, Hosts: []handover.Host{
		{Name: "a", Address: "192.0.2.1:9480", Nodes: [2]device.NodeID{0, 3}, PDIDs: [2]device.PDID{0x100, 0x1ff}},
		{Name: "b", Address: "[2001:db8::1]:1", Nodes: [2]device.NodeID{4, 4}, PDIDs: [2]device.PDID{0x200, 0x2ff}, UDP: true},
	}}
	if got, err := f.Table("b"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := f.Table("c"); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), `no host "c": its hosts are a, b`) {
		t.Error(err)
	}
	if f, err = Parse("hosts.toml", []byte(head+"tls = \"off\"\ntrusted-network = \"192.0.2.0/24\"\n"+hostA)); err != nil || f.Secure() {
		t.Errorf("%+v, %v", f, err)
	}
	if c, err := f.Credentials("a"); c != nil || err != nil {
		t.Errorf("credentials without TLS: %v, %v", c, err)
	}
}

// Each error names the file and the line, the values of both sides, and the remedy.
func TestBadFiles(t *testing.T) {
	b := func(old, new string) string {
		if !strings.Contains(hostB, old) {
			t.Fatalf("%q is not in the file", old)
		}
		return head + hostA + strings.Replace(hostB, old, new, 1)
	}
	for _, c := range []struct{ text, want string }{
		{"", `hosts.toml: cluster "": want a name`},
		{"cluster = \"a b\"\n" + hostA, `hosts.toml:1: cluster "a b": want a name`},
		{"cluster =\n", "hosts.toml:1: "},
		{"cluster = 1\n", "hosts.toml:1: cluster: want a text in quotes"},
		{head + head + hostA, "hosts.toml:2: "},
		{head, "hosts.toml: 0 hosts: want 1 to 256, each with a [[host]]"},
		{head + "groups = 1\n" + hostA, `hosts.toml:2: unknown key "groups": the keys are cluster, tls, `},
		{head + "[[hosts]]\n", `hosts.toml:2: unknown key "hosts": the keys are cluster, tls, `},
		{head + hostA + "node = 1\n", `hosts.toml:7: unknown key "host.node": the keys are name, address, nodes, `},
		{head + "host = \"a\"\n", "hosts.toml:2: host: want a [[host]]"},
		{head + "[host]\n[host]\n", "hosts.toml:3: table host already exists: give a key once, and begin each host with [[host]]"},
		{head + "[host]\nname = \"a\"\n", "hosts.toml:2: host a: address"},
		{head + "tls = true\n", `hosts.toml:2: tls: want "on" or "off"`},
		{head + "trusted-network = 1\n", "hosts.toml:2: trusted-network: want a text"},
		{head + "revoked = \"x\"\n", "hosts.toml:2: revoked: want a list"},
		{head + "tls = \"no\"\n" + hostA, `hosts.toml:2: tls "no": want "on" or "off"`},
		{head + "tls = \"off\"\n" + hostA, `hosts.toml:2: trusted-network "": tls = "off" needs the network`},
		{head + "tls = \"off\"\ntrusted-network = \"192.0.2.1\"\n" + hostA, `hosts.toml:3: trusted-network "192.0.2.1": tls = "off" needs`},
		{head + "trusted-network = \"192.0.2.0/24\"\n" + hostA, `hosts.toml:2: trusted-network "192.0.2.0/24": it has no effect with tls = "on"`},
		{head + "tls = \"off\"\ntrusted-network = \"192.0.3.0/24\"\n" + hostA, `hosts.toml:6: host a: address "192.0.2.1:9480" is not in trusted-network "192.0.3.0/24"`},
		{head + "revoked = [\"zz\"]\n" + hostA, `hosts.toml:2: revoked "zz": want the serial number`},
		{head + "revoked = [\"-1\"]\n" + hostA, `hosts.toml:2: revoked "-1": want`},
		{b(`name = "b"`, `name = ""`), `hosts.toml:8: host 2: name "": want 1 to 63`},
		{b("name = \"b\"\n", ""), `hosts.toml:7: host 2: name "": want 1 to 63`},
		{b(`"b"`, `"a"`), "hosts.toml:8: host a: the name is also that of the host at 192.0.2.1:9480 (line 3)"},
		{b("[2001:db8::1]:1", "192.0.2.1"), `hosts.toml:9: host b: address "192.0.2.1": want HOST:PORT, as address = "192.0.2.1:9480"`},
		{b("[2001:db8::1]:1", "x:99999"), `hosts.toml:9: host b: address "x:99999": port: want 1 to 65535`},
		{b("[2001:db8::1]:1", "192.0.2.1:9480"), `hosts.toml:9: host b: address "192.0.2.1:9480" is also that of host a (line 4)`},
		{b(`"4"`, `"3-5"`), `hosts.toml:10: host b: nodes "3-5" overlap nodes "0-3" of host a (line 5)`},
		{b(`"4"`, `"5-4"`), `hosts.toml:10: host b: nodes "5-4": want A-B, 0 to 65534`},
		{b(`"4"`, `"4-65535"`), `hosts.toml:10: host b: nodes "4-65535": want A-B`},
		{b(`"4"`, `"4-68"`), `hosts.toml:10: host b: nodes "4-68" are 65: a pfd has at most 64`},
		{b(`"4"`, `4`), "hosts.toml:10: nodes: want a text, as \"0-3\""},
		{b("512-767", "0x1ff-0x2ff"), `hosts.toml:11: host b: pdids "0x1ff-0x2ff" overlap pdids "0x100-0x1ff" of host a (line 6)`},
		{b("512-767", "0-255"), `hosts.toml:11: host b: pdids "0-255": want A-B, 1 to `},
		{b("pdids = \"512-767\"\n", ""), `hosts.toml:7: host b: pdids "": want A-B, 1 to `},
		{b("true", "1"), "hosts.toml:12: udp: want true or false"},
		{"\xff\xfec\x00", "UTF-16"},
	} {
		f, err := Parse("hosts.toml", []byte(c.text))
		if f != nil || !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n\t%v, want\n\t%s", c.text, err, c.want)
		}
	}
	dir := t.TempDir()
	for path, remedy := range map[string]string{dir: ": name the file in it, as " + dir + "/hosts.toml", filepath.Join(dir, "none.toml"): ": copy it from where exanetctl host init was run"} {
		if _, err := Read(path); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), remedy) {
			t.Error(err)
		}
	}
}

// made returns a directory with the files of hosts a and b.
func made(t *testing.T, now time.Time) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "lab")
	ready, err := Init(dir, "lab", []New{{"a", "192.0.2.1", 4}, {"b", "[2001:db8::1]:77", 1}}, now)
	if err != nil || len(ready) != 2 {
		t.Fatalf("%+v, %v", ready, err)
	}
	return dir
}

func TestInitAndAdd(t *testing.T) {
	now := time.Now()
	umask := syscall.Umask(0o077) // files that all hosts need are readable whatever the umask
	dir := made(t, now)
	syscall.Umask(umask)
	for _, name := range []string{FileName, "ca.pem", "groups", "a.pem", "a.pfd.toml"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	path := filepath.Join(dir, FileName)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Add(dir, New{"c", "c.example", 2}, now)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Host{
		Name: "c", Address: "c.example:9480", Nodes: "5-6", PDIDs: "0x300-0x3ff", nodes: [2]device.NodeID{5, 6}, pdids: [2]device.PDID{0x300, 0x3ff},
	}); r.Host != want {
		t.Errorf("%+v", r.Host)
	}
	after, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(after), string(before)) {
		t.Errorf("the file was\n%s\nand is\n%s (%v)", before, after, err)
	}
	part, err := os.ReadFile(filepath.Join(dir, "c.pfd.toml"))
	if err != nil || !strings.HasSuffix(string(part), "nodes = 2\nnode-base = 5\npdid-range = \"0x300-0x3ff\"\ngroups = \"/etc/exanet/groups\"\n") {
		t.Errorf("%s, %v", part, err)
	}
	f, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		c, err := f.Credentials(name)
		if err != nil || c == nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Stat(filepath.Join(dir, name+".key")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, caKey)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	// Nothing is overwritten, and after an error nothing is left.
	if _, err := Init(dir, "lab", []New{{"a", "x", 1}}, now); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "ca.pem exists") {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "d.key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []struct {
		n    New
		is   error
		text string
	}{
		{New{"d", "d", 1}, ErrExists, "d.key exists"},
		{New{"a", "192.0.2.1", 0}, ErrExists, "a.pem exists"},
		{New{"a", "192.0.2.9", 1}, ErrFile, `address is "192.0.2.1:9480", not "192.0.2.9:9480": for another host`},
		{New{"c", "c.example", 3}, ErrFile, "it has 2 nodes, not 3: a certificate is renewed without nodes="},
		{New{"e", "c.example:9480", 1}, ErrFile, "is also that of host c"},
		{New{"e/", "e", 1}, ErrFile, "want 1 to 63 letters"},
		{New{"e", "", 1}, ErrFile, "want HOST:PORT"},
		{New{"e", "e", 65}, ErrFile, "65 nodes: want 1 to 64"},
	} {
		if _, err := Add(dir, n.n, now); !errors.Is(err, n.is) || !strings.Contains(err.Error(), n.text) {
			t.Errorf("%+v: %v", n.n, err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(after) {
		t.Errorf("the file is\n%s (%v)", now, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "d.pem")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("an unfinished host has left files")
	}

	// A host whose certificate is revoked gets a new one, with the same numbers.
	for _, name := range []string{"c.pem", "c.key"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := Add(dir, New{"c", "c.example", 0}, now); err != nil || r.Nodes != "5-6" || !r.Renewed || len(r.Files) != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.Remove(filepath.Join(dir, caKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := Add(dir, New{"e", "e", 1}, now); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "where exanetctl host init was run") {
		t.Error(err)
	}
	if _, err := Add(t.TempDir(), New{"e", "e", 1}, now); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "host init") {
		t.Error(err)
	}
}

// The blocks of PDIDs run out with an error, not before the 255th host.
func TestManyHosts(t *testing.T) {
	var list []New
	for i := range 255 {
		list = append(list, New{fmt.Sprintf("h%d", i), fmt.Sprintf("h%d", i), 64})
	}
	text, err := addHosts("hosts.toml", []byte(head), nil, list)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Parse("hosts.toml", text)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Hosts[254]; got.PDIDs != fmt.Sprintf("0xff00-%#x", uint16(device.MaxPDID)) {
		t.Errorf("%+v", got)
	}
	if _, err := addHosts("hosts.toml", text, f, []New{{"x", "x", 1}}); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "are left") {
		t.Error(err)
	}
}

// A certificate is of no use with another key, CA, range, cluster or time.
func TestCredentials(t *testing.T) {
	now := time.Now()
	other, expired, early := made(t, now), made(t, now.Add(-2*lifetime)), made(t, now.Add(2*early))
	for _, c := range []struct {
		name   string
		change func(dir string) error
		want   string
	}{
		{"no CA", func(dir string) error { return os.Remove(filepath.Join(dir, "ca.pem")) }, "hosts.toml: the certificate of the cluster: open DIR/ca.pem: no such file"},
		{"no certificate", func(dir string) error { return os.Remove(filepath.Join(dir, "a.pem")) }, "hosts.toml:5: host a: the certificate: open DIR/a.pem: no such file"},
		{"no key", func(dir string) error { return os.Remove(filepath.Join(dir, "a.key")) }, "hosts.toml:5: host a: certificate DIR/a.pem without its key: open DIR/a.key: no such file"},
		{"open key", func(dir string) error { return os.Chmod(filepath.Join(dir, "a.key"), 0o644) }, "chmod 600 DIR/a.key"},
		{"the key of another", func(dir string) error { return os.Rename(filepath.Join(dir, "b.key"), filepath.Join(dir, "a.key")) }, "certificate DIR/a.pem, key DIR/a.key and DIR/ca.pem: the certificate of host a and its key: tls: private key does not match public key"},
		{"the certificate of another host", func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "b.key"), filepath.Join(dir, "a.key")), os.Rename(filepath.Join(dir, "b.pem"), filepath.Join(dir, "a.pem")))
		}, `is that of host "b", not of host a`},
		{"another CA", func(dir string) error {
			return os.Rename(filepath.Join(other, "ca.pem"), filepath.Join(dir, "ca.pem"))
		}, "x509: certificate signed by unknown authority"},
		{"not yet valid", func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.Rename(early, dir))
		}, "set the clock"},
		{"an empty CA", func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.pem"), nil, 0o600) }, "the certificate authority has no certificate"},
		{"expired", func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.Rename(expired, dir))
		}, "has expired"},
		{"revoked", func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, "a.pem"))
			if err != nil {
				return err
			}
			block, _ := pem.Decode(b)
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return err
			}
			return prepend(dir, fmt.Sprintf("revoked = [\"%X\"]\n", cert.SerialNumber))
		}, "is revoked"},
	} {
		dir := made(t, now)
		if err := c.change(dir); err != nil {
			t.Fatal(err)
		}
		f, err := Read(filepath.Join(dir, FileName))
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Credentials("a")
		if want := strings.ReplaceAll(c.want, "DIR", dir); got != nil || !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", c.name, err, want)
		}
	}
}

func prepend(dir, line string) error {
	path := filepath.Join(dir, FileName)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte(line), b...), 0o600)
}

// The certificates serve both ends of a connection.
func TestCertificatesServeTLS(t *testing.T) {
	f, err := Read(filepath.Join(made(t, time.Now()), FileName))
	if err != nil {
		t.Fatal(err)
	}
	roots, certs := x509.NewCertPool(), []tls.Certificate{}
	for _, name := range []string{"a", "b"} {
		c, err := f.Credentials(name)
		if err != nil {
			t.Fatal(err)
		}
		roots.AppendCertsFromPEM([]byte(c.CA))
		pair, err := tls.X509KeyPair([]byte(c.Certificate), []byte(c.Key))
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, pair)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		for _, c := range certs {
			if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Error(err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(head + hostA + hostB)
	f.Add("cluster = \"c\"\ntls = \"off\"\ntrusted-network = \"::/0\"\nhost = [{ name = \"a\", address = \"[::1]:1\", nodes = \"0\", pdids = \"1-2\" }]\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("hosts.toml", []byte(text))
		if err != nil {
			if !errors.Is(err, ErrFile) {
				t.Errorf("%v does not match ErrFile", err)
			}
			return
		}
		table, err := file.Table(file.Hosts[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&handover.Message{Table: table}).Encode(); err != nil && !strings.Contains(err.Error(), "at most 65536") {
			t.Errorf("%q: %v", text, err)
		}
	})
}
