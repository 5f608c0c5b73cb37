package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/exanet/pfd/daemon/api"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/rdma"
)

// answers are the types of the endpoints' answers; nil: no JSON.
var answers = map[string]any{
	control.PathStatus: control.Status{}, control.PathNodes: control.Nodes{}, control.PathDomains: control.Domains{},
	control.PathChannels: control.Channels{}, control.PathTransactions: control.Transactions{}, control.PathSMMU: control.SMMU{}, control.PathGSAS: control.GSAS{},
	control.PathHosts: control.Hosts{}, control.PathDrain: control.Hosts{}, control.PathCut: control.Hosts{},
	control.PathFIFO: control.FIFOs{}, control.PathCounters: control.Counters{}, control.PathFaults: control.Faults{},
	control.PathRegisters: control.Registers{}, control.PathTrace: control.Trace{}, control.PathMonitor: control.FaultEvent{},
	control.PathGrant: control.Changed{}, control.PathKick: control.Changed{}, control.PathCapture: nil, control.PathMetrics: nil,
}

// texts are the comments of control's types, by the name of a type, TYPE.Field or constant, and
// the values of the constants.
type texts struct {
	of     map[string]string
	values map[string]string
	groups []*ast.GenDecl // of constants that are words of answers
}

func readTexts(t *testing.T) *texts {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../daemon/control/types.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	x := &texts{of: map[string]string{}, values: map[string]string{}}
	text := func(name string, groups ...*ast.CommentGroup) {
		var all []string
		for _, g := range groups {
			if s := strings.Join(strings.Fields(g.Text()), " "); s != "" {
				all = append(all, s)
			}
		}
		x.of[name] = strings.TrimPrefix(strings.Join(all, " "), name[strings.LastIndex(name, ".")+1:]+": ")
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		words := false
		for _, spec := range g.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				name := s.Names[0].Name
				text(name, s.Doc, s.Comment)
				x.of[name] = strings.TrimPrefix(x.of[name], name+" ")
				if lit, ok := s.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					x.values[name], _ = strconv.Unquote(lit.Value)
					words = words || !strings.HasPrefix(name, "Path") && !strings.HasPrefix(name, "Counter")
				}
			case *ast.TypeSpec:
				doc := s.Doc
				if doc == nil {
					doc = g.Doc
				}
				text(s.Name.Name, doc)
				if st, ok := s.Type.(*ast.StructType); ok {
					for _, f := range st.Fields.List {
						text(s.Name.Name+"."+f.Names[0].Name, f.Doc, f.Comment)
					}
				}
			}
		}
		if words {
			x.groups = append(x.groups, g)
		}
	}
	return x
}

// plain returns a comment with the constants' values in place of their names.
func (x *texts) plain(name string) string {
	return regexp.MustCompile(`\w+`).ReplaceAllStringFunc(x.of[name], func(w string) string {
		if v, ok := x.values[w]; ok {
			return v
		}
		return w
	})
}

// structs returns the types of control in an answer, the answer's first.
func structs(t reflect.Type, seen []reflect.Type) []reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t.Name() == "" {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || slices.Contains(seen, t) {
		return seen
	}
	seen = append(seen, t)
	for i := range t.NumField() {
		seen = structs(t.Field(i).Type, seen)
	}
	return seen
}

// schema makes the definitions of all answers.
func schema(t *testing.T, x *texts) (*jsonschema.Schema, []reflect.Type) {
	t.Helper()
	list := structs(reflect.TypeFor[control.ErrorReply](), nil)
	for _, path := range paths(t) {
		if a := answers[path]; a != nil {
			list = structs(reflect.TypeOf(a), list)
		}
	}
	s := &jsonschema.Schema{
		Schema: "https://json-schema.org/draft/2020-12/schema", Title: "Answers of pfd's control interface, version 1 (docs/v1.md)",
		Defs: map[string]*jsonschema.Schema{},
	}
	for _, typ := range list {
		known := map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[control.Hex]():     {Type: "string", Pattern: "^0x[0-9a-f]{1,16}$"},
			reflect.TypeFor[json.RawMessage](): {},
		}
		for _, o := range list {
			if o != typ {
				known[o] = &jsonschema.Schema{Ref: "#/$defs/" + o.Name()}
				known[reflect.PointerTo(o)] = known[o]
			}
		}
		def, err := jsonschema.ForType(typ, &jsonschema.ForOptions{TypeSchemas: known})
		if err != nil {
			t.Fatal(err)
		}
		// Keys are added within a version.
		def.AdditionalProperties, def.Description = nil, x.plain(typ.Name())
		for i := range typ.NumField() {
			f := typ.Field(i)
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			p := def.Properties[key]
			if p == nil {
				t.Fatalf("%s.%s has no key", typ.Name(), f.Name)
			}
			switch { // nothing is null: it is there, or left out
			case p.Ref != "":
				p.Type, p.Types = "", nil
			case len(p.Types) == 2:
				p.Type, p.Types = p.Types[1], nil
			}
			p.Description = x.plain(typ.Name() + "." + f.Name)
		}
		s.Defs[typ.Name()] = def
	}
	return s, list
}

// paths returns the endpoints' paths, each of which must be in answers.
func paths(t *testing.T) []string {
	t.Helper()
	list := []string{}
	for _, e := range api.Endpoints() {
		list = append(list, e.Path)
	}
	list = append(list, control.PathMetrics)
	for _, path := range list {
		if _, ok := answers[path]; !ok {
			t.Errorf("%s has no answer in this test's table", path)
		}
	}
	return list
}

// kind names a key's type for people.
func kind(p *jsonschema.Schema) string {
	link := func(ref string) string {
		name := strings.TrimPrefix(ref, "#/$defs/")
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	}
	switch {
	case p.Ref != "":
		return link(p.Ref)
	case p.Pattern != "":
		return "hex"
	case p.Type == "array":
		return "list of " + kind(p.Items)
	case p.Type == "":
		return "any"
	}
	return p.Type
}

// reference makes docs/v1.md.
func reference(s *jsonschema.Schema, list []reflect.Type, x *texts) []byte {
	var b bytes.Buffer
	fmt.Fprint(&b, `# The control interface, /v1

Made from package control's types by `+"`go test ./daemon -run TestReference -update`"+`; the same
as a JSON schema: [v1.schema.json](v1.schema.json). HTTP on pfd's control socket:

`+"```sh\ncurl --unix-socket /run/exanet/pfd.sock http://pfd/v1/status\n```"+`

Within version 1 keys are only added. Units stand at the end of a name; counters end in
`+"`_total`"+`; hex is a string such as `+"`\"0x7f00\"`"+`, for a JSON number holds 53 bits. A query key is
left out for all nodes, all faults, all windows, whole packets; POST wants each of them. Every
status other than 200 comes with an [ErrorReply](#errorreply). A user who does not see everything
(docs/service.md) is answered with his own data.

| method | path | query | answer | |
| --- | --- | --- | --- | --- |
`)
	row := func(method, path string, keys []string) {
		answer := "text"
		if a := answers[path]; a != nil {
			answer = kind(&jsonschema.Schema{Ref: reflect.TypeOf(a).Name()})
		} else if path == control.PathCapture {
			answer = "pcapng"
		}
		text := ""
		for name, v := range x.values {
			if v == path {
				text = x.of[name]
			}
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", method, path, strings.Join(keys, ", "), answer, text)
	}
	for _, e := range api.Endpoints() {
		row(map[bool]string{false: "GET", true: "POST"}[e.Post], e.Path, e.Keys)
	}
	row("GET", control.PathMetrics, nil)
	for _, typ := range list {
		def := s.Defs[typ.Name()]
		fmt.Fprintf(&b, "\n## %s\n%s\n\n| key | type | |\n| --- | --- | --- |\n", typ.Name(), def.Description)
		for i := range typ.NumField() {
			key, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			p := def.Properties[key]
			optional := ""
			if !slices.Contains(def.Required, key) {
				optional = ", may be left out"
			}
			fmt.Fprintf(&b, "| `%s` | %s%s | %s |\n", key, kind(p), optional, p.Description)
		}
	}
	fmt.Fprint(&b, "\n## Words\n")
	for _, g := range x.groups {
		fmt.Fprintf(&b, "\n%s\n\n| word | |\n| --- | --- |\n", strings.Join(strings.Fields(g.Doc.Text()), " "))
		for _, spec := range g.Specs {
			name := spec.(*ast.ValueSpec).Names[0].Name
			fmt.Fprintf(&b, "| `%s` | %s |\n", x.values[name], x.plain(name))
		}
	}
	return b.Bytes()
}

// docs/v1.md and docs/v1.schema.json agree with control's types.
func TestReference(t *testing.T) {
	x := readTexts(t)
	s, list := schema(t, x)
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]byte{"v1.schema.json": append(text, '\n'), "v1.md": reference(s, list, x)} {
		file = filepath.Join("..", "docs", file)
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what control's types say (%v): go test ./daemon -run TestReference -update", file, err)
		}
	}
}

// Each answer of a live pfd agrees with the schema and has no other keys.
func TestAnswersAreOfTheSchema(t *testing.T) {
	text, err := os.ReadFile("../docs/v1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	_, client, ctx := startEngine(t)
	p := spawn(t, "target", "PFD_TEST_SOCKET="+client.Socket())
	remote, err := rdma.ParseRemote(p.line())
	if err != nil {
		t.Fatal(err)
	}
	e, err := rdma.Attach(ctx, rdma.Options{Socket: client.Socket(), Group: "exec"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	tr, err := e.Write(ctx, rdma.WriteRequest{Src: pattern(), Dst: remote})
	if err == nil {
		err = tr.Wait(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}

	resolved := map[string]*jsonschema.Resolved{}
	check := func(typ string, answer []byte) {
		t.Helper()
		r := resolved[typ]
		if r == nil {
			var s jsonschema.Schema
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
			for _, def := range s.Defs {
				def.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
			}
			s.Ref = "#/$defs/" + typ
			if r, err = s.Resolve(nil); err != nil {
				t.Fatal(err)
			}
			resolved[typ] = r
		}
		var v any
		if err := json.Unmarshal(answer, &v); err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		if err := r.Validate(v); err != nil {
			t.Errorf("an answer is no %s: %v\n%.500s", typ, err, answer)
		}
	}
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", client.Socket())
	}}}
	defer c.CloseIdleConnections()
	ask := func(method, path string, want int) []byte {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, "http://pfd"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s %s: status %d, want %d, %v: %s", method, path, resp.StatusCode, want, err, b)
		}
		return b
	}
	for _, ep := range api.Endpoints() {
		a := answers[ep.Path]
		switch {
		case ep.Post, a == nil, ep.Path == control.PathMonitor:
			check("ErrorReply", ask(http.MethodPut, ep.Path, http.StatusMethodNotAllowed))
		case ep.Path == control.PathTrace:
			check("ErrorReply", ask(http.MethodGet, ep.Path, http.StatusNotFound))
		default:
			check(reflect.TypeOf(a).Name(), ask(http.MethodGet, ep.Path, http.StatusOK))
		}
		check("ErrorReply", ask(http.MethodGet, ep.Path+"?nonsense=1", map[bool]int{false: http.StatusBadRequest, true: http.StatusMethodNotAllowed}[ep.Post]))
	}
	check("Changed", ask(http.MethodPost, control.PathGrant+"?node=0&slot=0&pdid=77", http.StatusOK))
	check("ErrorReply", ask(http.MethodGet, "/v2", http.StatusNotFound))

	// A line of the monitor: its first, and one with a fault.
	resp, err := c.Get("http://pfd" + control.PathMonitor)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	for i := range 2 {
		var line json.RawMessage
		if err := lines.Decode(&line); err != nil {
			t.Fatal(err)
		}
		check("FaultEvent", line)
		if i == 0 {
			tr, err := e.Write(ctx, rdma.WriteRequest{Src: make([]byte, 64), SrcVA: 0, Dst: rdma.Remote{Node: remote.Node, PDID: remote.PDID, Generation: remote.Generation, VA: 4096, Len: 64}})
			if err != nil {
				t.Fatal(err)
			}
			if err := tr.Wait(ctx); err == nil {
				t.Error("a write to where nothing is mapped succeeded")
			}
		}
	}
	check("Changed", ask(http.MethodPost, control.PathKick+"?node=1&slot=0", http.StatusOK))
}
