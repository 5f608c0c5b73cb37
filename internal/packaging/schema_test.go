package packaging

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v3"
)

// kubernetes is a module that contains the OpenAPI schema of Kubernetes 1.34 in its tests.
const kubernetes = "k8s.io/kubectl@v0.34.1"

// kubernetesSchema returns the definitions of Kubernetes' API, with unknown fields forbidden.
func kubernetesSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", kubernetes).Output()
	var module struct{ Dir string }
	if err != nil || json.Unmarshal(out, &module) != nil {
		why := "the module " + kubernetes + " is not in the cache and no proxy gives it"
		if os.Getenv("STRICT") == "1" {
			t.Fatalf("%s: %v\n%s", why, err, out)
		}
		t.Skipf("%s: %v", why, err)
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, "testdata", "openapi", "swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var swagger struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(text, &swagger); err != nil {
		t.Fatal(err)
	}
	const prefix = "io.k8s.api.core.v1.PodSpec"
	if swagger.Definitions[prefix] == nil {
		t.Fatalf("no %s among %d definitions", prefix, len(swagger.Definitions))
	}
	for name, d := range swagger.Definitions {
		switch {
		case strings.HasSuffix(name, ".IntOrString"): // OpenAPI 2 cannot express two types
			delete(d, "type")
		case d["properties"] != nil:
			d["additionalProperties"] = false
		}
	}
	whole, err := json.Marshal(map[string]any{"definitions": swagger.Definitions})
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(whole, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// The manifest matches Kubernetes' own schema, and the schema detects errors.
func TestKubernetesSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "contrib", "kubernetes", "pfd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := kubernetesSchema(t)
	validate := func(kind string, v any) error {
		t.Helper()
		definition := map[string]string{"v1 Namespace": "core.v1.Namespace", "v1 ConfigMap": "core.v1.ConfigMap", "apps/v1 DaemonSet": "apps.v1.DaemonSet"}[kind]
		if definition == "" {
			t.Fatalf("%s: no definition is listed here", kind)
		}
		of := *s
		of.Ref = "#/definitions/io.k8s.api." + definition
		r, err := of.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.Validate(v)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	documents := 0
	for {
		var v map[string]any
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		documents++
		kind := v["apiVersion"].(string) + " " + v["kind"].(string)
		if err := validate(kind, v); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if kind != "apps/v1 DaemonSet" {
			continue
		}
		spec := v["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		spec["hostPid"] = true
		if validate(kind, v) == nil {
			t.Error("a misspelled field is not found")
		}
		delete(spec, "hostPid")
		delete(spec["containers"].([]any)[0].(map[string]any), "name")
		if validate(kind, v) == nil {
			t.Error("a container without a name is not found")
		}
	}
	if documents != 3 {
		t.Errorf("%d documents", documents)
	}
}
