package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/sandbox"
)

// starting are the system calls that pfd makes before it enters its sandbox, and those that
// create the sandbox.
var starting = []string{
	"capget", "fchmod", "fchmodat", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "listen",
	"lstat", "mkdirat", "prctl", "readlink", "renameat", "sched_getattr", "sched_setattr", "seccomp", "timerfd_create", "umask",
}

// The unit's filter permits exactly the calls of a pfd that accesses no process's memory
// itself.
func TestUnitFilter(t *testing.T) {
	text, err := os.ReadFile("../../contrib/systemd/pfd.service")
	if err != nil {
		t.Fatal(err)
	}
	var unit []string
	for line := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(strings.TrimSpace(line), "SystemCallFilter="); ok {
			unit = append(unit, strings.Fields(list)...)
		}
	}
	// The Go runtime's signal to its own process at a crash; pfd's own filter refuses it.
	const breaking = "kill"
	want := append(slices.Concat(sandbox.Runtime(), calls, starting), breaking)
	for _, name := range want {
		if !slices.Contains(unit, name) {
			t.Errorf("pfd calls %s, which its unit does not permit", name)
		}
	}
	for _, name := range unit {
		if name != "@default" && !slices.Contains(want, name) {
			t.Errorf("the unit permits %s, which pfd does not call", name)
		}
	}
}

// The sample configuration has exactly the keys of pfd, with their defaults, as comments.
func TestSampleConfiguration(t *testing.T) {
	text, err := os.ReadFile("../../contrib/config/pfd.toml")
	if err != nil {
		t.Fatal(err)
	}
	o := &options{Config: daemon.Default(), level: "info"}
	f := pflag.NewFlagSet("pfd", pflag.ContinueOnError)
	o.flags(f)
	want := map[string]string{}
	f.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(flagsOnly, f.Name) {
			want[f.Name] = f.DefValue
		}
	})
	want["window"], want["gsas-quota"], want["firmware-options"] = "256MiB", "1GiB", "all" // the meaning of ""
	var keys strings.Builder
	for line := range strings.Lines(string(text)) {
		if key, ok := strings.CutPrefix(line, "# "); ok && strings.Contains(line, " = ") {
			keys.WriteString(key)
		}
	}
	entries, err := config.Parse("pfd.toml", []byte(keys.String()))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		def, ok := want[e.Key]
		if !ok || e.Value != def && !(def == "0" && e.Value == "0.0") {
			t.Errorf("%s = %q: want %q, if it is a key", e.Key, e.Value, def)
		}
		delete(want, e.Key)
	}
	if len(want) > 0 {
		t.Errorf("missing: %q", want)
	}
}
