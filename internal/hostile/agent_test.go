package hostile

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/linger"
	"github.com/exanet/pfd/rdma"
)

// order is one command of the test to a process, a line of JSON.
type order struct {
	Op     string
	ID     string // name of a buffer or a transfer
	Kind   string // of a buffer; the source buffer of a write
	Size   uint64
	Off    uint64
	Seed   uint64 // of a pattern; 0: do not touch the memory
	Remote string
	Path   string
	Advice int
	Attach attachOrder
}

type attachOrder struct {
	Socket string
	Node   uint32
	Group  string
	Method string
	Policy string
	UID    uint32
	Accept []device.PDID
	All    bool // AcceptGroup
	Trust  []uint32
	Key    byte // every byte of the group's key; 0: no key
	Count  bool // CountInvalidations
}

// reply is the process's answer to an order.
type reply struct {
	Err    string // why the order failed
	Remote string
	VA     uint64
	Wrong  int
	First  int64
	Done   bool
	Code   uint8
	Text   string
	Count  int
	P50    int64 // ns
	P99    int64
	Worst  int64
	Lat    []int64  // ns
	Bits   []uint64 // pagemap entries, one per page
	Stats  rdma.Stats
	Info   rdma.Info
	Score  score // of a race
}

// word returns the eight bytes of a pattern at word i (splitmix64).
func word(seed, i uint64) uint64 {
	z := seed*0x9e3779b97f4a7c15 + i*0xd1342543de82ef95 + 1
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func fill(b []byte, seed uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], word(seed, uint64(i/8)))
	}
	for i := len(b) &^ 7; i < len(b); i++ {
		b[i] = byte(word(seed, uint64(i/8)) >> (8 * (i % 8)))
	}
}

// wrong counts the bytes of b that differ from the pattern, where b begins at byte off of it.
// Seed 0 means zeros.
func wrong(b []byte, seed, off uint64) (n int, first int64) {
	first = -1
	for i := range b {
		want := byte(0)
		if seed != 0 {
			k := off + uint64(i)
			want = byte(word(seed, k/8) >> (8 * (k % 8)))
		}
		if b[i] != want {
			if n == 0 {
				first = int64(i)
			}
			n++
		}
	}
	return n, first
}

// neither counts the bytes of b that neither match the pattern nor are zero.
func neither(b []byte, seed uint64) (n int, first int64) {
	first = -1
	for i := range b {
		if b[i] != 0 && b[i] != byte(word(seed, uint64(i)/8)>>(8*(uint64(i)%8))) {
			if n == 0 {
				first = int64(i)
			}
			n++
		}
	}
	return n, first
}

// area is a buffer of an agent.
type area struct {
	b    []byte
	fd   int // of its file; -1: none
	va   device.VA
	name string // of its file
}

type obedient struct {
	ep        *rdma.Endpoint
	buffers   map[string]*area
	transfers map[string]*rdma.Transfer
	burst     *burst
	tide      *tide
	storm     *storm
	waits     waits
	impostor  impostor
	attack    *attack
	keep      []any
	forks     []int
	child     *forked
	lingers   *linger.Quiet
	mapped    uintptr // bytes that own has returned
}

// agent executes orders until its standard input ends.
func agent() int {
	if os.Getenv(agentEnv) == "seam" { // run the program in the arguments under a watcher
		err := seamExec(os.Args[1], os.Args[1:], slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, agentEnv+"=") }))
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if os.Getenv(agentEnv) == "maps" { // a process of an attacker
		fmt.Fprintln(os.Stderr, mapMany(os.Args[1:]))
		return 1
	}
	a := &obedient{buffers: map[string]*area{}, transfers: map[string]*rdma.Transfer{}}
	in := bufio.NewScanner(os.Stdin)
	enc := json.NewEncoder(os.Stdout)
	if os.Getenv(agentEnv) == "again" { // after an exec: answer its order
		_ = enc.Encode(reply{})
	}
	for in.Scan() {
		var o order
		var r reply
		err := json.Unmarshal(in.Bytes(), &o)
		if err == nil {
			r, err = a.obey(o)
		}
		if err != nil {
			r.Err = err.Error()
		}
		if enc.Encode(r) != nil {
			return 1
		}
	}
	if a.burst != nil {
		a.burst.end()
	}
	for _, pid := range a.forks {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if a.ep != nil {
		_ = a.ep.Close()
	}
	return 0
}

func (a *obedient) attach(o attachOrder) (*rdma.Endpoint, error) {
	method, err := pagein.ParseMethod(o.Method)
	if err != nil {
		return nil, err
	}
	policy, err := pagein.ParsePolicy(o.Policy)
	if err != nil {
		return nil, err
	}
	if far := os.Getenv(farEnv); far != "" && o.Node == 1 {
		o.Socket = far
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return rdma.Attach(ctx, rdma.Options{
		Socket: o.Socket, Node: device.NodeID(o.Node), Group: o.Group, Method: method, Policy: policy,
		Accept: o.Accept, AcceptGroup: o.All, Trust: o.Trust, GroupKey: o.key(), CountInvalidations: o.Count,
	})
}

func (o *attachOrder) key() (key [rdma.GroupKeySize]byte) {
	for i := range key {
		key[i] = o.Key
	}
	return key
}

func (a *obedient) buffer(id string) (*area, error) {
	b := a.buffers[id]
	if b == nil {
		return nil, fmt.Errorf("no buffer %q", id)
	}
	return b, nil
}

func (a *obedient) obey(o order) (r reply, err error) {
	if r, ok, err := a.waits.obey(a, o); ok {
		return r, err
	}
	switch o.Op {
	case "daemonize": // the test ends the parent
		pid, errno := fork(0)
		if errno != 0 {
			err = errno
		}
		return reply{Count: pid}, err
	case "attach":
		if a.ep, err = a.attach(o.Attach); err != nil {
			return r, err
		}
		r.Info = a.ep.Info()
		return r, nil
	case "info":
		r.Info = a.ep.Info()
		return r, nil
	case "stats":
		r.Stats = a.ep.Stats()
		return r, nil
	case "close":
		err = a.ep.Close()
		return r, err
	case "buffer":
		return a.make(o)
	case "drop": // all buffers
		for id, m := range a.buffers {
			err = errors.Join(err, unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m.b)), uintptr(len(m.b))))
			delete(a.buffers, id)
		}
		a.keep = nil
		return r, err
	case "write":
		return r, a.write(o)
	case "read":
		return r, a.read(o)
	case "wait", "poll":
		return a.wait(o)
	case "burst":
		a.burst, err = a.startBurst(o.Attach, o.Size)
		return r, err
	case "some":
		return r, a.burst.some(int(o.Size))
	case "account":
		return a.burst.account()
	case "attack":
		a.attack, err = startAttack(o)
		return r, err
	case "did":
		return a.attack.reply(), nil
	case "forget":
		r.P99, r.Count = a.burst.forget()
		return r, nil
	case "stop":
		return a.burst.end(), nil
	case "tide":
		a.tide, err = a.startTide(o)
		return r, err
	case "ebb":
		r.Lat = a.tide.stop(int64(o.Size))
		r.Text = a.tide.text
		return r, nil
	case "times":
		r.Lat, err = a.times(o)
		return r, err
	case "flood":
		r.Count, err = a.flood(o)
		return r, err
	case "dial", "claim", "hello":
		return a.impostor.obey(o)
	case "setuid", "undumpable", "leaderless":
		return r, changeSelf(o)
	case "race":
		return a.race(o)
	case "storm":
		a.storm, err = a.startStorm(o)
		return r, err
	case "calm":
		return a.storm.stop()
	case "exec":
		return r, a.exec(o)
	case "linger":
		r.Count, err = a.linger(o)
		return r, err
	case "target":
		return a.target(o)
	case "foreign":
		return a.foreign(o), nil
	case "gone":
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := a.ep.Write(ctx, rdma.WriteRequest{Src: []byte{1}, Dst: rdma.Remote{Node: 0, PDID: 1, VA: 4096, Len: 1}})
		r.Done = errors.Is(err, rdma.ErrGone)
		return r, nil
	}
	b, err := a.buffer(o.ID)
	if err != nil {
		return r, err
	}
	if o.Size == 0 {
		o.Size = uint64(len(b.b)) - o.Off
	}
	if o.Op == "watch" {
		r.Wrong = b.watch(o)
		return r, nil
	}
	part := b.b[o.Off : o.Off+o.Size]
	switch o.Op {
	case "fill":
		fill(part, o.Seed)
	case "check":
		r.Wrong, r.First = wrong(part, o.Seed, o.Off)
	case "byte":
		r.Count = int(part[0])
	case "prefetch":
		err = a.ep.Prefetch(context.Background(), b.va, o.Size, true)
	case "advise":
		if o.Advice == unix.MADV_DONTNEED && !a.ep.Caps().SVA {
			o.Advice = unix.MADV_REMOVE // the pages of shared memory belong to the file
		}
		err = unix.Madvise(part, o.Advice)
		if err == nil && o.Advice == unix.MADV_REMOVE {
			err = a.ep.Invalidate(rdma.VAOf(part), uint64(len(part)))
		}
	case "protect":
		err = unix.Mprotect(part, o.Advice)
	case "lock":
		err = unix.Mlock(part)
	case "unmap":
		err = unix.MunmapPtr(unsafe.Pointer(&part[0]), uintptr(len(part)))
		err = errors.Join(err, a.vacant(part))
	case "move":
		part = b.b
		err = errors.Join(a.move(b), a.vacant(part))
	case "punch":
		err = unix.Fallocate(b.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(o.Off), int64(o.Size))
	case "truncate":
		err = unix.Ftruncate(b.fd, int64(o.Off))
	case "fork":
		err = a.fork()
	case "fork with":
		err = a.forkWith(part, o.Seed)
	case "check child":
		err = a.checkChild(part)
	case "replace":
		err = replaced(part)
	case "either": // each byte is the pattern's or zero
		if r.Wrong, r.First = neither(part, o.Seed); r.Wrong != 0 {
			err = fmt.Errorf("%d bytes are neither old nor new, the first at %d", r.Wrong, r.First)
		}
	case "same":
		fill(part, o.Seed)
	case "isSame":
		r.Wrong, r.First = wrong(part, o.Seed, 0)
	case "pagemap":
		r.Bits, err = pagemap(part)
	default:
		err = fmt.Errorf("unknown order %q", o.Op)
	}
	return r, err
}

// write starts a transfer. It waits only for a free channel.
func (a *obedient) write(o order) error {
	src, err := a.buffer(o.Kind)
	if err != nil {
		return err
	}
	dst, err := rdma.ParseRemote(o.Remote)
	if err != nil {
		return err
	}
	size := o.Size
	if size == 0 {
		size = uint64(len(src.b))
	}
	t, err := a.ep.Write(context.Background(), rdma.WriteRequest{SrcVA: src.va, Size: size, Dst: dst, Offset: o.Off})
	if err != nil {
		return err
	}
	a.transfers[o.ID] = t
	return nil
}

func (a *obedient) wait(o order) (r reply, err error) {
	t := a.transfers[o.ID]
	if t == nil {
		return r, fmt.Errorf("no transfer %q", o.ID)
	}
	if o.Op == "poll" {
		r.Done, r.Text, r.Count = t.Poll().Final(), t.Poll().String(), t.PausedBlocks()
		return r, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), orderPatience-2*time.Second)
	defer cancel()
	err = t.Wait(ctx)
	var failed *rdma.TransferError
	switch {
	case err == nil:
		r.Done = true
	case errors.As(err, &failed):
		r.Code, r.Text, err = failed.Code, failed.Error(), nil
	}
	return r, err
}

// exec replaces the process's program. The new program inherits every socket; the memory is
// gone. With kind pipes it also inherits those, and its keeper stays.
func (a *obedient) exec(o order) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		var fd int
		_, serr := fmt.Sscan(e.Name(), &fd)
		kept := strings.HasPrefix(link, "socket:") || o.Kind == "pipes" && strings.HasPrefix(link, "pipe:")
		if err != nil || serr != nil || !kept {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	return unix.Exec(o.Path, []string{o.Path}, []string{agentEnv + "=again", "GORACE=atexit_sleep_ms=0"})
}

// fork creates a child that shares every page until one of the two writes it. The child runs no
// Go code: it sleeps until its parent ends.
//
//go:norace
func (a *obedient) fork() error {
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the child dies with this thread
		pid, errno := fork(unix.SIGKILL)
		if errno != 0 {
			errs <- errno
			return
		}
		a.forks = append(a.forks, pid)
		errs <- nil
		select {}
	}()
	return <-errs
}

// fork creates a sleeping child, which receives the signal atEnd (0: none) when its parent
// ends.
//
//go:norace
func fork(atEnd unix.Signal) (int, unix.Errno) {
	all, old := ^uint64(0), uint64(0)
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(atEnd), 0, 0, 0, 0)
		for {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	return int(pid), errno
}

// pagemap returns the entries of whole pages.
func pagemap(b []byte) ([]uint64, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw := make([]byte, len(b)/device.PageSize*8)
	if _, err := f.ReadAt(raw, int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))/device.PageSize*8)); err != nil {
		return nil, err
	}
	var list []uint64
	for i := 0; i < len(raw); i += 8 {
		list = append(list, binary.NativeEndian.Uint64(raw[i:]))
	}
	return list, nil
}

// burst writes between two nodes until it is stopped.
type burst struct {
	eps  [2]*rdma.Endpoint
	quit chan struct{}
	over chan struct{}

	mu    sync.Mutex
	n     int
	lat   []int64
	wrong int
	text  string
}

const burstSize = 20_000 // two blocks, five pages

// startBurst starts a burst of transfers of size bytes; 0 means burstSize.
func (a *obedient) startBurst(o attachOrder, size uint64) (*burst, error) {
	if size == 0 {
		size = burstSize
	}
	s := &burst{quit: make(chan struct{}), over: make(chan struct{})}
	s.eps[0] = a.ep
	o.Node = 1 - o.Node
	var err error
	if s.eps[1], err = a.attach(o); err != nil {
		return nil, err
	}
	src, err := burstMemory(s.eps[0], int(size))
	if err != nil {
		return nil, err
	}
	dst, err := burstMemory(s.eps[1], int(size))
	if err != nil {
		return nil, err
	}
	remote, err := s.eps[1].Export(dst)
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(s.over)
		for {
			select {
			case <-s.quit:
				return
			default:
			}
			if !s.once(src, dst, remote) {
				return
			}
		}
	}()
	return s, nil
}

// burstMemory returns memory that the node of an endpoint can access. It stays until the
// process ends.
func burstMemory(e *rdma.Endpoint, size int) ([]byte, error) {
	if e.Caps().SVA {
		return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	}
	b, err := e.Alloc(size)
	if err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// once performs one checked transfer into absent memory.
func (s *burst) once(src, dst []byte, remote rdma.Remote) bool {
	s.mu.Lock()
	seed := uint64(s.n + 1)
	s.mu.Unlock()
	fill(src, seed)
	advice := unix.MADV_DONTNEED
	if !s.eps[1].Caps().SVA {
		advice = unix.MADV_REMOVE
	}
	err := unix.Madvise(dst, advice)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
	if err == nil {
		var t *rdma.Transfer
		if t, err = s.eps[0].Write(ctx, rdma.WriteRequest{Src: src, Dst: remote}); err == nil {
			err = t.Wait(ctx)
		}
	}
	took := time.Since(begin)
	n := 0
	if err == nil {
		n, _ = wrong(dst, seed, 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	s.lat = append(s.lat, int64(took))
	s.wrong += n
	if err != nil {
		s.text = fmt.Sprintf("transfer %d after %v: %v", s.n, took, err)
		return false
	}
	return n == 0
}

func (s *burst) done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// some waits for n more transfers.
func (s *burst) some(n int) error {
	from := s.done()
	for deadline := time.Now().Add(patience / 2); s.done() < from+n; time.Sleep(time.Millisecond) {
		select {
		case <-s.over:
			return nil // stop returns the reason
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the bystander made %d of %d transfers", s.done()-from, n)
		}
	}
	return nil
}

func (s *burst) forget() (p99 int64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = len(s.lat)
	if n > 0 {
		slices.Sort(s.lat)
		p99 = s.lat[(n*99+99)/100-1]
	}
	s.lat = s.lat[:0]
	return p99, n
}

// account waits for the transfer in flight, and returns the durations of the transfers since
// the last account.
func (s *burst) account() (r reply, err error) {
	err = s.some(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.lat); n > 0 {
		slices.Sort(s.lat)
		r.P50, r.P99, r.Worst, r.Count = s.lat[(n-1)/2], s.lat[(n*99+99)/100-1], s.lat[n-1], n
	}
	r.Text, r.Wrong = s.text, s.wrong
	s.lat = s.lat[:0]
	return r, err
}

func (s *burst) end() reply {
	select {
	case <-s.quit:
	default:
		close(s.quit)
	}
	<-s.over
	p99, _ := s.forget()
	_ = s.eps[1].Close()
	return reply{Count: s.n, Wrong: s.wrong, Text: s.text, P99: p99}
}
