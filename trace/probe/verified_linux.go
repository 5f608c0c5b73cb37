package probe

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Verified loads each program by itself and gives how many instructions the kernel's
// verifier looked at. What the kernel refuses is in the error; the others are given.
func Verified() (map[string]uint32, error) {
	spec, err := loadProbe()
	if err != nil {
		return nil, err
	}
	sizes := map[string]uint32{}
	var errs []error
	for name := range spec.Programs {
		n, err := verified(spec, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("program %s: %w", name, explain(err)))
			continue
		}
		sizes[name] = n
	}
	return sizes, errors.Join(errs...)
}

func verified(spec *ebpf.CollectionSpec, name string) (uint32, error) {
	c, err := ebpf.NewCollection(alone(spec, name))
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
		return 0, errors.New("the kernel does not tell (before 5.16)")
	}
	return n, nil
}

// alone gives a specification with one of the programs.
func alone(spec *ebpf.CollectionSpec, name string) *ebpf.CollectionSpec {
	only := spec.Copy()
	for n := range only.Programs {
		if n != name {
			delete(only.Programs, n)
		}
	}
	return only
}
