package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// source is a group of programs that are loaded and attached together.
type source struct {
	id       probeSource
	needed   bool     // tracing fails without it
	programs []string // use the first that the kernel accepts
	together bool     // use all of them
	// attach attaches a program; nil attaches it to its tracepoint.
	attach func(name string, p *ebpf.Program, targets []target, m *Maps) (map[string]link.Link, Nop, error)
}

var sources = []source{
	{id: probeSourceFaultSource, needed: true, programs: []string{"pfd_faults", "pfd_faults_plain"}, attach: attachPoints},
	{id: probeSourceLatencyTable, programs: []string{"fault_table"}, attach: attachTable},
	{id: probeSourcePageSource, programs: []string{"page_alloc"}},
	{id: probeSourceFaultAddressSource, programs: []string{"copy_refused"}},
	{id: probeSourceReclaimSource, together: true,
		programs: []string{"reclaim_begin", "reclaim_end", "reclaim_cgroup_begin", "reclaim_cgroup_end"}},
	{id: probeSourceLockSource, programs: []string{"lock_begin", "lock_end"}, together: true},
	{id: probeSourceProcessorSource, programs: []string{"switched", "waking"}, together: true},
	{id: probeSourceTouchSource, programs: []string{"touched"}},
	{id: probeSourcePopulateSource, programs: []string{"populated"}},
	{id: probeSourceIommuSource, programs: []string{"iommu_fault"}},
}

// start attaches a source and stores the result for Status. It returns an error only for a
// needed source.
func (src *source) start(s Start, targets []target, spec *ebpf.CollectionSpec, m *Maps) error {
	st := probeSourceState{}
	if !src.needed && len(s.Sources) > 0 && !slices.Contains(s.Sources, sourceNames[src.id]) {
		copyText(st.Reason[:], "not requested")
	} else if nop, err := src.load(targets, spec, m); err == nil {
		st.Attached, st.Nop = 1, uint32(nop)
	} else if src.needed {
		return explain(err)
	} else {
		copyText(st.Reason[:], strings.ReplaceAll(explain(err).Error(), "\n", "; "))
	}
	if err := m.maps[sourcesMap].Put(src.id, &st); err != nil {
		return fmt.Errorf("map %s: %w", sourcesMap, err)
	}
	return nil
}

func copyText(dst []int8, text string) {
	for i := range min(len(text), len(dst)-1) {
		dst[i] = int8(text[i])
	}
}

// load loads and attaches all programs of a source, or none.
func (src *source) load(targets []target, spec *ebpf.CollectionSpec, m *Maps) (Nop, error) {
	var errs []error
	var nop Nop
	made := map[string]link.Link{}
	for _, name := range src.programs {
		links, n, err := src.one(name, targets, spec, m)
		if err != nil {
			errs = append(errs, fmt.Errorf("program %s: %w", name, err))
			if src.together {
				break
			}
			continue
		}
		nop = n
		for at, l := range links {
			made[at] = l
		}
		if !src.together {
			errs = nil
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, l := range made {
			l.Close()
		}
		return 0, err
	}
	for at, l := range made {
		m.links[at] = l
	}
	return nop, nil
}

// one loads and attaches one program. The links are keyed by the names of the pins.
func (src *source) one(name string, targets []target, spec *ebpf.CollectionSpec, m *Maps) (map[string]link.Link, Nop, error) {
	c, err := ebpf.NewCollectionWithOptions(alone(spec, name), ebpf.CollectionOptions{MapReplacements: m.maps})
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	if src.attach != nil {
		return src.attach(name, c.Programs[name], targets, m)
	}
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoints[name], Program: c.Programs[name]})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: this kernel has no tracepoint %s", err, tracepoints[name])
	}
	return map[string]link.Link{linkPrefix + name: l}, 0, err
}

// tracepoints are the kernel's tracepoints, by program.
var tracepoints = map[string]string{
	"page_alloc": "mm_page_alloc", "copy_refused": "page_fault_kernel",
	"reclaim_begin": "mm_vmscan_direct_reclaim_begin", "reclaim_end": "mm_vmscan_direct_reclaim_end",
	"reclaim_cgroup_begin": "mm_vmscan_memcg_reclaim_begin", "reclaim_cgroup_end": "mm_vmscan_memcg_reclaim_end",
	"lock_begin": "contention_begin", "lock_end": "contention_end",
	"switched": "sched_switch", "waking": "sched_waking",
	"touched": "page_fault_user", "populated": "mm_page_alloc", "iommu_fault": "io_page_fault",
}

// attachPoints attaches to the points of the programs, for all of their processes, with their
// reference counters.
func attachPoints(name string, p *ebpf.Program, targets []target, _ *Maps) (map[string]link.Link, Nop, error) {
	links := map[string]link.Link{}
	var nop Nop
	for i, t := range targets {
		nop = t.point.best()
		l, err := attachPoint(name, p, t, nop)
		if err != nil {
			for _, l := range links {
				l.Close()
			}
			return nil, 0, err
		}
		links[pointLink(name, i)] = l
	}
	return links, nop, nil
}

// pointLink returns the name of the pin for a program attached to the i-th target.
func pointLink(name string, i int) string {
	if i > 0 {
		name = fmt.Sprintf("%s_%d", name, i)
	}
	return linkPrefix + name
}

func attachPoint(name string, p *ebpf.Program, t target, nop Nop) (link.Link, error) {
	ex, err := link.OpenExecutable(t.program)
	if err != nil {
		return nil, err
	}
	if name == "pfd_faults" {
		return ex.UprobeMulti(nil, p, &link.UprobeMultiOptions{
			Addresses: []uint64{t.point.Nops[nop]}, RefCtrOffsets: []uint64{t.point.Semaphore},
		})
	}
	return ex.Uprobe("", p, &link.UprobeOptions{Address: t.point.Nops[nop], RefCtrOffset: t.point.Semaphore})
}

// Place returns a program's point for other tracers, as FILE:OFFSET, at another NOP than On
// uses if there is one. With event it returns the syntax of uprobe_events
// (Documentation/trace/uprobetracer.rst), with the semaphore that makes pfd record.
func Place(program string, event bool) (string, error) {
	f, err := os.Open(program)
	if err != nil {
		return "", fmt.Errorf("opening pfd's program: %w", err)
	}
	defer f.Close()
	p, err := Find(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", program, err)
	}
	if path, err := os.Readlink(program); err == nil {
		program = path // resolve /proc/PID/exe: the process may end
	}
	nop, records, n := Nop1, "%di", "%si"
	if _, ok := p.Nops[Nop4]; ok {
		nop, records, n = Nop4, "%x0", "%x1"
	}
	if nop == p.best() && nop == Nop1 {
		nop = Nop5
	}
	place := fmt.Sprintf("%s:%#x", program, p.Nops[nop])
	if event {
		place = fmt.Sprintf("p:exanet/point %s(%#x) records=%s:x64 n=%s:u64", place, p.Semaphore, records, n)
	}
	return place, nil
}

// attachTable makes the table of latencies a file for cat.
func attachTable(_ string, p *ebpf.Program, _ []target, m *Maps) (map[string]link.Link, Nop, error) {
	it, err := link.AttachIter(link.IterOptions{Program: p, Map: m.maps[latencyMap]})
	return map[string]link.Link{"latency": it}, 0, err
}

// alone returns the specification with only one of its programs.
func alone(spec *ebpf.CollectionSpec, name string) *ebpf.CollectionSpec {
	only := spec.Copy()
	for n := range only.Programs {
		if n != name {
			delete(only.Programs, n)
		}
	}
	return only
}

// loadProbe returns the programs and maps of the object for this architecture.
func loadProbe() (*ebpf.CollectionSpec, error) {
	return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
}
