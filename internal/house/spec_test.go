package house

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
)

// A document that a comment cites is in the repository and has the named section: hardware.md 3
// is docs/spec/hardware.md, "## 3.".
func TestCitationsResolve(t *testing.T) {
	fset, list := sources(t)
	cite := regexp.MustCompile(`(?:(docs/spec|docs|spec)/)?\b([a-z]+(?:-[a-z]+)*\.md)(?:[ \n]+([0-9]+)\b)?`)
	text := map[string]string{}
	find := func(dir, name string) (string, bool) {
		dirs := []string{"docs/spec", "docs", "."}
		switch dir {
		case "docs/spec", "spec":
			dirs = []string{"docs/spec"}
		case "docs":
			dirs = []string{"docs"}
		}
		for _, d := range dirs {
			path := filepath.Join(d, name)
			if s, ok := text[path]; ok {
				return s, true
			}
			if b, err := os.ReadFile(filepath.Join(root, path)); err == nil {
				text[path] = string(b)
				return string(b), true
			}
		}
		return "", false
	}
	cited := 0
	for _, s := range list {
		for _, group := range s.file.Comments {
			for _, m := range cite.FindAllStringSubmatch(group.Text(), -1) {
				cited++
				at := fset.Position(group.Pos())
				doc, ok := find(m[1], m[2])
				if !ok {
					t.Errorf("%s: %s is not in the repository", at, m[0])
				} else if n := m[3]; n != "" && !strings.Contains(doc, "\n## "+n+". ") {
					t.Errorf("%s: %s has no section %s", at, m[2], n)
				}
			}
		}
	}
	if cited < 200 {
		t.Errorf("only %d citations were found", cited)
	}
}

// docs/spec/hardware.md has each register with its offset, and each counter at its place.
func TestSpecHasEachRegister(t *testing.T) {
	doc := read(t, filepath.Join("docs", "spec", "hardware.md"))
	queues, peek := read(t, filepath.Join("docs", "spec", "queues.md")), read(t, filepath.Join("docs", "spec", "peek.md"))
	gsas := read(t, filepath.Join("docs", "spec", "gsas.md"))
	sections := regexp.MustCompile(`(?m)^## `).Split(doc, -1)
	of := func(w device.WindowID) string {
		if w == device.MBOX {
			w = device.PL // described in its section
		}
		for _, s := range sections {
			if strings.Contains(strings.SplitN(s, "\n", 2)[0], "`"+w.String()+"`") {
				return s
			}
		}
		return ""
	}
	for _, r := range device.Registers() {
		s := of(r.Window)
		name := r.Name
		at := r.Offset
		switch {
		case strings.HasPrefix(name, "PAYLOAD") && name != "PAYLOAD0":
			continue // they follow PAYLOAD0
		case strings.HasPrefix(name, "EVTQ_"), strings.HasPrefix(name, "CMDQ_"), name == "WORDS":
			s = queues + peek
		case strings.HasPrefix(name, "GSAS_"):
			s = gsas
		case strings.HasPrefix(name, "PEEK_"): // PEEK_BLOCK_NAME, NAME at its place in the block
			s, name = peek, name[strings.LastIndexByte(name, '_')+1:]
			at %= device.PeekChannelStride
			if !strings.HasPrefix(r.Name, "PEEK_CHANNEL_") {
				at %= device.PeekEntryStride
			}
		}
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(s) {
			t.Errorf("window %v: %s is not named", r.Window, name)
			continue
		}
		switch {
		case r.Window == device.SMMU && at >= device.SMMUBanks:
			at -= device.SMMUBanks
		case r.Window == device.SMMU:
			at %= device.SMMUGR1
		case r.Window == device.MBOX:
			at %= device.PageSize
		}
		want := fmt.Sprintf(`%s(\[n\])? 0x0*%x\b|0x0*%x( \+ [^|]*)? (\| [^|]*)?\b%s\b|%s %d\b|\+0x0*%x %s\b`, name, at, at, name, name, at, at, name)
		if r.Window == device.PL && strings.Contains(name, "FIFO_") {
			continue // the text states its place in the FIFO's block
		}
		if !regexp.MustCompile(want).MatchString(s) {
			t.Errorf("window %v: %s is not at %#x", r.Window, name, at)
		}
	}
	var names []string
	for c := range device.Counters {
		names = append(names, c.String())
	}
	if !strings.Contains(doc, strings.Join(names, " ")) {
		t.Errorf("the counters are not %q", names)
	}
}
