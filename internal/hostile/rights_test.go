package hostile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// strangerUID is a user without rights over others; pfdUser runs a pfd.
const (
	strangerUID = 3101
	pfdUser     = 3100
	overflowUID = 65534 // user_namespaces(7), of a user who is not mapped
)

// image copies this test's program to another name, owned by root, with a mode or a file
// capability.
func image(t *testing.T, name string, mode os.FileMode, capability string) string {
	t.Helper()
	program, err := self()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(work, name)
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755|mode); err != nil {
		t.Fatal(err)
	}
	if capability == "" {
		return path
	}
	setcap, err := exec.LookPath("setcap")
	if err != nil {
		t.Skip("setcap is not installed (libcap2-bin)")
	}
	if out, err := exec.Command(setcap, capability, path).CombinedOutput(); err != nil {
		t.Skipf("no file capabilities here: %v: %s", err, out)
	}
	return path
}

// pfdRow describes a pfd under attack.
type pfdRow struct {
	name string
	uid  uint32 // of the attacker
	own  bool   // it runs as pfdUser, without capabilities
}

// pfds are two that serve the attacker by the attacker's own helper, one of root and one not,
// and one that accesses its own user's memory itself.
var pfds = []pfdRow{
	{"root's pfd", strangerUID, false},
	{"another user's pfd", strangerUID, true},
	{"the attacker's pfd", pfdUser, true},
}

// attacked writes to the impostor's attachment, if it has one, and fails the test if a byte
// reaches the victim, whose memory is zero at raceAt.
func (w *world) attacked(uid uint32, got reply, a attachOrder, victim *proxy) {
	w.t.Helper()
	if got.Done {
		a.Node, a.UID = 0, uid
		from := w.attach("accomplice", a)
		from.must(order{Op: "buffer", ID: "src", Kind: "shared", Size: raceSize, Seed: 9})
		for i, size := range []uint64{8, 4096, raceSize} {
			id := fmt.Sprint(i)
			if r, err := from.do(order{Op: "write", ID: id, Kind: "src", Remote: got.Remote, Size: size}); err != nil || r.Err != "" {
				w.t.Fatalf("a write: %s, %v", r.Err, err)
			}
			r := from.wait(id)
			if r.Code == device.StatusDomain {
				w.t.Errorf("a write of %d bytes is stopped before it reaches any memory: %s", size, r.Text)
			}
			w.t.Logf("the impostor is attached; a write of %d bytes: arrived %v, code %d", size, r.Done, r.Code)
		}
		from.kill()
	} else if got.Text == "" {
		w.t.Errorf("refused without a text: %+v", got)
	} else {
		w.t.Logf("refused with %d: %s", got.Code, got.Text)
	}
	if r := victim.must(order{Op: "watch", ID: "b", Size: uint64(2 * time.Millisecond)}); r.Wrong != 0 {
		w.t.Errorf("%d bytes reached a process that the attacker may not access", r.Wrong)
	}
}

// A process connects and then becomes a program with rights that its user does not have:
// set-uid root, temporarily with the user's own effective uid and dumpable, or with a file
// capability. Another process of the user attaches over its connection. No byte reaches the
// program.
func TestConnectionOfASetUIDProgram(t *testing.T) {
	needRoot(t, "a set-uid program")
	for _, pfd := range pfds {
		for _, img := range []struct {
			name       string
			mode       os.FileMode
			capability string
		}{{"setuid-root", os.ModeSetuid, ""}, {"capable", 0, "cap_net_raw=ep"}} {
			t.Run(pfd.name+"/"+img.name, func(t *testing.T) {
				w := pfd.start(t)
				path := image(t, img.name, img.mode, img.capability)
				for i, c := range []struct {
					name           string
					keeper, helper bool // the program's
				}{{"own", false, false}, {"the program as keeper", true, false}, {"the program to the helper", false, true}, {"the program to both", true, true}} {
					t.Run(c.name, func(t *testing.T) {
						w.during(t)
						a := attachOrder{Socket: w.socket(), Group: fmt.Sprint("suid", i), Node: 1, Key: 1, Trust: w.trust()}
						victim, impostor := w.spawn("program", pfd.uid), w.spawn("impostor", pfd.uid)
						fd := victim.must(order{Op: "dial", Attach: a}).Count
						impostor.must(order{Op: "claim", Off: uint64(victim.pid()), Advice: fd})
						victim.must(order{Op: "exec", Path: path})
						if r, err := victim.do(order{Op: "setuid", Size: uint64(pfd.uid)}); err != nil || r.Err != "" {
							t.Fatal(r.Err, err)
						}
						victim.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
						// The attacker has memory of its own there, which may be written.
						impostor.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
						o := order{Op: "hello", Attach: a}
						if c.keeper {
							o.Off = uint64(victim.pid())
						}
						if c.helper {
							o.Size = uint64(victim.pid())
						}
						w.attacked(pfd.uid, impostor.must(o), a, victim)
						victim.kill()
						impostor.kill()
					})
				}
			})
		}
	}
}

// start starts the pfd of the row.
func (p *pfdRow) start(t *testing.T) *world {
	t.Helper()
	if p.own {
		return unprivileged(t, pfdUser, place{})
	}
	return start(t)
}

// trust returns the users that a process of another user must trust to attach here. In a user
// namespace without a map every other user is the overflow uid.
func (w *world) trust() []uint32 {
	if w.credential == nil {
		return []uint32{overflowUID}
	}
	return []uint32{w.credential.Uid, overflowUID}
}

// A process names as its keeper, or has its helper serve, a process that it may not access:
// root's, another user's, or a non-dumpable one of its own user.
func TestKeeperOfSomebodyElse(t *testing.T) {
	needRoot(t, "being several users")
	for _, pfd := range pfds {
		t.Run(pfd.name, func(t *testing.T) {
			w := pfd.start(t)
			for i, c := range []struct {
				name string
				uid  uint32
			}{{"root's", 0}, {"another user's", 3102}, {"not dumpable", pfd.uid}} {
				victim := w.spawn("victim", c.uid)
				victim.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
				if c.uid == pfd.uid {
					victim.must(order{Op: "undumpable"})
				}
				for _, helper := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/helper %v", c.name, helper), func(t *testing.T) {
						w.during(t)
						a := attachOrder{Socket: w.socket(), Group: fmt.Sprintf("foreign%d%v", i, helper), Node: 1, Key: 1, Trust: w.trust()}
						impostor := w.spawn("impostor", pfd.uid)
						impostor.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
						impostor.must(order{Op: "dial", Attach: a})
						o := order{Op: "hello", Attach: a, Off: uint64(victim.pid())}
						if helper {
							o.Size = uint64(victim.pid())
						}
						w.attacked(pfd.uid, impostor.must(o), a, victim)
						impostor.kill()
					})
				}
				victim.kill()
			}
		})
	}
}

// uid 0 without capabilities, as for root in a container, has no right over the memory of root
// or of other users, and gets none from pfd.
func TestRootWithoutCapabilities(t *testing.T) {
	needRoot(t, "giving capabilities up")
	w := start(t)
	program, err := self()
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range [][]string{
		{"setpriv", "--bounding-set=-all", "--inh-caps=-all", program},
		{"unshare", "--user", "--map-root-user", program},
	} {
		if _, err := exec.LookPath(way[0]); err != nil {
			t.Skipf("%s is not installed (util-linux)", way[0])
		}
		t.Run(way[0], func(t *testing.T) {
			for i, uid := range []uint32{0, strangerUID} {
				w.during(t)
				a := attachOrder{Socket: w.socket(), Group: fmt.Sprint(way[0], i), Node: 1, Key: 1}
				victim := w.spawn("victim", uid)
				victim.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
				for _, helper := range []bool{false, true} {
					impostor := w.spawnBy(way, "root without capabilities", 0, nil)
					impostor.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
					impostor.must(order{Op: "dial", Attach: a})
					o := order{Op: "hello", Attach: a, Off: uint64(victim.pid())}
					if helper {
						o.Size = uint64(victim.pid())
					}
					w.attacked(0, impostor.must(o), a, victim)
					impostor.kill()
				}
				// It attaches itself, and only its own helper serves it. Without a key it
				// cannot join the group of a process of root that has capabilities.
				p := w.spawnBy(way, "root without capabilities", 0, nil)
				p.must(order{Op: "attach", Attach: a})
				if n := len(helpers(t, p.pid())); n != 1 {
					t.Errorf("%d memory helpers, want one", n)
				}
				a.Group, a.Key, a.Node = fmt.Sprint("root", way[0], i), 0, 0
				first := w.spawnBy(way, "root without capabilities", 0, nil)
				first.must(order{Op: "attach", Attach: a})
				a.Node = 1
				w.refused(w.spawn("root", 0), a)
				first.kill()
				p.kill()
				victim.kill()
			}
		})
	}
}

// helpers returns the memory helpers of a process.
func helpers(t *testing.T, pid int) (pids []int) {
	t.Helper()
	list, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for _, child := range strings.Fields(string(b)) {
			name, err := os.ReadFile("/proc/" + child + "/cmdline")
			helper, cerr := strconv.Atoi(child)
			if err == nil && cerr == nil && strings.Contains(string(name), attach.HelperCommand) {
				pids = append(pids, helper)
			}
		}
	}
	return pids
}

// refused fails the test if a process can join a group.
func (w *world) refused(p *proxy, a attachOrder) {
	w.t.Helper()
	a.Socket = w.socket()
	r, err := p.do(order{Op: "attach", Attach: a})
	if err != nil {
		w.t.Fatal(err)
	}
	if !strings.Contains(r.Err, fmt.Sprintf("code %d", attach.CodePermission)) || !strings.Contains(r.Err, "GroupKey") {
		w.t.Errorf("%s: %q, want a refusal that names the group's key", p.name, r.Err)
	}
	p.kill()
}

// A process that may not access another's memory cannot share a group with it, even as the same
// user, in either order and on any node. The group's key permits it; a wrong key does not.
func TestGroupOfUnequals(t *testing.T) {
	needRoot(t, "being another user")
	program, err := self()
	if err != nil {
		t.Fatal(err)
	}
	plain := []string{program}
	capable := []string{"setpriv", "--reuid=" + strconv.Itoa(strangerUID), "--regid=" + strconv.Itoa(strangerUID), "--clear-groups",
		"--inh-caps=+net_raw", "--ambient-caps=+net_raw", program}
	apart := []string{"unshare", "--user", program}
	for _, pfd := range pfds[:2] {
		t.Run(pfd.name, func(t *testing.T) {
			w := pfd.start(t)
			join := func(args []string, a attachOrder) *proxy {
				uid := pfd.uid
				if args[0] == "setpriv" {
					uid = 0
				}
				return w.spawnBy(args, "member of "+a.Group, uid, nil)
			}
			n := 0
			for _, c := range []struct {
				name          string
				first, second []string
			}{
				{"more capabilities first", capable, plain},
				{"fewer capabilities first", plain, capable},
				{"a user namespace of its own last", plain, apart},
				{"a user namespace of its own first", apart, plain},
			} {
				t.Run(c.name, func(t *testing.T) {
					w.during(t)
					for node := range uint32(2) {
						n++
						a := attachOrder{Socket: w.socket(), Group: fmt.Sprint("unequal", n), Node: 0, Trust: w.trust()}
						first := join(c.first, a)
						first.must(order{Op: "attach", Attach: a})
						a.Node = node
						w.refused(join(c.second, a), a)
						first.kill()
					}
				})
			}
			t.Run("not dumpable any more", func(t *testing.T) {
				w.during(t)
				a := attachOrder{Socket: w.socket(), Group: "closed", Trust: w.trust()}
				first := join(plain, a)
				first.must(order{Op: "attach", Attach: a})
				first.must(order{Op: "undumpable"})
				a.Node = 1
				w.refused(join(plain, a), a)
				first.kill()
			})
			t.Run("a key", func(t *testing.T) {
				w.during(t)
				a := attachOrder{Socket: w.socket(), Group: "key", Key: 7, Trust: w.trust()}
				from := join(plain, a)
				from.must(order{Op: "attach", Attach: a})
				a.Node = 1
				to := join(capable, a)
				to.must(order{Op: "attach", Attach: a})
				m := to.buffer("b", "anonymous", 1<<20, 0)
				from.buffer("b", "anonymous", 1<<20, 7)
				from.write("x", "b", m.Remote, 1<<20)
				from.arrives("x")
				to.holds("b", 7, 0, 1<<20)
				for _, key := range []byte{0, 8} {
					a.Key = key
					w.refused(join(plain, a), a)
				}
				from.kill()
				to.kill()
			})
		})
	}
}

// A keeper that a process made itself may outlive an exec: it names the old memory, and nothing
// reaches the new image.
func TestKeeperThatOutlivesAnExec(t *testing.T) {
	needRoot(t, "a set-uid program")
	path := image(t, "setuid-root", os.ModeSetuid, "")
	for _, pfd := range pfds {
		t.Run(pfd.name, func(t *testing.T) {
			w := pfd.start(t)
			for _, method := range methods {
				t.Run(method, func(t *testing.T) {
					w.during(t)
					a := attachOrder{UID: pfd.uid, Method: method, Group: "outlives" + method, Trust: w.trust()}
					from := w.attach("initiator", a)
					a.Node = 1
					to := w.attach("target", a)
					from.must(order{Op: "buffer", ID: "src", Kind: "shared", Size: 8 * raceSize, Seed: 11})
					// Present: the new program does not serve faults itself.
					m := to.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize, Seed: 5})
					from.must(order{Op: "storm", ID: "src", Remote: m.Remote})
					to.must(order{Op: "exec", Kind: "pipes", Path: path})
					to.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
					if r := to.must(order{Op: "watch", ID: "b", Size: uint64(100 * time.Millisecond)}); r.Wrong != 0 {
						t.Errorf("%d bytes reached the new image", r.Wrong)
					}
					t.Log("the transfers: ", from.must(order{Op: "calm"}).Text)
					from.kill()
					to.kill()
				})
			}
		})
	}
}

// A process whose first thread has ended attaches, and is a target and an initiator by every
// method.
func TestFirstThreadEnded(t *testing.T) {
	needRoot(t, "being another user")
	w := start(t)
	for _, uid := range []uint32{0, strangerUID} {
		for _, method := range methods {
			for _, when := range []string{"before", "after"} {
				t.Run(fmt.Sprintf("uid %d/%s/%s", uid, method, when), func(t *testing.T) {
					w.during(t)
					a := attachOrder{Socket: w.socket(), Method: method, Group: fmt.Sprint("leaderless", uid, method, when)}
					var p [2]*proxy
					for node := range p {
						p[node] = w.spawn("leaderless", uid)
						a.Node = uint32(node)
						if when == "before" {
							p[node].must(order{Op: "leaderless"})
						}
						p[node].must(order{Op: "attach", Attach: a})
						if when == "after" {
							p[node].must(order{Op: "leaderless"})
						}
					}
					p[0].buffer("b", "shared", 1<<20, 7)
					m := p[1].must(order{Op: "buffer", ID: "b", Size: 1 << 20})
					p[0].write("x", "b", m.Remote, 1<<20)
					p[0].arrives("x")
					p[1].holds("b", 7, 0, 1<<20)
					p[0].kill()
					p[1].kill()
				})
			}
		}
	}
}
