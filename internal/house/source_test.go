package house

import (
	"bytes"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxLines is how long a Go file may be.
const maxLines = 700

func TestFilesAreShort(t *testing.T) {
	_, list := sources(t)
	for _, s := range list {
		if n := bytes.Count(s.text, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, at most %d: one concept a file", s.path, n, maxLines)
		}
	}
}

// unsafeFiles need unsafe for a mapping or a system call.
var unsafeFiles = []string{
	"attach/words.go",
	"emu/apart.go",
	"internal/futex/futex_linux.go",
	"internal/keeper/keeper_linux.go",
	"internal/mmio/mmio.go", // registers
	"internal/owner/wait_linux.go",
	"internal/sandbox/sandbox_linux.go",
	"internal/suite/rig.go",
	"vfio/mediate/scratchpad.go",
	"space/memport/layout.go",
	"space/proc/syscall_linux.go",
	"space/proc/proctest/child_linux.go",
	"gsas/map_linux.go", // words of a mapping
	"rdma/memory_linux.go",
	"space/uffd/ioctl_linux.go",
	"space/view/memory_linux.go",
	"space/view/word_linux.go",
	"space/view/word_race_linux.go",
	"space/shadow/tables_linux.go",
	"vfio/kernel/raw_linux.go",
	"vfio/user/sock_linux.go",
	"internal/workload/buffer.go",
	"internal/workload/cow.go",
	"internal/workload/pagemap.go",
}

func TestUnsafeFiles(t *testing.T) {
	_, list := sources(t)
	for _, s := range list {
		if !s.test && s.imports("unsafe") && !slices.Contains(unsafeFiles, s.path) {
			t.Errorf("%s imports unsafe: move that to a file that already does, or name this one in unsafeFiles with a reason", s.path)
		}
		if s.test && s.imports("unsafe") && slices.Contains(unsafeFiles, s.path) {
			t.Errorf("%s is a test and needs no entry in unsafeFiles", s.path)
		}
	}
	for _, path := range unsafeFiles {
		i := slices.IndexFunc(list, func(s *source) bool { return s.path == path })
		if i >= 0 && !list[i].imports("unsafe") {
			t.Errorf("%s does not import unsafe any more: strike it from unsafeFiles", path)
		}
	}
}

// linuxPackages are Linux-only by nature; elsewhere the system is reached from
// files whose names end in _linux.go.
var linuxPackages = []string{"emu", "space/proc", "gup", "space/uffd", "netlink", "daemon", "internal/workload", "rdma", "attach", "vfio", "qemu", "trace", "cmd", "internal/limits", "internal/owner", "internal/suite", "internal/hostile", "internal/tracing", "hostd"}

func TestSystemCallsStayInTheirPackages(t *testing.T) {
	_, list := sources(t)
	for _, s := range list {
		linux := strings.HasSuffix(s.path, "_linux.go") || strings.HasSuffix(s.path, "_linux_test.go")
		if s.imports("golang.org/x/sys/unix") && !linux && !slices.ContainsFunc(linuxPackages, func(p string) bool { return within(s.dir, p) }) {
			t.Errorf("%s imports golang.org/x/sys/unix: its package is not Linux-only", s.path)
		}
	}
}

// Nothing outside the programs ends the process: what a peer sends is an error.
func TestNothingExits(t *testing.T) {
	fset, list := sources(t)
	for _, s := range list {
		if s.test || within(s.dir, "cmd") || within(s.dir, "hostd") || within(s.dir, "examples") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if name := exits(call.Fun); name != "" {
				t.Errorf("%s: %s ends the process: return an error", fset.Position(call.Pos()), name)
			}
			return true
		})
	}
}

// exits returns the name of a function that ends the process, or "".
func exits(fun ast.Expr) string {
	switch f := fun.(type) {
	case *ast.Ident:
		if f.Name == "panic" {
			return "panic"
		}
	case *ast.SelectorExpr:
		pkg, ok := f.X.(*ast.Ident)
		if !ok {
			return ""
		}
		name := pkg.Name + "." + f.Sel.Name
		if name == "os.Exit" || name == "syscall.Exit" || name == "unix.Exit" || strings.HasPrefix(name, "log.Fatal") || strings.HasPrefix(name, "log.Panic") {
			return name
		}
	}
	return ""
}

// cited are the packages whose constants are the hardware's, the wire's or the
// kernel's.
var cited = []string{"device", "mailbox", "packetizer", "netlink", "attach", "device/atomics", "device/pagein", "soc/wire", "soc/record"}

// citation matches a source: a page of the specification, a paper by its number, a header, a
// manual page, or "defined by this project" (or "ours").
var citation = regexp.MustCompile(`(?i)\b(spec/|hardware\.md|messages\.md|faultpath\.md|firmware\.md|gsas\.md|api\.md|design\.md|docs/attach\.md|00[0-4]\b|IHI 0062|PCI|linux/|include/|defined\s+by\s+this\s+project|ours\b|\w+\([2-8]\))`)

// Each block of numeric constants names its source: above the block, beside each constant, or at
// their type.
func TestConstantsNameTheirSource(t *testing.T) {
	fset, list := sources(t)
	types := citedTypes(list)
	for _, s := range list {
		if s.test || !slices.Contains(cited, s.dir) {
			continue
		}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST || citation.MatchString(g.Doc.Text()) {
				continue
			}
			above := false // a comment that stands for the lines below it
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				if id, ok := v.Type.(*ast.Ident); ok && types[s.dir+"."+id.Name] {
					continue
				}
				if v.Doc != nil {
					above = citation.MatchString(v.Doc.Text())
				}
				if above || citation.MatchString(v.Comment.Text()) || !numeric(v) {
					continue
				}
				t.Errorf("%s: %s: name the source above the block or beside the constant, or say \"defined by this project\"", fset.Position(v.Pos()), v.Names[0].Name)
			}
		}
	}
}

// citedTypes finds the types whose comments name a source.
func citedTypes(list []*source) map[string]bool {
	types := map[string]bool{}
	for _, s := range list {
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				ts := spec.(*ast.TypeSpec)
				if citation.MatchString(g.Doc.Text()) || citation.MatchString(ts.Doc.Text()) {
					types[s.dir+"."+ts.Name.Name] = true
				}
			}
		}
	}
	return types
}

// numeric reports whether a constant has a number of its own (and does not continue an iota).
func numeric(v *ast.ValueSpec) bool {
	has := false
	for _, value := range v.Values {
		ast.Inspect(value, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind != token.STRING {
				has = true
			}
			return true
		})
	}
	return has
}
