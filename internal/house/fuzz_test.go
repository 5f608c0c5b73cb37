package house

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// decoder matches the names of functions that parse input from outside: from a peer, a device,
// the kernel, or the author of a file.
var decoder = regexp.MustCompile(`^(Decode|Unmarshal|Parse|decode|unmarshal|parse)`)

// notFuzzed are decoders of input from the program's own user only, each with the reason.
var notFuzzed = map[string]string{
	"cmd": "the command line of the user who runs it",
}

// alsoFuzzed are decoders with other names. (Control data of a socket, internal/sockets.Rights,
// comes from the kernel and is well formed.)
var alsoFuzzed = []string{
	"internal/procstatus.Field", "space/proc.mapsLine", "device.DescriptorOf", "soc/wire.Add",
	"soc/smmu.Walk", "daemon.serve",
}

// Each decoder is reachable from a fuzz target of its package, by calls within the package.
func TestDecodersAreFuzzed(t *testing.T) {
	fset, list := sources(t)
	found := map[string]token.Position{} // by package and name
	calls := map[string][]string{}       // by package and name: the names in the function's body
	var reached []string
	for _, s := range list {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			name := s.dir + "." + f.Name.Name // methods with one name are treated as one
			calls[name] = append(calls[name], names(s.dir, f.Body)...)
			if s.test && strings.HasPrefix(f.Name.Name, "Fuzz") {
				reached = append(reached, name)
			}
			if !s.test && decoder.MatchString(f.Name.Name) && !exempt(s.dir) {
				found[name] = fset.Position(f.Pos())
			}
		}
	}
	for _, name := range alsoFuzzed {
		if calls[name] == nil {
			t.Errorf("%s no longer exists: remove it from alsoFuzzed", name)
		}
		found[name] = token.Position{Filename: "alsoFuzzed"}
	}
	if len(found) < 30 {
		t.Errorf("only %d decoders found", len(found))
	}
	seen := map[string]bool{}
	for len(reached) > 0 {
		name := reached[0]
		reached = reached[1:]
		if !seen[name] {
			seen[name] = true
			reached = append(reached, calls[name]...)
		}
	}
	for name, at := range found {
		if !seen[name] {
			t.Errorf("%s: %s parses external input, but no Fuzz function of its package reaches it", at, name)
		}
	}
}

func exempt(dir string) bool {
	for p := range notFuzzed {
		if within(dir, p) {
			return true
		}
	}
	return false
}

// names returns all names in a body, as names of its own package: a superset of its calls.
func names(dir string, body ast.Node) (list []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			list = append(list, dir+"."+id.Name)
		}
		return true
	})
	return list
}
