package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exanet/pfd/link/hosts"
)

// The files of a cluster and of a further host are made, and the output says what to do with them.
func TestHostInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	code, out, errs := ctl("host", "init", dir, "a=192.0.2.1", "b=2001:db8::1,nodes=4")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for _, want := range []string{
		"the files of cluster lab. Keep " + dir + "/ca.key secret",
		"Host a: address 192.0.2.1:9480, nodes 0-0, PDIDs 0x100-0x1ff",
		"Host b: address [2001:db8::1]:9480, nodes 1-4, PDIDs 0x200-0x2ff",
		"  scp " + strings.Join([]string{dir + "/hosts.toml", dir + "/ca.pem", dir + "/b.pem", dir + "/b.key", dir + "/b.pfd.toml", dir + "/groups"}, " ") + " root@[2001:db8::1]:/etc/exanet/\n",
		"  ssh root@2001:db8::1 'cd /etc/exanet && touch pfd.toml && sed -i -E \"/^(nodes|node-base|pdid-range|groups) *=/d\" pfd.toml && cat b.pfd.toml >>pfd.toml && chown exanet-host b.key && echo HOSTD_OPTIONS=--name=b >>/etc/default/exanet-hostd && systemctl restart pfd && systemctl enable exanet-hostd && systemctl restart exanet-hostd'\n",
		"before you copy " + dir + "/groups, add a line to it for each user",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	code, out, errs = ctl("-j", "host", "add", dir, "c=c.example:77")
	var made []hostMade
	if err := json.Unmarshal([]byte(out), &made); code != exitOK || err != nil || len(made) != 1 || made[0].Nodes != "5-5" || made[0].Address != "c.example:77" || len(made[0].Files) != 6 {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	code, out, _ = ctl("host", "add", dir, "d=192.0.2.4")
	if want := "  scp " + dir + "/hosts.toml root@c.example:/etc/exanet/ && ssh root@c.example systemctl reload exanet-hostd\n"; code != exitOK || !strings.Contains(out, want) || strings.Contains(out, "root@192.0.2.4 systemctl reload") {
		t.Errorf("exit code %d, %s", code, out)
	}
	for _, name := range []string{"b.pem", "b.key"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	code, out, _ = ctl("host", "add", dir, "b=2001:db8::1,nodes=4")
	if want := "  scp " + strings.Join([]string{dir + "/hosts.toml", dir + "/b.pem", dir + "/b.key"}, " ") + " root@[2001:db8::1]:/etc/exanet/\n" +
		"  ssh root@2001:db8::1 'chown exanet-host /etc/exanet/b.key && systemctl reload-or-restart exanet-hostd'\n\nOn all other"; code != exitOK || !strings.Contains(out, want) {
		t.Errorf("exit code %d, %s", code, out)
	}
	if f, err := hosts.Read(filepath.Join(dir, "hosts.toml")); err != nil || f.Cluster != "lab" || len(f.Hosts) != 4 {
		t.Errorf("%+v, %v", f, err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"init", dir}, exitUsage, "an argument is missing"},
		{[]string{"init", "a=x", "b=y"}, exitUsage, `"a=x" is a host, and the directory is missing`},
		{[]string{"init", dir, "a"}, exitUsage, `"a": want HOST=ADDRESS or HOST=ADDRESS,nodes=N`},
		{[]string{"init", dir, "a=x,node=1"}, exitUsage, `"a=x,node=1": want HOST=ADDRESS`},
		{[]string{"init", dir, "a=x,nodes=many"}, exitUsage, `want HOST=ADDRESS`},
		{[]string{"init", dir, "a=x,nodes=65"}, exitUsage, "65 nodes: want 1 to 64"},
		{[]string{"init", dir, "a=x", "a=y"}, exitUsage, "the name is also that of the host at x:9480"},
		{[]string{"init", dir, "a=x", "--cluster", "a b"}, exitUsage, `cluster "a b": want a name`},
		{[]string{"init", dir, "a=x"}, exitFailed, "nothing is overwritten: " + dir + "/ca.pem exists"},
		{[]string{"add", dir, "a=192.0.2.1"}, exitFailed, "nothing is overwritten: " + dir + "/a.pem exists"},
		{[]string{"add", dir, "b=192.0.2.1:9480"}, exitUsage, "hosts.toml:"},
		{[]string{"add", dir + "x", "b=192.0.2.2"}, exitFailed, "name the directory where exanetctl host init was run"},
		{[]string{"add", dir}, exitUsage, "an argument is missing"},
	} {
		code, out, errs := ctl(append([]string{"host"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit code %d, want %d, %s%s\twant %s", c.args, code, c.code, out, errs, c.want)
		}
	}
	if _, err := os.Stat(dir + "x"); err == nil {
		t.Errorf("an error has made %sx", dir)
	}
}
