package packaging

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The parts of Kubernetes' API that the manifest uses, with the names and types of its
// reference (kubernetes.io/docs/reference/kubernetes-api; core/v1, apps/v1). An unknown or
// misspelled field is an error.
type (
	k8sMeta struct {
		Name, Namespace     string
		Labels, Annotations map[string]string
	}
	k8sHead struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   k8sMeta
	}
	k8sNamespace struct {
		k8sHead `yaml:",inline"`
	}
	k8sConfigMap struct {
		k8sHead `yaml:",inline"`
		Data    map[string]string
	}
	k8sDaemonSet struct {
		k8sHead `yaml:",inline"`
		Spec    struct {
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			UpdateStrategy struct {
				Type          string
				RollingUpdate struct {
					MaxUnavailable int `yaml:"maxUnavailable"`
				} `yaml:"rollingUpdate"`
			} `yaml:"updateStrategy"`
			Template struct {
				Metadata k8sMeta
				Spec     k8sPod
			}
		}
	}
	k8sPod struct {
		HostPID                       bool              `yaml:"hostPID"`
		AutomountServiceAccountToken  bool              `yaml:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int64             `yaml:"terminationGracePeriodSeconds"`
		NodeSelector                  map[string]string `yaml:"nodeSelector"`
		InitContainers                []k8sContainer    `yaml:"initContainers"`
		Containers                    []k8sContainer
		Volumes                       []struct {
			Name     string
			HostPath *struct{ Path, Type string } `yaml:"hostPath"`
			Config   *struct{ Name string }       `yaml:"configMap"`
		}
	}
	k8sContainer struct {
		Name, Image     string
		ImagePullPolicy string `yaml:"imagePullPolicy"`
		Command, Args   []string
		Ports           []struct {
			Name, Protocol string
			ContainerPort  int `yaml:"containerPort"`
		}
		Readiness k8sProbe `yaml:"readinessProbe"`
		Liveness  k8sProbe `yaml:"livenessProbe"`
		Resources struct{ Requests, Limits map[string]string }
		Security  struct {
			User         int64 `yaml:"runAsUser"`
			Group        int64 `yaml:"runAsGroup"`
			NonRoot      bool  `yaml:"runAsNonRoot"`
			Escalation   *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities struct{ Drop, Add []string }
			Seccomp      struct{ Type string } `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		Mounts []struct {
			Name     string
			Path     string `yaml:"mountPath"`
			ReadOnly bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	k8sProbe struct {
		Exec    struct{ Command []string }
		Delay   int `yaml:"initialDelaySeconds"`
		Period  int `yaml:"periodSeconds"`
		Timeout int `yaml:"timeoutSeconds"`
	}
)

// The manifest has Kubernetes' fields, and they are consistent. The paths and commands that it
// sets up are right for pfd.
func TestKubernetesManifest(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "contrib", "kubernetes", "pfd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config k8sConfigMap
	var set k8sDaemonSet
	var namespace k8sNamespace
	decode := func(part []byte, into any) {
		t.Helper()
		dec := yaml.NewDecoder(bytes.NewReader(part))
		dec.KnownFields(true)
		if err := dec.Decode(into); err != nil {
			t.Errorf("%v", err)
		}
	}
	all := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		if err := all.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		part, err := yaml.Marshal(&doc)
		if err != nil {
			t.Fatal(err)
		}
		var head k8sHead
		if err := doc.Decode(&head); err != nil {
			t.Fatal(err)
		}
		switch head.APIVersion + " " + head.Kind {
		case "v1 Namespace":
			decode(part, &namespace)
		case "v1 ConfigMap":
			decode(part, &config)
		case "apps/v1 DaemonSet":
			decode(part, &set)
		default:
			t.Errorf("%s %s: unknown kind", head.APIVersion, head.Kind)
		}
	}
	if namespace.Metadata.Name == "" || set.Metadata.Namespace != namespace.Metadata.Name || config.Metadata.Namespace != namespace.Metadata.Name {
		t.Errorf("namespaces %q, %q, %q", namespace.Metadata.Name, set.Metadata.Namespace, config.Metadata.Namespace)
	}
	for k, v := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Metadata.Labels[k] != v {
			t.Errorf("the selector requires %s=%s, which the pods do not have", k, v)
		}
	}
	if len(set.Spec.Selector.MatchLabels) == 0 {
		t.Error("no selector")
	}
	pod := &set.Spec.Template.Spec
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		if volumes[v.Name] = true; (v.HostPath == nil) == (v.Config == nil) {
			t.Errorf("volume %s: want one source", v.Name)
		}
		if v.Config != nil && v.Config.Name != config.Metadata.Name {
			t.Errorf("volume %s: no ConfigMap %s", v.Name, v.Config.Name)
		}
	}
	quantity := regexp.MustCompile(`^[0-9]+(m|[KMG]i)?$`)
	name := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if !name.MatchString(c.Name) || c.Image == "" {
			t.Errorf("container %q, image %q", c.Name, c.Image)
		}
		for _, m := range c.Mounts {
			if !volumes[m.Name] || !strings.HasPrefix(m.Path, "/") {
				t.Errorf("container %s: no volume %s, or no path %s", c.Name, m.Name, m.Path)
			}
		}
		for _, list := range []map[string]string{c.Resources.Requests, c.Resources.Limits} {
			for k, v := range list {
				if !quantity.MatchString(v) {
					t.Errorf("container %s: %s of %s", c.Name, v, k)
				}
			}
		}
		s := &c.Security
		if s.Escalation == nil || *s.Escalation || !s.ReadOnly || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("container %s is not confined: %+v", c.Name, s)
		}
	}
	if len(pod.Containers) != 1 || !pod.HostPID {
		t.Fatalf("%d containers, hostPID %v", len(pod.Containers), pod.HostPID)
	}
	if c := &pod.Containers[0]; !c.Security.NonRoot || c.Security.User == 0 || len(c.Security.Capabilities.Add) != 0 {
		t.Errorf("pfd runs with rights: %+v", c.Security)
	}
	// pfd itself checks its configuration.
	file := filepath.Join(t.TempDir(), "pfd.toml")
	if err := os.WriteFile(file, []byte(config.Data["pfd.toml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"run", "./cmd/pfd", "--check-config"}, pod.Containers[0].Args...)
	if out := run(t, "go", append(args, "--config", file)...); !strings.Contains(out, "is valid") {
		t.Errorf("pfd's output is %q", out)
	}
}
