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
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/uids"
)

// DefaultDir is the default directory of the pins.
const DefaultDir = "/sys/fs/bpf/exanet"

// Errors of On, Off and Open.
var (
	ErrOn  = errors.New("tracing is on already")
	ErrOff = errors.New("tracing is off")
	ErrDir = errors.New("the directory for pins")
)

// Names of the maps, which are also those of their pins.
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

// shared are the maps that are pinned; the others are private to the programs.
var shared = []string{latencyMap, domainsMap, slowestMap, countersMap, eventsMap, settingsMap, pfdsMap, sourcesMap}

// linkPrefix begins the names of pinned links.
const linkPrefix = "link_"

// Start has the programs that On attaches to, and the directory of the pins.
type Start struct {
	Dir string // in a bpffs; empty: DefaultDir
	// Programs are pfd's program file (or /proc/PID/exe), and the program that serves the nodes
	// if that is another one on this machine: its blocks are joined with pfd's faults.
	Programs []string
	// Sources selects from SourceNames; empty: all. The first is always attached.
	Sources []string
}

// On loads the programs, attaches them to every process of the program file, including those
// that start later, and pins them, so that no process must stay. notes are messages for the
// user. Errors match ErrPoint, ErrOn, ErrDir or are the kernel's.
func On(s Start) (notes []string, err error) {
	if s.Dir == "" {
		s.Dir = DefaultDir
	}
	for _, name := range s.Sources {
		if !slices.Contains(sourceNames[:], name) {
			return nil, fmt.Errorf("unknown source %q: want one of %s", name, strings.Join(sourceNames[:], ", "))
		}
	}
	targets, err := find(s.Programs)
	if err != nil {
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
	m, err := load(s, targets)
	if err != nil {
		return notes, errors.Join(err, os.Remove(s.Dir))
	}
	defer m.Close()
	if err := m.pin(); err != nil {
		return notes, errors.Join(err, removeAll(s.Dir))
	}
	return notes, nil
}

// Keep attaches like On but pins nothing. Closing the returned maps detaches.
func Keep(s Start) (*Maps, error) {
	targets, err := find(s.Programs)
	if err != nil {
		return nil, err
	}
	return load(s, targets)
}

// target is a program to attach to.
type target struct {
	program string
	point   *Point
}

// find finds the points of programs, and checks the right to attach.
func find(programs []string) ([]target, error) {
	var list []target
	for _, program := range programs {
		f, err := os.Open(program)
		if err != nil {
			return nil, fmt.Errorf("opening pfd's program: %w", err)
		}
		at, err := Find(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", program, err)
		}
		list = append(list, target{program, at})
	}
	return list, rights()
}

// load loads and attaches the programs.
func load(s Start, targets []target) (_ *Maps, err error) {
	spec, err := loadProbe()
	if err != nil {
		return nil, fmt.Errorf("the programs of this exanetctl: %w", err)
	}
	m := &Maps{dir: s.Dir, maps: map[string]*ebpf.Map{}, links: map[string]link.Link{}}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	for name, ms := range spec.Maps {
		if strings.HasPrefix(name, ".") {
			continue // constants, separate for each program
		}
		if m.maps[name], err = ebpf.NewMap(ms); err != nil {
			return nil, fmt.Errorf("map %s: %w", name, explain(err))
		}
	}
	if err := fill(m.maps); err != nil {
		return nil, err
	}
	for _, t := range targets {
		if err := known(t.program, m.maps[pfdsMap]); err != nil {
			return nil, err
		}
	}
	for _, src := range sources {
		if err := src.start(s, targets, spec, m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// pin pins what load has attached.
func (m *Maps) pin() error {
	for name, l := range m.links {
		if err := l.Pin(filepath.Join(m.dir, name)); err != nil {
			return fmt.Errorf("pinning the link %s: %w", name, err)
		}
	}
	for _, name := range shared {
		if err := m.maps[name].Pin(filepath.Join(m.dir, name)); err != nil {
			return fmt.Errorf("pinning map %s: %w", name, err)
		}
	}
	return nil
}

// fill initializes the maps.
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

// helps reports whether a process, of which text is /proc/PID/cmdline, runs pfd's program with a
// command, as memory helpers do. pfd itself has flags alone.
func helps(text []byte) bool {
	words := strings.Split(string(text), "\x00")
	return len(words) > 1 && words[1] != "" && words[1][0] != '-'
}

// known records the processes that already run a program, so that their first faults count.
// Other processes are recorded at their first batch.
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
			continue // ended, or not accessible to us
		}
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || helps(text) {
			continue
		}
		if err := pfds.Put(uint32(pid), &probePfd{}); err != nil {
			return fmt.Errorf("map %s: %w", pfdsMap, err)
		}
	}
	return nil
}

// anyValue is ANY of probe.h.
const anyValue = ^uint32(0)

// best returns the NOP that this kernel handles fastest. System call 336 (uprobe) shows which
// one it replaces by a call.
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

// rights returns an error that names the missing capability; the kernel would only return
// EPERM.
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

// explain adds a remedy to an error of the kernel.
func explain(err error) error {
	switch {
	case missingBTF() && (errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, fs.ErrNotExist)):
		return fmt.Errorf("%w: the kernel has no BTF: one that was built with CONFIG_DEBUG_INFO_BTF is needed", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: this kernel does not have it", err)
	case errors.Is(err, unix.EINVAL) && strings.Contains(lockdown(), "[confidentiality]"):
		// The verifier then does not know the helpers that read memory
		// (kernel/trace/bpf_trace.c).
		return fmt.Errorf("the kernel's lockdown forbids programs that read memory: boot without lockdown=confidentiality: %w", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		if l := lockdown(); l != "" && !strings.Contains(l, "[none]") {
			return fmt.Errorf("%w: perhaps by the kernel's lockdown: %s", err, l)
		}
		return fmt.Errorf("%w: the kernel does not allow it: CAP_BPF and CAP_PERFMON are needed, and no lockdown that forbids it", err)
	}
	return err
}

// lockdown returns the kernel's lockdown modes with the current one in brackets, or "" if they
// are unknown.
func lockdown() string {
	b, err := os.ReadFile("/sys/kernel/security/lockdown")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func missingBTF() bool {
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	return err != nil
}

// makeDir creates the directory of the pins, in a bpffs, and locks it against concurrent calls
// of On and Off.
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

// openDir opens and locks an existing directory of pins.
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
	if !uids.Own(st.Uid) || st.Mode&0o022 != 0 {
		return nil, errors.Join(fmt.Errorf("%w: %s belongs to uid %d with mode %o: another user could replace the maps: remove it, or name another with --bpffs", ErrDir, dir, st.Uid, st.Mode&0o777), d.Close())
	}
	if on, err := onBPFFS(dir); err != nil || !on {
		return nil, errors.Join(fmt.Errorf("%w: %s is in no bpffs: name a directory of one with --bpffs", ErrDir, dir), err, d.Close())
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: another exanetctl is using it: %w", ErrDir, dir, err), d.Close())
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

// leftovers removes pins that no tracer of this program uses. It returns ErrOn if one does.
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
		if err == nil && st.attached() && !slices.ContainsFunc(st.Programs, func(p Program) bool { return p.Replaced }) {
			return 0, fmt.Errorf("%w, for %s: run `exanetctl trace off` first", ErrOn, st.Programs[0].File)
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
	// Links first, so that no program runs without visible maps.
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

// Off detaches everything and removes the pins. The error matches ErrOff if there are none.
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
