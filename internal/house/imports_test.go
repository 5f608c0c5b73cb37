package house

import (
	"slices"
	"strings"
	"testing"
)

// levels are the package table: a package may import only packages of lower levels. A package
// without an entry has its parent's level.
var levels = map[string]int{
	"cmd": 9, "examples": 9,

	"daemon":         8, // pfd's life and configuration
	"daemon/api":     7, // its control interface
	"daemon/session": 6, // its nodes and attachments

	"internal/workload": 7, "qemu": 6,
	"internal/suite": 6, // the fault suite: the driver on any bus

	"stream": 6,                // connections on rdma
	"gsas":   6,                // the global address space, on rdma
	"dht":    6, "dht/resp": 7, // a hash table on gsas, for Redis clients, too

	"trace/probe":   5,
	"daemon/domain": 5, "daemon/tree": 5, "fault": 5, "emu": 5, "vfio/mediate": 5, "internal/sim": 5, "rdma": 5,
	"internal/owner": 5, // the loop that emu and mediate run on

	// The protocols between daemon, emu and rdma.
	"attach": 4, "daemon/control": 4,
	"link":          4, // links between the pfds of several hosts
	"internal/live": 5, // follows a running pfd by control
	"space":         4, // the memory of a process, whatever the way
	"space/memport": 4, // by its own helper
	"space/shadow":  4, // pfd's own page tables, for devices without SVA

	"gup": 3, "soc": 3, "vfio/user": 3,

	"space/view": 2, // memory that processes share, mapped by pfd
	"space/proc": 2, "netlink": 2, "space/uffd": 2, "vfio": 2,

	"mailbox": 1, "packetizer": 1,
	"trace":          1, // records and the point where the probe reads them
	"internal/tally": 1, // counts of transfers

	"device": 0, "internal": 0,
}

// sideways are the permitted imports between packages of one level.
var sideways = map[string][]string{
	"packetizer":   {"mailbox"}, // sends its messages
	"dht":          {"gsas"},
	"space/view":   {"space/uffd"}, // registers its mappings with a userfaultfd
	"space":        {"space/memport"},
	"internal/sim": {"daemon/domain", "fault"}, // also runs the driver
	"emu":          {"internal/owner"},
	"vfio/mediate": {"internal/owner"},
}

// strangers must not be imported at all, not even indirectly.
var strangers = map[string][]string{
	"fault":         {"emu", "soc", "vfio"},
	"daemon/domain": {"fault", "emu", "soc", "vfio"},
	"rdma":          {"space/proc", "soc", "emu", "fault", "daemon/domain", "gup"},
	"gup":           {"netlink", "soc", "fault"},
	"internal/sim":  {"emu", "rdma", "internal/workload", "daemon/session"},
	"vfio/user":     {"device", "soc", "fault"},
	"vfio/kernel":   {"device", "soc", "fault"},
	"soc":           {"space/proc", "netlink", "gup", "attach"},
	"cmd":           {"soc", "fault", "daemon/domain", "space/proc", "gup"}, // directly, see below

	"daemon/session": {"daemon/control", "vfio"},
	"daemon/api":     {"vfio"},
}

// room returns the key of levels for a package.
func room(pkg string) (string, bool) {
	for p := pkg; ; {
		if _, ok := levels[p]; ok {
			return p, true
		}
		i := strings.LastIndex(p, "/")
		if i < 0 {
			return "", false
		}
		p = p[:i]
	}
}

// within reports whether pkg is p or below it.
func within(pkg, p string) bool { return pkg == p || strings.HasPrefix(pkg, p+"/") }

// own returns the packages of this module among words.
func own(words []string) []string {
	var list []string
	for _, w := range words {
		if rest, ok := strings.CutPrefix(w, module+"/"); ok {
			list = append(list, rest)
		}
	}
	return list
}

func TestImportsPointDown(t *testing.T) {
	out := goCommand(t, nil, "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	for line := range strings.Lines(out) {
		words := own(strings.Fields(line))
		if len(words) == 0 {
			continue
		}
		pkg, imports := words[0], words[1:]
		from, ok := room(pkg)
		if !ok {
			t.Errorf("%s has no level: add it to the table of this test", pkg)
			continue
		}
		for _, imp := range imports {
			to, ok := room(imp)
			switch {
			case !ok, from == to, levels[from] > levels[to], slices.Contains(sideways[from], to):
			case levels[from] == levels[to]:
				t.Errorf("%s imports %s, which has the same level", pkg, imp)
			default:
				t.Errorf("%s imports %s, which has a higher level", pkg, imp)
			}
		}
	}
}

func TestStrangers(t *testing.T) {
	out := goCommand(t, nil, "list", "-f", `{{.ImportPath}} {{join .Imports " "}}|{{join .Deps " "}}`, "./...")
	for line := range strings.Lines(out) {
		direct, deps, _ := strings.Cut(line, "|")
		words := own(strings.Fields(direct))
		if len(words) == 0 {
			continue
		}
		pkg, reached := words[0], own(strings.Fields(deps))
		if within(pkg, "cmd") {
			reached = words[1:] // commands import everything through daemon
		}
		for p, list := range strangers {
			if !within(pkg, p) {
				continue
			}
			for _, stranger := range list {
				for _, r := range reached {
					if within(r, stranger) {
						t.Errorf("%s must not import %s, but reaches %s", pkg, stranger, r)
					}
				}
			}
		}
	}
}

// soc and the codecs are pure: they build for another system than Linux, so nothing in them can
// depend on Linux.
func TestPurePackagesBuildElsewhere(t *testing.T) {
	pure := []string{"device", "mailbox", "packetizer", "daemon/control", "soc", "internal/sim"}
	out := goCommand(t, nil, "list", "./...")
	args := []string{"vet"}
	for _, pkg := range own(strings.Fields(out)) {
		for _, p := range pure {
			if within(pkg, p) {
				args = append(args, "./"+pkg)
			}
		}
	}
	if len(args) < 1+len(pure) {
		t.Errorf("only %q are left of the pure packages %q", args[1:], pure)
	}
	goCommand(t, []string{"GOOS=darwin", "CGO_ENABLED=0"}, args...)
}
