package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// DefaultDir is where things are pinned.
const DefaultDir = "/sys/fs/bpf/exanet"

// Errors that callers tell apart.
var (
	ErrOn  = errors.New("tracing is on already")
	ErrOff = errors.New("tracing is off")
	ErrDir = errors.New("the directory for pins")
)

// The maps' names, which are those of their pins.
const (
	latencyMap  = "fault_latency"
	domainsMap  = "fault_domains"
	slowestMap  = "fault_slowest"
	countersMap = "fault_counters"
	eventsMap   = "fault_events"
	settingsMap = "fault_settings"
	pfdsMap     = "fault_pfds"
	sourcesMap  = "fault_sources"
)

// shared are the maps that are pinned: the others are the programs' own.
var shared = []string{latencyMap, domainsMap, slowestMap, countersMap, eventsMap, settingsMap, pfdsMap, sourcesMap}

// linkPrefix begins the names of pinned links.
const linkPrefix = "link_"

// Start says what On attaches to, and where it pins.
type Start struct {
	Dir     string // in a bpffs, DefaultDir where empty
	Program string // pfd's program file; /proc/PID/exe is one
	// Sources names what is attached, of SourceNames; empty: all. The first always is.
	Sources []string
}

// On loads the programs, attaches them to every process of the program file, those that
// start later too, and pins all of it. Nothing of it needs a process to stay. Notes are
// what the user should know. Errors match ErrPoint, ErrOn, ErrDir or are the kernel's.
func On(s Start) (notes []string, err error) {
	if s.Dir == "" {
		s.Dir = DefaultDir
	}
	for _, name := range s.Sources {
		if !slices.Contains(sourceNames[:], name) {
			return nil, fmt.Errorf("no source is called %q: %s", name, strings.Join(sourceNames[:], ", "))
		}
	}
	f, err := os.Open(s.Program)
	if err != nil {
		return nil, fmt.Errorf("opening pfd's program: %w", err)
	}
	defer f.Close()
	at, err := Find(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Program, err)
	}
	if err := rights(); err != nil {
		return nil, err
	}
	d, notes, err := makeDir(s.Dir)
	if err != nil {
		return notes, err
	}
	defer d.Close()
	left, err := leftovers(s.Dir)
	if err != nil {
		return notes, err
	}
	if left > 0 {
		notes = append(notes, fmt.Sprintf("removed %d pins that a dead or older tracer left in %s", left, s.Dir))
	}
	if err := load(s, at); err != nil {
		return notes, errors.Join(err, removeAll(s.Dir))
	}
	return notes, nil
}

// load loads, attaches and pins.
func load(s Start, at *Point) error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("the limit of locked memory (kernels before 5.11): %w", err)
	}
	spec, err := loadProbe()
	if err != nil {
		return fmt.Errorf("the programs of this exanetctl: %w", err)
	}
	maps := map[string]*ebpf.Map{}
	defer func() {
		for _, m := range maps {
			m.Close()
		}
	}()
	for name, ms := range spec.Maps {
		if strings.HasPrefix(name, ".") {
			continue // constants, of each program its own
		}
		m, err := ebpf.NewMap(ms)
		if err != nil {
			return fmt.Errorf("map %s: %w", name, explain(err))
		}
		maps[name] = m
	}
	if err := fill(maps); err != nil {
		return err
	}
	if err := known(s.Program, maps[pfdsMap]); err != nil {
		return err
	}
	for _, src := range sources {
		if err := src.start(s, at, spec, maps); err != nil {
			return err
		}
	}
	for _, name := range shared {
		if err := maps[name].Pin(filepath.Join(s.Dir, name)); err != nil {
			return fmt.Errorf("pinning map %s: %w", name, err)
		}
	}
	return nil
}

// fill gives the maps their first content.
func fill(maps map[string]*ebpf.Map) error {
	for c := range probeCounterCOUNTERS {
		if err := maps[countersMap].Put(c, uint64(0)); err != nil {
			return fmt.Errorf("map %s: %w", countersMap, err)
		}
	}
	if err := maps[settingsMap].Put(uint32(0), &probeSettings{Node: anyValue, Pdid: anyValue, Kind: anyValue}); err != nil {
		return fmt.Errorf("map %s: %w", settingsMap, err)
	}
	return nil
}

// known notes the processes that run a program already: their first faults are looked
// at, too. The others are noted with their first batch.
func known(program string, pfds *ebpf.Map) error {
	var want unix.Stat_t
	if err := unix.Stat(program, &want); err != nil {
		return fmt.Errorf("pfd's program: %w", &fs.PathError{Op: "stat", Path: program, Err: err})
	}
	list, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range list {
		pid, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st) != nil || st.Dev != want.Dev || st.Ino != want.Ino {
			continue // or it is somebody's that we may not look at
		}
		if err := pfds.Put(uint32(pid), &probePfd{}); err != nil {
			return fmt.Errorf("map %s: %w", pfdsMap, err)
		}
	}
	return nil
}

// anyValue is ANY of probe.h.
const anyValue = ^uint32(0)

// source is a group of programs that is loaded and attached by itself.
type source struct {
	id       probeSource
	needed   bool     // without it nothing runs
	programs []string // the first that the kernel takes
	together bool     // all of them are needed, not one of them
	attach   func(s Start, at *Point, name string, p *ebpf.Program) (link.Link, Nop, error)
}

var sources = []source{
	{id: probeSourceFaultSource, needed: true, programs: []string{"pfd_faults", "pfd_faults_plain"}, attach: attachPoint},
	{id: probeSourceLatencyTable, programs: []string{"fault_table"}, attach: nil},
	{id: probeSourcePageSource, programs: []string{"page_alloc"}, attach: attachKernel},
	{id: probeSourceFaultAddressSource, programs: []string{"copy_refused"}, attach: attachKernel},
	{id: probeSourceReclaimSource, together: true, attach: attachKernel,
		programs: []string{"reclaim_begin", "reclaim_end", "reclaim_cgroup_begin", "reclaim_cgroup_end"}},
	{id: probeSourceLockSource, programs: []string{"lock_begin", "lock_end"}, together: true, attach: attachKernel},
	{id: probeSourceProcessorSource, programs: []string{"switched", "waking"}, together: true, attach: attachKernel},
}

// start attaches a source, and notes how that went for Status. The error is of a
// source without which nothing runs.
func (src *source) start(s Start, at *Point, spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map) error {
	if !src.needed && len(s.Sources) > 0 && !slices.Contains(s.Sources, sourceNames[src.id]) {
		var st probeSourceState
		copyText(st.Reason[:], "not asked for")
		return maps[sourcesMap].Put(src.id, &st)
	}
	var errs []error
	var nop Nop
	for _, name := range src.programs {
		n, err := src.one(s, at, spec, maps, name)
		if err == nil {
			nop = n
			if !src.together {
				errs = nil
				break
			}
			continue
		}
		errs = append(errs, fmt.Errorf("program %s: %w", name, err))
		if src.together {
			break
		}
	}
	err := errors.Join(errs...)
	if err != nil && src.needed {
		return explain(err)
	}
	st := probeSourceState{Nop: uint32(nop)}
	if err != nil {
		for _, name := range src.programs {
			_ = os.Remove(filepath.Join(s.Dir, linkPrefix+name))
		}
		reason := strings.ReplaceAll(explain(err).Error(), "\n", "; ")
		copyText(st.Reason[:], reason)
	} else {
		st.Attached = 1
	}
	if err := maps[sourcesMap].Put(src.id, &st); err != nil {
		return fmt.Errorf("map %s: %w", sourcesMap, err)
	}
	return nil
}

func copyText(dst []int8, text string) {
	for i := range min(len(text), len(dst)-1) {
		dst[i] = int8(text[i])
	}
}

// one loads and attaches one program.
func (src *source) one(s Start, at *Point, spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map, name string) (Nop, error) {
	c, err := ebpf.NewCollectionWithOptions(alone(spec, name), ebpf.CollectionOptions{MapReplacements: maps})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if src.attach == nil {
		return 0, pinIterator(s.Dir, c.Programs[name], maps[latencyMap])
	}
	l, nop, err := src.attach(s, at, name, c.Programs[name])
	if err != nil {
		return 0, err
	}
	defer l.Close()
	if err := l.Pin(filepath.Join(s.Dir, linkPrefix+name)); err != nil {
		return 0, fmt.Errorf("pinning the link: %w", err)
	}
	return nop, nil
}

// attachPoint attaches to the point: for all processes of the program, by its counter.
func attachPoint(s Start, at *Point, name string, p *ebpf.Program) (link.Link, Nop, error) {
	nop := at.best()
	ex, err := link.OpenExecutable(s.Program)
	if err != nil {
		return nil, 0, err
	}
	if name == "pfd_faults" {
		l, err := ex.UprobeMulti(nil, p, &link.UprobeMultiOptions{
			Addresses: []uint64{at.Nops[nop]}, RefCtrOffsets: []uint64{at.Semaphore},
		})
		return l, nop, err
	}
	l, err := ex.Uprobe("", p, &link.UprobeOptions{Address: at.Nops[nop], RefCtrOffset: at.Semaphore})
	return l, nop, err
}

// tracepoints are the kernel's, by the programs that go there.
var tracepoints = map[string]string{
	"page_alloc": "mm_page_alloc", "copy_refused": "page_fault_kernel",
	"reclaim_begin": "mm_vmscan_direct_reclaim_begin", "reclaim_end": "mm_vmscan_direct_reclaim_end",
	"reclaim_cgroup_begin": "mm_vmscan_memcg_reclaim_begin", "reclaim_cgroup_end": "mm_vmscan_memcg_reclaim_end",
	"lock_begin": "contention_begin", "lock_end": "contention_end",
	"switched": "sched_switch", "waking": "sched_waking",
}

func attachKernel(_ Start, _ *Point, name string, p *ebpf.Program) (link.Link, Nop, error) {
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoints[name], Program: p})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: this kernel has no tracepoint %s", err, tracepoints[name])
	}
	return l, 0, err
}

// pinIterator pins the table of the latencies as a file that cat reads.
func pinIterator(dir string, p *ebpf.Program, m *ebpf.Map) error {
	it, err := link.AttachIter(link.IterOptions{Program: p, Map: m})
	if err != nil {
		return err
	}
	defer it.Close()
	return it.Pin(filepath.Join(dir, "latency"))
}

// best gives the NOP that this kernel handles fastest: system call 336, uprobe, tells
// which one it replaces by a call.
func (p *Point) best() Nop {
	if _, ok := p.Nops[Nop4]; ok {
		return Nop4
	}
	_, _, errno := unix.RawSyscall(336, 0, 0, 0)
	switch errno {
	case unix.ENXIO: // 6.18 to 7.1
		return Nop5
	case unix.EPROTO: // 7.2
		return Nop10
	}
	return Nop1
}

// rights says which capability is missing, before the kernel says only EPERM.
func rights() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	has := func(c int) bool { return data[c/32].Effective>>(c%32)&1 != 0 }
	if has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	var missing []string
	if !has(unix.CAP_BPF) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_PERFMON) {
		missing = append(missing, "CAP_PERFMON")
	}
	if len(missing) > 0 {
		return fmt.Errorf("loading eBPF programs: %w: %s missing: run it as root, or with both capabilities (contrib/systemd/trace.conf)", unix.EPERM, strings.Join(missing, " and "))
	}
	return nil
}

// explain adds the remedy to an error of the kernel's.
func explain(err error) error {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: this kernel does not have it", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		if b, lerr := os.ReadFile("/sys/kernel/security/lockdown"); lerr == nil && !strings.Contains(string(b), "[none]") {
			return fmt.Errorf("%w: perhaps by the kernel's lockdown: %s", err, strings.TrimSpace(string(b)))
		}
		return fmt.Errorf("%w: the kernel does not allow it: CAP_BPF and CAP_PERFMON are needed, and no lockdown that forbids it", err)
	case errors.Is(err, fs.ErrNotExist) && missingBTF():
		return fmt.Errorf("%w: the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)", err)
	}
	return err
}

func missingBTF() bool {
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	return err != nil
}

// makeDir makes the directory for the pins, in a bpffs, and locks it: one On or Off at
// a time.
func makeDir(dir string) (*os.File, []string, error) {
	var notes []string
	parent := filepath.Dir(dir)
	if on, err := onBPFFS(parent); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrDir, err)
	} else if !on {
		if err := unix.Mount("bpf", parent, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return nil, nil, fmt.Errorf("%w: %s is in no bpffs, and mounting one failed: %w: run `mount -t bpf bpf %s`, or name another with --bpffs", ErrDir, parent, err, parent)
		}
		notes = append(notes, "mounted a bpffs at "+parent)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, notes, fmt.Errorf("%w: %w", ErrDir, err)
	}
	d, err := openDir(dir)
	return d, notes, err
}

// openDir opens and locks a directory of pins that is there.
func openDir(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDir, dir, err)
	}
	d := os.NewFile(uintptr(fd), dir)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrDir, dir, err), d.Close())
	}
	if uint32(os.Geteuid()) != st.Uid || st.Mode&0o022 != 0 {
		return nil, errors.Join(fmt.Errorf("%w: %s belongs to uid %d with mode %o: whoever else writes there could put other maps in place: remove it, or name another with --bpffs", ErrDir, dir, st.Uid, st.Mode&0o777), d.Close())
	}
	if on, err := onBPFFS(dir); err != nil || !on {
		return nil, errors.Join(fmt.Errorf("%w: %s is in no bpffs: name a directory of one with --bpffs", ErrDir, dir), err, d.Close())
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: another exanetctl is at work there: %w", ErrDir, dir, err), d.Close())
	}
	return d, nil
}

func onBPFFS(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return st.Type == unix.BPF_FS_MAGIC, nil
}

// leftovers removes what no tracer of this program uses any more. ErrOn: one does.
func leftovers(dir string) (int, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDir, err)
	}
	if len(list) == 0 {
		return 0, nil
	}
	if m, err := open(dir); err == nil {
		st, err := m.Status()
		m.Close()
		if err == nil && st.attached() && !st.Replaced {
			return 0, fmt.Errorf("%w, for %s: run `exanetctl trace off` first", ErrOn, st.Program)
		}
	}
	return len(list), removeFiles(dir)
}

func removeFiles(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	var errs []error
	// Links first, so that nothing runs without its maps being seen.
	for _, links := range []bool{true, false} {
		for _, e := range list {
			if strings.HasPrefix(e.Name(), linkPrefix) == links {
				errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

func removeAll(dir string) error {
	if err := removeFiles(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	return nil
}

// Off detaches everything and removes the pins. Where there are none the error matches
// ErrOff.
func Off(dir string) error {
	if dir == "" {
		dir = DefaultDir
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no %s", ErrOff, dir)
	}
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return removeAll(dir)
}
