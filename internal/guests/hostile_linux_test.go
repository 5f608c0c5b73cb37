package guests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/qemu/agent"
)

// resources are those of the process that serves the nodes.
type resources struct {
	fds, maps int
	rss       uint64 // kB of its own, without the guest's memory that it has touched
}

func (f *fleet) resources() (r resources) {
	f.t.Helper()
	r.fds, r.maps = f.held()
	r.rss = f.rss(f.NodesPID())
	return r
}

// rss returns the size of a process's own memory in kB.
func (f *fleet) rss(pid int) (kb uint64) {
	f.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		f.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		f.t.Fatalf("%v in %s", err, status)
	}
	return kb
}

// slack is how much, in kB, the memory of the serving process may change because of garbage
// collection.
const slack = 16 << 10

// same waits until the serving process has no more resources than before.
func (f *fleet) same(before resources) {
	f.t.Helper()
	var now resources
	deadline := time.Now().Add(patience)
	for now = f.resources(); now.fds > before.fds || now.maps > before.maps || now.rss > before.rss+slack; now = f.resources() {
		if time.Now().After(deadline) {
			f.t.Errorf("the serving process had %+v and has %+v", before, now)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// beside runs transfers between two processes of a guest until verdict is called. verdict
// checks that every byte is right.
func (f *fleet) beside(guest int) (verdict func()) {
	f.t.Helper()
	const size = 64 << 10
	p := f.pair(guest, "p1")
	one := func(n int) {
		f.t.Helper()
		p.from.do(object{"op": "prepare", "prepare": object{"state": "present", "size": size, "seed": n}})
		remote := p.to.do(object{"op": "prepare", "prepare": object{"state": "absent", "size": size, "seed": n + 1}}).Remote
		transfer(f.t, p.from, remote, false)
		verify(f.t, p.to, object{"state": "present", "seed": n}, size>>12)
	}
	one(1)
	stop, over := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 1
		defer func() { over <- n }() // a failed transfer ends this goroutine and the test
		for {
			select {
			case <-stop:
				return
			default:
				n++
				one(n)
			}
		}
	}()
	return func() {
		f.t.Helper()
		close(stop)
		f.t.Logf("guest %d, which is not disturbed: %d transfers meanwhile", guest, <-over)
		p.close()
	}
}

// A driver in one guest remaps memory, resets its device, and turns its bus mastering off
// during transfers. The next driver of the device works, the other guest's transfers continue,
// and the serving process keeps no resources.
func TestHostileDriver(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 2, Nodes: 2, PFD: slow})
	to := f.install(0)
	devices := strings.Fields(f.run(0, "sh", "-c", "kill $(pidof pfd); while pidof pfd; do sleep 0.05; done >/dev/null; exanetctl bind --all"))
	run := func(name string) {
		t.Helper()
		out, err := f.try(0, "env", insideVariable+"="+strings.Join(devices, ","), to, "-test.v", "-test.run", "^TestInside$/^"+strings.ReplaceAll(name, " ", "_")+"$")
		if err != nil || !strings.Contains(out, "--- PASS: TestInside/") {
			t.Errorf("%v: %s", err, out)
		}
	}
	run("CTRL") // so that one-time allocations are done
	verdict := f.beside(1)
	before := f.resources()
	for _, x := range hostilities {
		t.Run(x.name, func(t *testing.T) { run(x.name) })
	}
	verdict()
	f.same(before)
}

// pagesVariable is how many pages TestManyMaps maps.
const pagesVariable = "PFD_GUEST_PAGES"

// A guest maps more pages than a vfio-user server announces, one by one. The other guest's
// transfers continue, and no resources remain.
func TestManyMaps(t *testing.T) {
	pages := 72 << 10
	if s := os.Getenv(pagesVariable); s != "" {
		var err error
		if pages, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	f := boot(t, qemu.Options{Guests: 2, Nodes: 2, PFD: slow, Server: server(t)})
	to := f.install(0)
	f.run(0, "sh", "-c", "kill $(pidof pfd); while pidof pfd; do sleep 0.05; done >/dev/null")
	device := strings.Fields(f.run(0, "exanetctl", "bind", "--all"))[0]
	verdict := f.beside(1)
	before := f.resources()
	next := f.lines(0, "sh", "-c", "ulimit -l unlimited; exec "+to+" map-pages "+device+" "+strconv.Itoa(pages))
	var mapped, unmapped time.Duration
	next(&mapped)
	var c Count
	f.ask("Count", 0, &c)
	// The IOMMU may merge pages that are adjacent by chance.
	if c.Ranges < pages/100*99 || c.MapsRefused != 0 {
		t.Errorf("the server has %d maps of %d pages, and has refused %d", c.Ranges, pages, c.MapsRefused)
	}
	there := f.resources()
	next(&unmapped)
	next(nil)
	t.Logf("%d pages mapped in %v and unmapped in %v; the serving process: %d kB before, %d kB with them", pages, mapped, unmapped, before.rss, there.rss)
	verdict()
	f.same(before)
	f.run(1, "exanetctl", "write", "--dst", "absent", "--size", "64KiB")
}

// The serving process stops for 4 s during transfers; they continue afterwards.
func TestServerStopped(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 2, Nodes: 2, PFD: slow})
	pid := f.NodesPID()
	r := f.background(0, "exanetctl", "-j", "write", "--dst", "absent", "--size", "1MiB", "--count", "6")
	faults := f.count(0).faults
	until(t, "the transfers go on", func() bool { return f.count(0).faults > faults+100 })
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * time.Second) // QEMU times out after 5 s
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var w struct {
		Transfers, Failed int
		Verified          bool
	}
	if out, err := r(); err != nil || json.Unmarshal([]byte(out), &w) != nil || w.Transfers != 6 || w.Failed != 0 || !w.Verified {
		t.Errorf("transfers over a stop of the server: %v: %s", err, out)
	}
	f.run(1, "exanetctl", "write", "--dst", "absent", "--size", "64KiB")
}

// The link between two nodes is cut during a transfer. The transfer continues afterwards, or
// times out if the link stays cut; the next transfer works.
func TestLinkCut(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 1, Nodes: 2, PFD: slow, Server: server(t)})
	for _, x := range []struct {
		name string
		time time.Duration // 0: until the transfer has ended
	}{{"for a second", time.Second}, {"until it has ended", 0}} {
		t.Run(x.name, func(t *testing.T) {
			r := f.background(0, "exanetctl", "-j", "write", "--dst", "absent", "--size", "1MiB", "--count", "8")
			faults := f.count(0).faults
			until(t, "the transfers go on", func() bool { return f.count(0).faults > faults+100 })
			f.ask("Cut", true, new(bool))
			if x.time > 0 {
				time.Sleep(x.time) // the link stays cut
				f.ask("Cut", false, new(bool))
			}
			out, err := r()
			f.ask("Cut", false, new(bool))
			var w struct {
				Transfers, Failed int
				Verified          bool
				Error             string
			}
			all := json.NewDecoder(strings.NewReader(out)).Decode(&w) == nil && err == nil && w.Transfers == 8 && w.Failed == 0 && w.Verified
			if all != (x.time > 0) {
				t.Errorf("%v: %s", err, out)
			}
			t.Logf("%v: %s", err, out)
		})
	}
	f.run(0, "exanetctl", "write", "--dst", "absent", "--size", "64KiB")
}

// background runs a command in a guest; the returned function waits for its output.
func (f *fleet) background(guest int, args ...string) func() (string, error) {
	type result struct {
		out string
		err error
	}
	over := make(chan result, 1)
	go func() {
		var out bytes.Buffer
		code, err := f.Run(f.t.Context(), guest, agent.Command{Exec: agent.Exec{Args: args}, Stdout: &out, Stderr: &out})
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		over <- result{out.String(), err}
	}()
	return func() (string, error) {
		r := <-over
		return r.out, r.err
	}
}

// The backend of a guest's memory decides how the device reaches it: by messages to QEMU, or
// not at all. pfd reports the latter with the remedy.
func TestMemoryOfAGuest(t *testing.T) {
	t.Run("no file", func(t *testing.T) {
		f := boot(t, qemu.Options{Guests: 1, Nodes: 2, PFD: slow, Memory: "memory-backend-ram"})
		for _, size := range []string{"4KiB", "1MiB"} {
			var r struct {
				Verified bool
				Faults   uint64
			}
			f.answer(0, &r, "write", "--dst", "absent", "--size", size)
			if !r.Verified || r.Faults == 0 {
				t.Errorf("%s: %+v", size, r)
			}
		}
		if _, maps := f.held(); maps != 0 {
			t.Errorf("the serving process has the guest's memory mapped %d times", maps)
		}
	})
	t.Run("a file that is not shared", func(t *testing.T) {
		f := boot(t, qemu.Options{Guests: 1, Nodes: 2, Memory: "memory-backend-memfd,share=off"})
		devices := f.run(0, "exanetctl", "bind", "--all", "--wait", "2")
		began := time.Now()
		out, err := f.try(0, "pfd", "--device", "vfio:"+strings.Join(strings.Fields(devices), ","))
		t.Logf("pfd ended after %.1f s", time.Since(began).Seconds())
		if err == nil || !strings.Contains(out, "share=on") {
			t.Errorf("pfd: %v: %s", err, out)
		}
	})
}
