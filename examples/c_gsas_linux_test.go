package examples

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/internal/golden"
	"github.com/exanet/pfd/rdma"
)

// gsasProgram is a run of testdata/gsas.c, which takes commands.
type gsasProgram struct {
	testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr bytes.Buffer
}

func buildGSAS(t testing.TB, flags ...string) string {
	t.Helper()
	dir := public(t)
	library(t, dir, flags...)
	return compile(t, dir, filepath.Join("..", "testdata", "gsas"), flags...)
}

// startGSAS attaches a program to a node. It runs until the test ends or its input is closed.
func startGSAS(t testing.TB, bin, socket, node string, more ...string) *gsasProgram {
	t.Helper()
	p := &gsasProgram{TB: t, cmd: exec.Command(bin, append([]string{socket, node}, more...)...)}
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	t.Cleanup(func() {
		p.in.Close()
		_ = p.cmd.Wait() // end has checked it, or it has been killed
	})
	return p
}

// do performs a command and returns what the program says.
func (p *gsasProgram) do(format string, args ...any) string {
	p.Helper()
	fmt.Fprintf(p.in, format+"\n", args...)
	if !p.out.Scan() {
		p.Errorf(format+": the program has ended: %v, %s", append(args, p.cmd.Wait(), p.stderr.String())...)
	}
	return p.out.Text()
}

// want performs a command and checks what the program says: of an error, how it begins.
func (p *gsasProgram) want(want, format string, args ...any) {
	p.Helper()
	if got := p.do(format, args...); got != want && !(strings.HasPrefix(want, "-") && strings.HasPrefix(got, want)) {
		p.Errorf(format+": %q, want %q", append(args, got, want)...)
	}
}

// address performs a command whose first value is an address.
func (p *gsasProgram) address(format string, args ...any) gsas.Address {
	p.Helper()
	said := p.do(format, args...)
	status, value, _ := strings.Cut(said, " ")
	v, err := strconv.ParseUint(value, 0, 64)
	if status != "0" || err != nil {
		p.Fatalf(format+": %q", append(args, said)...)
	}
	return gsas.Address(v)
}

// token begins a tree, unless the program is in one, and returns its token.
func (p *gsasProgram) token(command string) string {
	p.Helper()
	if command != "" {
		p.want("0", "%s", command)
	}
	_, token, _ := strings.Cut(p.do("token"), " ")
	if _, err := gsas.ParseToken(token); err != nil {
		p.Fatal(err)
	}
	return token
}

// end lets the program end, and checks how.
func (p *gsasProgram) end() {
	p.Helper()
	p.in.Close()
	if err := p.cmd.Wait(); err != nil || p.stderr.Len() > 0 {
		p.Errorf("%v, %s", err, p.stderr.String())
	}
}

// attachThreads attaches this process to a node. It may have threads of the global address space.
func attachThreads(t testing.TB, socket string, node device.NodeID) *rdma.Endpoint {
	t.Helper()
	ep, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: node, Threads: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	return ep
}

// joinGo makes a thread of a tree in this process.
func joinGo(t testing.TB, socket string, node device.NodeID, token string) *gsas.Thread {
	t.Helper()
	parsed, err := gsas.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	thread, err := gsas.Join(attachThreads(t, socket, node), parsed)
	if err != nil {
		t.Fatal(err)
	}
	return thread
}

func TestGSASOfC(t *testing.T) {
	bin := buildGSAS(t)
	for name, test := range map[string]func(*testing.T, string){
		"messages": gsasMessages, "words": gsasWords, "mailbox": gsasMailbox, "operations": gsasOperations, "counter": gsasCounter, "loss": gsasLoss,
		"wrong": gsasWrong, "invalid": gsasInvalid, "older pfd": gsasOfOlderPFD, "stopped pfd": gsasOfStoppedPFD, "killed pfd": gsasWithoutPFD, "hostile": gsasHostile,
	} {
		t.Run(name, func(t *testing.T) { test(t, bin) })
	}
}

// runGSAS returns what a run without a pfd says.
func runGSAS(t *testing.T, bin, in string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), bin, args...)
	c.Stdin = strings.NewReader(in)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

// The messages to pfd are those of the document, but for the product.
func gsasMessages(t *testing.T, bin string) {
	document := golden.Document(t, filepath.Join("..", "docs", "attach.md"))
	const product, end = 8, 72
	for i, line := range strings.Fields(runGSAS(t, bin, "", "golden")) {
		name := []string{"thread", "unthread"}[i]
		got, err := hex.DecodeString(line)
		want := document[name]
		if err != nil || !bytes.Equal(got[:product], want[:product]) || !bytes.Equal(got[end:], want[end:]) {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
	}
	m := document["threaded"]
	read := func(m []byte) string { return runGSAS(t, bin, "", "threaded", hex.EncodeToString(m)) }
	if got, want := read(m), "2 0x840001 0x800000 0x103 "+strings.Repeat("74", 16); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for at := end; at < len(m); at++ {
		for _, v := range []byte{0, 0x1f, 0x40, 0xff} {
			b := bytes.Clone(m)
			b[at] = v
			if _, err := attach.DecodeThreaded(b); (err == nil) != (read(b) != "no") {
				t.Errorf("byte %d is %#x: %v, in C %q", at, v, err, read(b))
			}
		}
	}
	copy(m[88:], make([]byte, 16))
	if read(m) != "no" {
		t.Error("no token is accepted")
	}
}

// Requests are the words of the vectors, but for the bits that a packetizer writes.
func gsasWords(t *testing.T, bin string) {
	requests := 0
	for _, c := range golden.Read(t, filepath.Join("..", "device", "atomics", "testdata", "messages.txt")) {
		if c.Text(t, "kind") != "request" {
			continue
		}
		requests++
		words := c.Words(t, "words")
		words[0] &^= atomics.WiredBits
		args := []string{"request", c.Text(t, "op"), c.Text(t, "address")}
		for _, v := range c.Words(t, "args") {
			args = append(args, fmt.Sprintf("%#x", v))
		}
		var want []string
		for _, w := range words {
			want = append(want, fmt.Sprintf("%016x", w))
		}
		if got := runGSAS(t, bin, "", args...); got != strings.Join(want, " ") {
			t.Errorf("%s: %s, want %s", c.Name, got, want)
		}
	}
	if requests < 4 {
		t.Errorf("%d requests", requests)
	}
	for op := range atomics.Op(0x33) { // the lengths of all of them
		if op.Valid() && op != atomics.Spawn && op != atomics.Join {
			if got := len(strings.Fields(runGSAS(t, bin, "", "request", fmt.Sprint(uint8(op)), "8"))); got != 2+op.Args() {
				t.Errorf("%v: %d words", op, got)
			}
		}
	}
}

// A thread accepts only answers to its own requests, and only of the unit that has got them.
func gsasMailbox(t *testing.T, bin string) {
	const node, number = 5, 0x8041
	source := func(node, pdid, count uint64) uint64 { return node | pdid<<32 | count<<56 }
	answer := func(channel int, number uint16, status atomics.Status, values ...uint64) []uint64 {
		a := atomics.Answer{Number: number, Protection: 0x800000, Tag: atomics.TagOf(channel, number), Status: status, N: len(values)}
		copy(a.Values[:], values)
		words := make([]uint64, device.PktzMaxWords)
		a.Encode(words)
		return words
	}
	good := answer(1, number, atomics.OK, 1, 2, 3, 4)
	type message struct {
		source uint64
		words  []uint64
		want   string
	}
	const none = "- - - -"
	messages := []message{
		{source(node, 0, 5), good, "- 0,1,2,3,4 - -"},
		{source(node, 0, 3), good, "- 0,1,2,0,0 - -"},
		{source(node, 0, 1), good, "- 0,0,0,0,0 - -"},
		{source(node, 0, 1), answer(0, number, atomics.Denied), "5,0,0,0,0 - - -"},
		{source(node, 0, 1), answer(2, number, atomics.Waiting), "- - waits -"},
		{source(node, 0, 2), answer(2, number, 255, 7), "- - 255,7,0,0,0 -"},
		{source(node, 0, 0), good, none},
		{source(node, 0, 6), good, none},
		{source(node, 0, 15), good, none},
		{source(node+1, 0, 5), good, none},
		{source(node|1<<21, 0, 5), good, none},
		{source(node, 1, 5), good, none},
		{source(node, 0x8000, 5), good, none},
		{source(node, 0, 5), answer(1, number+1, atomics.OK, 1), none},
		{source(node, 0, 5), answer(1, number^0x8000, atomics.OK, 1), none},
		{source(node, 0, 5), answer(3, number, atomics.OK, 1), none}, // nobody awaits it
		{^uint64(0), slicesOf(^uint64(0)), none},
		{0, slicesOf(0), none},
	}
	var in, want strings.Builder
	for range 10 { // the ring more than once
		for _, m := range messages {
			fmt.Fprintf(&in, "%x", m.source)
			for _, w := range m.words {
				fmt.Fprintf(&in, " %x", w)
			}
			fmt.Fprintln(&in)
			fmt.Fprintln(&want, m.want+" ")
		}
	}
	got := strings.Split(runGSAS(t, bin, in.String(), "mailbox", fmt.Sprint(node), fmt.Sprint(number)), "\n")
	for i, w := range strings.Split(strings.TrimSpace(want.String()), "\n") {
		if i >= len(got) || strings.TrimSpace(got[i]) != strings.TrimSpace(w) {
			t.Fatalf("message %+v: %q", messages[i%len(messages)], got[i:min(i+1, len(got))])
		}
	}
}

func slicesOf(v uint64) []uint64 { return []uint64{v, v, v, v, v, v, v, v} }

// Each operation, on both nodes, at the ends of a page.
func gsasOperations(t *testing.T, bin string) {
	p := startGSAS(t, bin, start(t).Socket(), "1")
	p.token("begin")
	for _, node := range []int{0, 1} {
		a := p.address("alloc %d 2 0", node)
		for _, at := range []gsas.Address{a, a + 2*gsas.PageSize - 32} {
			p.want("0 0", "load64 %#x", uint64(at))
			p.want("0", "store64 %#x 5", uint64(at))
			p.want("0 0x5", "fetch_add %#x 0xffffffffffffffff", uint64(at))
			p.want("0 0x4", "swap %#x 0xff", uint64(at))
			p.want("0 0xff", "fetch_and %#x 0x3c", uint64(at))
			p.want("0 0x3c", "fetch_or %#x 1", uint64(at))
			p.want("0 0x3d", "fetch_xor %#x 0xf", uint64(at))
			p.want("0 0x32", "compare_swap %#x 1 2", uint64(at))
			p.want("0 0x32", "compare_swap %#x 0x32 2", uint64(at))
			p.want("0 0x2", "load64 %#x", uint64(at))
			p.want("0", "store128 %#x 1 2", uint64(at+16))
			p.want("0 0x1 0x2", "compare_swap128 %#x 1 3 8 8", uint64(at+16))
			p.want("0 0x1 0x2", "compare_swap128 %#x 1 2 3 4", uint64(at+16))
			p.want("0 0x3 0x4", "load128 %#x", uint64(at+16))
			p.want("0", "store256 %#x 1 2 3 4", uint64(at))
			p.want("0 0x1 0x2 0x3 0x4", "compare_store256 %#x 2 9 9 9 9", uint64(at))
			p.want("0 0x1 0x2 0x3 0x4", "compare_store256 %#x 1 9 8 7 6", uint64(at))
			p.want("0 0x9 0x8 0x7 0x6", "load256 %#x", uint64(at))
		}
		// Four at once, and no fifth.
		var numbers []string
		for i := range 4 {
			numbers = append(numbers, p.do("start %d %#x 1", atomics.FetchAdd, uint64(a)+8*uint64(i)))
		}
		p.want("-16:", "start %d %#x", atomics.Read64, uint64(a))
		p.want("-16:", "load64 %#x", uint64(a))
		for i, n := range numbers {
			p.want(fmt.Sprintf("0 %#x 0 0 0", 9-i), "finish %s", n)
			p.want("-22:", "finish %s", n)
		}
		p.want("-22:", "start 0x20 %#x", uint64(a))
		p.want("-22:", "start -1 %#x", uint64(a))
		p.want("-22:", "finish -1")
		p.want("0", "free %#x", uint64(a))
		if b := p.address("alloc %d 1 %#x", node, uint64(a+gsas.PageSize)); b != a+gsas.PageSize {
			t.Errorf("asked for %v, got %v", a+gsas.PageSize, b)
		}
		p.want("0 0", "load64 %#x", uint64(a+gsas.PageSize))
	}
	id := p.address("id")
	p.want("1", "alive %d", uint64(id))
	p.want("0", "alive 1")
	// The memory of the own node.
	own, other, directory := p.address("alloc 1 1 0"), p.address("alloc 0 1 0"), p.address("directory")
	if got := p.address("alloc 1 1 %#x", uint64(directory)); got != directory {
		t.Errorf("asked for %v, got %v", directory, got)
	}
	for _, at := range []gsas.Address{own + 8, directory + gsas.PageSize - 8} {
		p.want("0", "store64 %#x 7", uint64(at))
		p.want("0 0x7", "map %#x 8 3", uint64(at))
		p.want("0 0xa", "load64 %#x", uint64(at))
	}
	for name, c := range map[string][2]uint64{
		"another node": {uint64(other), 8}, "partition 0": {own.Offset(), 8}, "another region": {uint64(own) ^ 1<<40, 8}, "beyond the directory": {uint64(directory), 4097},
		"another directory": {uint64(directory) + 4096, 8}, "too many": {uint64(own), 1 << 63}, "the end of the region": {uint64(own) | 0x3ffffffff, 1},
	} {
		if said := p.do("map %#x %d 0", c[0], c[1]); !strings.HasPrefix(said, "-14: map ") {
			t.Errorf("%s: %q", name, said)
		}
	}
	p.want("0", "close")
	p.end()
}

// Programs in C and in Go on two nodes add to the same words, each add is done once, and they use each other's trees.
func gsasCounter(t *testing.T, bin string) {
	socket := start(t).Socket()
	a, b := startGSAS(t, bin, socket, "0"), startGSAS(t, bin, socket, "1")
	token := a.token("begin")
	b.want("0", "join %s", token)
	if got := b.token(""); got != token || b.do("tree") != a.do("id") || b.do("id") == a.do("id") {
		t.Errorf("token %s, want %s; trees %s and %s", got, token, a.do("tree"), b.do("tree"))
	}
	threads := []*gsas.Thread{joinGo(t, socket, 0, token), joinGo(t, socket, 1, token)}
	const adds = 500
	for node := range 2 {
		at := a.address("alloc %d 1 0", node)
		var all sync.WaitGroup
		for _, p := range []*gsasProgram{a, b} {
			all.Go(func() { p.want("0", "count %#x %d", uint64(at), adds) })
		}
		for _, th := range threads {
			all.Go(func() {
				for range adds {
					if _, err := th.FetchAdd(t.Context(), at, 1); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		a.want(fmt.Sprintf("0 %#x", 2*8*adds+2*adds), "load64 %#x", uint64(at))
	}
	// The tree goes on without its root.
	at := a.address("alloc 1 1 0")
	a.want("0", "store64 %#x 3", uint64(at))
	a.end()
	b.want("0 0x3", "load64 %#x", uint64(at))
	// More threads than an interface number has: their messages' numbers continue.
	for range 80 {
		b.want("0", "join %s", token)
		b.want("0", "store64 %#x 9", uint64(at))
		b.want("0 0x9", "load64 %#x", uint64(at))
		b.want("0", "close")
	}
	b.end()
}

// Each add is done once, although the link loses frames.
func gsasLoss(t *testing.T, bin string) {
	p := startGSAS(t, bin, startLossy(t, 0.05).Socket(), "0")
	p.token("begin")
	at := p.address("alloc 1 1 0")
	p.want("0", "count %#x 50", uint64(at))
	p.want(fmt.Sprintf("0 %#x", 8*50), "load64 %#x", uint64(at))
	p.end()
}

// Calls that fail say why, and change nothing.
func gsasWrong(t *testing.T, bin string) {
	socket := start(t).Socket()
	p, other := startGSAS(t, bin, socket, "0"), startGSAS(t, bin, socket, "1")
	p.want("0", "errors 1")
	p.want("1", "errors 1")
	p.want("-22: \"\" is not the token of a tree: give its 32 hexadecimal digits", "join")
	p.want("-22:", "join %s", strings.Repeat("0", 32))
	p.want("-22:", "join %sg", strings.Repeat("1", 31))
	p.want("-22:", "join %s", strings.Repeat("1", 33))
	p.want("-2: pfd refused:", "join %s", strings.Repeat("1", 32))
	token := p.token("begin")
	other.token("begin")
	p.want("-28: a token's text has 33 bytes", "token 32")
	mine, theirs, freed := p.address("alloc 1 1 0"), other.address("alloc 1 1 0"), p.address("alloc 0 1 0")
	p.want("0", "free %#x", uint64(freed))
	for _, at := range []gsas.Address{ // in partition 0, misaligned, behind the page, of a freed page, of no node, the last one
		gsas.Address(mine.Offset()), mine + 4, mine + gsas.PageSize, freed, gsas.At(77, 0), ^gsas.Address(7),
	} {
		p.want(fmt.Sprintf("-14: fetch_add at %v:", at), "fetch_add %#x 1", uint64(at))
	}
	p.want("-14:", "store128 %#x 1 1", uint64(mine)+8)
	p.want("-14:", "load256 %#x", uint64(mine)+16)
	p.want("-14:", "free %#x", uint64(mine)+gsas.PageSize)
	p.want("-14:", "free %#x", uint64(freed))
	p.want("-13:", "fetch_add %#x 1", uint64(theirs))
	p.want("-13:", "free %#x", uint64(theirs))
	p.want("-14:", "alloc 77 1 0")
	p.want("-14:", "alloc 65535 1 0")
	p.want("-28: alloc at 0x0001-0000-0000-0000:", "alloc 0 0 0")
	p.want("-28: alloc at 0x0001-0000-0000-0000:", "alloc 0 1099511627776 0")
	p.want("0", "child %#x", uint64(mine))
	p.want("0 0", "load64 %#x", uint64(mine))
	other.want("0 0", "load64 %#x", uint64(theirs))
	for range attach.MaxThreads - 1 {
		p.want("0", "join %s", token)
	}
	p.want("-122: pfd refused:", "join %s", token)
	plain := startGSAS(t, bin, socket, "0", "plain")
	plain.want("-22: the attachment has no threads of the global address space: attach with EXANET_THREADS", "begin")
	plain.end()
	other.end()
	p.end()
}

// An invalid address ends the program, by default.
func gsasInvalid(t *testing.T, bin string) {
	socket := start(t).Socket()
	q := startGSAS(t, bin, socket, "1")
	q.token("begin")
	theirs := q.address("alloc 0 1 0")
	for _, c := range []struct{ command, says string }{
		{"load64 0x18", "exanet: invalid address: load64 at 0x0000-0000-0000-0018: no allocated page has the address"},
		{fmt.Sprintf("swap %#x 1", uint64(theirs)), fmt.Sprintf("exanet: invalid address: swap at %v: the page belongs to another tree", theirs)},
		{"free 0x2000000000000", "exanet: invalid address: free at 0x0002-0000-0000-0000: "},
	} {
		p := startGSAS(t, bin, socket, "0")
		p.token("begin")
		fmt.Fprintln(p.in, c.command)
		if p.out.Scan() {
			t.Errorf("%s: %s", c.command, p.out.Text())
		}
		var exit *exec.ExitError
		if err := p.cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGABRT || !strings.HasPrefix(p.stderr.String(), c.says) {
			t.Errorf("%s: %v, %s", c.command, err, p.stderr.String())
		}
	}
	q.want("0 0", "load64 %#x", uint64(theirs))
}

// A pfd that does not know the pages of threads refuses them.
func gsasOfOlderPFD(t *testing.T, bin string) {
	socket := filepath.Join(public(t), "pfd.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket + attach.SocketSuffix, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if n, err := c.Read(make([]byte, 1024)); n > 0 && err == nil {
				r := attach.RefusedError{Product: "pfd 0.9", Code: attach.CodeProtocol, Refused: attach.TypeHello, Text: "reserved bits are not zero"}
				_, _ = c.Write(r.Append(nil))
			}
			c.Close()
		}
	}()
	for args, want := range map[string]string{
		"":      "-95: attach with threads: this pfd has none (pfd 0.9): use one of this release, or attach without EXANET_THREADS",
		"plain": "-71: pfd refused: reserved bits are not zero",
	} {
		if got := runGSAS(t, bin, "", append([]string{socket, "0"}, strings.Fields(args)...)...); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// While pfd is stopped a call waits, at most for its limit, and is then done once.
func gsasOfStoppedPFD(t *testing.T, bin string) {
	socket, pfd := startProcess(t, 2, -1)
	p := startGSAS(t, bin, socket, "0")
	p.token("begin")
	at := p.address("alloc 1 1 0")
	p.want("-22", "limit -1")
	p.want("0", "limit 60")
	if err := pfd.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.want(fmt.Sprint(-int(syscall.ETIMEDOUT)), "load64 %#x", uint64(at))
	}
	if err := pfd.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.want("60", "limit 0")
	if err := pfd.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(p.in, "count %#x 1\n", uint64(at))
	if err := pfd.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if p.out.Scan(); p.out.Text() != "0" {
		t.Errorf("%q", p.out.Text())
	}
	p.want(fmt.Sprintf("0 %#x", 8), "load64 %#x", uint64(at))
	p.end()
}

// Operations end when pfd is killed.
func gsasWithoutPFD(t *testing.T, bin string) {
	socket := filepath.Join(public(t), "pfd.sock")
	pfd := startKilled(t, socket)
	p := startGSAS(t, bin, socket, "0")
	p.token("begin")
	at := p.address("alloc 0 1 0")
	p.want("0 0", "load64 %#x", uint64(at))
	fmt.Fprintf(p.in, "count %#x 1000000000\n", uint64(at))
	if err := pfd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = pfd.Wait() // it was killed
	p.out.Scan()
	if said := p.out.Text(); !strings.HasPrefix(said, "-107:") {
		t.Errorf("%q", said)
	}
	p.want("-107: the attachment has ended: attach again", "load64 %#x", uint64(at))
	p.want("0", "close")
	p.end()
}

// A program writes over its thread's packetizer and mailbox: its calls end, and the next thread works.
func gsasHostile(t *testing.T, bin string) {
	p := startGSAS(t, bin, start(t).Socket(), "0")
	token := p.token("begin")
	p.want("0", "errors 1")
	at := p.address("alloc 1 1 0")
	keep := startGSAS(t, bin, p.cmd.Args[1], "1")
	keep.want("0", "join %s", token)
	for range 3 {
		p.want("0", "scribble %#x 300", uint64(at))
		p.want("0", "close")
		p.want("0", "join %s", token)
		p.want("0", "store64 %#x 0", uint64(at))
		p.want("0", "count %#x 20", uint64(at))
		p.want("0 0xa0", "load64 %#x", uint64(at))
	}
	keep.want("0 0xa0", "load64 %#x", uint64(at))
	p.end()
}

// The library has no memory error, no leak and no data race, by the sanitizers.
func TestSanitizedGSAS(t *testing.T) {
	for _, flags := range [][]string{{"-fsanitize=address,undefined", "-fno-omit-frame-pointer"}, {"-fsanitize=thread"}} {
		t.Run(flags[0], func(t *testing.T) {
			bin := buildGSAS(t, flags...)
			for name, test := range map[string]func(*testing.T, string){
				"mailbox": gsasMailbox, "operations": gsasOperations, "counter": gsasCounter, "wrong": gsasWrong, "killed pfd": gsasWithoutPFD,
			} {
				t.Run(name, func(t *testing.T) { test(t, bin) })
			}
		})
	}
}

// examples/c/counter.c: two nodes add to one word.
func TestCounterOfC(t *testing.T) {
	dir, client := public(t), start(t)
	library(t, dir)
	bin := compile(t, dir, "counter")
	t.Setenv("RUNTIME_DIRECTORY", filepath.Dir(client.Socket()))
	begin := exec.Command(bin, "begin")
	out, err := begin.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := begin.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(begin.Process.Kill(), begin.Wait()) }() // it ends by a signal
	said := bufio.NewScanner(out)
	said.Scan()
	token := said.Text()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"add", token, "10"}, "10\n"},
		{[]string{"add", token, "5"}, "15\n"},
		{[]string{"add", strings.Repeat("0f", 16), "1"}, "counter: pfd refused: "},
		{[]string{"add", "word", "1"}, "counter: \"word\" is not the token of a tree: give its 32 hexadecimal digits\n"},
		{nil, "usage: "},
	} {
		out, err := exec.CommandContext(t.Context(), bin, c.args...).CombinedOutput()
		if !strings.HasPrefix(string(out), c.says) || (err == nil) != (c.says[0] == '1') {
			t.Errorf("%v: %v, %s", c.args, err, out)
		}
	}
}
