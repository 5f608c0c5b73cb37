package tracing

import (
	"errors"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
)

// objects are the probe's programs, compiled for each architecture.
var objects = map[string]string{"amd64": "x86", "arm64": "arm64"}

// Each program is within the verifier's limits on all kernels; 7.2's are the tightest.
func TestVerified(t *testing.T) {
	if refused != "" {
		t.Skip(refused)
	}
	spec, err := ebpf.LoadCollectionSpec("../../trace/probe/probe_" + objects[runtime.GOARCH] + "_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	for name := range spec.Programs {
		n, err := verified(spec, name)
		if err != nil {
			t.Errorf("program %s: %+v", name, err)
			continue
		}
		t.Logf("%s: %d instructions verified", name, n)
		if n > 10_000 {
			t.Errorf("%s: %d instructions are verified, at most 10000", name, n)
		}
	}
}

// verified loads one program by itself and returns how many instructions the kernel's
// verifier processed.
func verified(spec *ebpf.CollectionSpec, name string) (uint32, error) {
	only := spec.Copy()
	only.Programs = map[string]*ebpf.ProgramSpec{name: only.Programs[name]}
	c, err := ebpf.NewCollection(only)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	info, err := c.Programs[name].Info()
	if err != nil {
		return 0, err
	}
	n, ok := info.VerifiedInstructions()
	if !ok {
		return 0, errors.New("this kernel does not report the number of verified instructions (before 5.16)")
	}
	return n, nil
}
