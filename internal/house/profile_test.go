package house

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	typeArguments = regexp.MustCompile(`\[[^\]]*\]`)
	pointer       = regexp.MustCompile(`\(\*(\w+)\)`)
)

// The profile by which pfd is built is one that the compiler reads, of functions that exist, and
// every build uses it.
func TestProfile(t *testing.T) {
	const file = "cmd/pfd/default.pgo"
	_, list := sources(t)
	declared := declarations(list)
	seen, gone := map[string]bool{}, []string{}
	for _, name := range strings.Split(goCommand(t, nil, "tool", "preprofile", "-i", file), "\n") {
		local, ours := strings.CutPrefix(typeArguments.ReplaceAllString(name, ""), module+"/")
		if !ours || seen[local] {
			continue
		}
		seen[local] = true
		// emu.(*Engine).pass.func1 is a function within emu.(*Engine).pass.
		dir, last := path.Split(local)
		pkg, function, _ := strings.Cut(pointer.ReplaceAllString(last, "$1"), ".")
		words := strings.Split(function, ".")
		names := declared[dir+pkg]
		if !names[words[0]] || len(words) > 1 && !names[words[0]+"."+words[1]] && !strings.HasPrefix(words[1], "func") {
			gone = append(gone, local)
		}
	}
	if len(seen) < 100 || !seen["emu.(*Engine).pass"] {
		t.Errorf("%s has %d functions of this module: it is not a profile of pfd under load (make pgo)", file, len(seen))
	}
	t.Logf("%d functions, %d of them gone", len(seen), len(gone))
	if len(gone) > len(seen)/4 {
		t.Errorf("%s: %d of its %d functions are gone, run make pgo: %q", file, len(gone), len(seen), gone)
	}
	const variant = module + "/emu [" + module + "/cmd/pfd]"
	if use := goCommand(t, []string{"GOFLAGS="}, "list", "-deps", "./cmd/pfd", "./cmd/exanetctl"); !strings.Contains(use, variant) {
		t.Errorf("go build ./cmd/pfd does not use %s: go list has no %s", file, variant)
	}
}
