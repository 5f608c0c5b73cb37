package hostile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	files "github.com/exanet/pfd/link/hosts"
)

// farEnv names the socket of the pfd that has node 1 to an agent.
const farEnv = "PFD_HOSTILE_FAR"

// socketOf returns the socket of the pfd that has a node.
func (w *world) socketOf(node device.NodeID) string {
	if w.far != nil && node == 1 {
		return w.far.socket()
	}
	return w.socket()
}

// Counters returns the counters of a node, or of all.
func (w *world) Counters(ctx context.Context, node int) ([]control.Counter, error) {
	return ofNode(w, node, func(c *control.Client) ([]control.Counter, error) { return c.Counters(ctx, node) })
}

// Domains returns the domains of a node, or of all.
func (w *world) Domains(ctx context.Context, node int) ([]control.Domain, error) {
	return ofNode(w, node, func(c *control.Client) ([]control.Domain, error) { return c.Domains(ctx, node) })
}

// ofNode asks the pfd that has a node, or all.
func ofNode[T any](w *world, node int, ask func(*control.Client) ([]T, error)) ([]T, error) {
	switch {
	case w.far == nil || node == 0:
		return ask(w.Client)
	case node == 1:
		return ask(w.far.Client)
	}
	near, err1 := ask(w.Client)
	far, err2 := ask(w.far.Client)
	return append(near, far...), errors.Join(err1, err2)
}

var hostdProgram = sync.OnceValues(func() (string, error) {
	path := filepath.Join(work, "exanet-hostd")
	cmd := exec.Command("go", "build", "-C", "../../hostd", "-buildvcs=false", "-o", path, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build exanet-hostd: %w\n%s", err, out)
	}
	return path, nil
})

// hostd is the exanet-hostd of a world's host.
type hostd struct {
	w    *world
	args []string
	cmd  *exec.Cmd
}

func (h *hostd) start() {
	h.w.t.Helper()
	h.cmd = exec.Command(h.args[0], h.args[1:]...)
	h.cmd.Stderr = h.w.stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := h.cmd.Start(); err != nil {
		h.w.t.Fatal(err)
	}
}

// end kills it: it keeps nothing.
func (h *hostd) end() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// clusters counts the clusters of this process, of which each has addresses of its own.
var clusters atomic.Uint32

// newCluster makes the files of a cluster, whose hosts have a node each.
func newCluster(t *testing.T, names ...string) (etc string, hosts []files.Host) {
	t.Helper()
	etc, err := os.MkdirTemp(work, "etc")
	if err == nil {
		err = os.Chmod(etc, 0o755) // a pfd of another user reads it
	}
	if err != nil {
		t.Fatal(err)
	}
	n := uint32(os.Getpid())<<5 + clusters.Add(1)
	var list []files.New
	for i, name := range names {
		list = append(list, files.New{Name: name, Address: fmt.Sprintf("127.%d.%d.%d:9480", n>>8&0xff, n&0xff, i+1), Nodes: 1})
	}
	if _, err := files.Init(etc, "hostile", list, time.Now()); err != nil {
		t.Fatal(err)
	}
	file, err := files.Read(filepath.Join(etc, files.FileName))
	if err != nil {
		t.Fatal(err)
	}
	return etc, file.Hosts
}

// startHost starts pfd and exanet-hostd of a host. pfd runs as uid as; any but 0 has no privileges.
func startHost(t *testing.T, as uint32, etc string, h files.Host, groups string, args ...string) *world {
	t.Helper()
	program, err := hostdProgram()
	if err != nil {
		t.Fatal(err)
	}
	args = slices.Concat([]string{"--nodes", "1", "--config", filepath.Join(etc, h.Name+".pfd.toml"), "--groups", groups}, args)
	var w *world
	if as == 0 {
		w = start(t, args...)
	} else {
		w = unprivileged(t, as, place{}, args...)
	}
	w.hostd = &hostd{w: w, args: []string{program, "--hosts", filepath.Join(etc, files.FileName), "--name", h.Name, "--pfd", w.socket(), "--listen", h.Address}}
	w.hostd.start()
	t.Cleanup(w.hostd.end)
	return w
}

// linkedTo waits until the link to another host is up, or idle: the next frame brings it up.
func (w *world) linkedTo(name string) {
	w.until("the link is up", func() bool {
		r, err := w.Hosts(w.ctx())
		return err == nil && slices.ContainsFunc(r.Hosts, func(h control.Host) bool {
			return h.Name == name && (h.State == control.HostUp || h.State == control.HostIdle)
		})
	})
}

// linked waits until the link between the hosts of startHosts is up on both.
func (w *world) linked() {
	w.t.Helper()
	w.linkedTo("b")
	w.far.linkedTo("a")
}

// startHosts starts two pfds of a node each, with a link between them. The user as, if it is not 0, has
// them and the processes, and no privileges.
func startHosts(t *testing.T, as uint32, udp bool, args ...string) *world {
	t.Helper()
	etc, list := newCluster(t, "a", "b")
	if udp {
		table := filepath.Join(etc, files.FileName)
		text, err := os.ReadFile(table)
		if err == nil {
			err = os.WriteFile(table, []byte(strings.ReplaceAll(string(text), "\n[[host]]\n", "\n[[host]]\nudp = true\n")), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	user := os.Getuid()
	if as != 0 {
		user = int(as)
	}
	// A group has the same PDID on both hosts.
	var groups []byte
	for i, name := range []string{
		"bystander", "liar", "stranger", "raw", "readers", "deaf", "victims", "flood", "guest", "open", "pair", "plain", "victim", "slow", "again", "rung", "served", "cycles",
	} {
		groups = fmt.Appendf(groups, "%d %s %#x\n", user, name, 0x1000+16*i)
	}
	groups = fmt.Appendf(groups, "%d another 0x2000\n", nobodyUID)
	path := filepath.Join(etc, "all-groups")
	if err := os.WriteFile(path, groups, 0o644); err != nil {
		t.Fatal(err)
	}
	var both [2]*world
	for i, h := range list {
		both[i] = startHost(t, as, etc, h, path, args...)
	}
	w := both[0]
	w.far = both[1]
	w.linked()
	return w
}

// betweenHosts are the tests that also run with node 1 on another host.
var betweenHosts = map[string]struct {
	f    func(*testing.T, *world)
	args string
	as   uint32
	udp  bool
}{
	"TestBystander":                         {f: bystands},
	"TestForgedMessages":                    {f: forgedMessages},
	"TestWildDescriptors":                   {f: wildDescriptors},
	"TestDescriptorChangedAfterTheDoorbell": {f: descriptorChanged},
	"TestDescriptorsTurnedAgainstPfd":       {f: turnedAgainstPfd},
	"TestBadReads":                          {f: badReads, args: "--guard-us 1000000"},
	"TestErrorsOfReads":                     {f: errorsOfReads},
	"TestKilledInMidTransfer":               {f: killedInMidTransfer},
	"TestStoppedInMidTransfer":              {f: stoppedInMidTransfer},
	"TestMemoryThatChangesInMidTransfer":    {f: memoryChanges},
	"TestNetlinkSocketThatIsNotRead":        {f: netlinkNotRead, args: "--guard-us 2000"},
	"TestForgedRequests":                    {f: forgedRequests},
	"TestForgedTokens":                      {f: forgedTokens},
	"TestFloodOfRequests":                   {f: floodOfRequests},
	"TestNothingIsPinned":                   {f: nothingIsPinned},
	"TestMessageFlood":                      {f: floodMessages},
	"TestMethods":                           {f: eachMethod},
	"TestPrefetch":                          {f: prefetch},
	"TestLargeTransfers":                    {f: largeTransfers},
	"TestForgedRegistrations":               {f: forgedRegistrations},
	"TestArmAbused":                         {f: armAbused},
	"TestRingSocketAbused":                  {f: ringSocketAbused},
	"TestRingsRefused":                      {f: ringsRefused},
	"TestRingsWithoutDescriptors":           {f: ringsWithoutDescriptors},
	"TestWindowFlood":                       {f: floodWindows},
	"TestWindowsEndWithTheirProcess":        {f: endWindows},
	"TestForgedFaultMessage":                {f: forgedFaultMessage},
	"TestWordsOfServedFaults":               {f: wordsOfServedFaults, args: "--guard-us 2000 --timeout-us 2000"},
	"TestTransfersEndWhereTheyWereNamed":    {f: func(t *testing.T, w *world) { transfersEndWhereTheyWereNamed(t, w, 1<<31, 5*time.Second) }},
	"TestTreeWhoseFileIsHeld":               {f: treeWhoseFileIsHeld},
	// Between hosts only.
	"either side changes":                {f: eitherSideChanges},
	"either side changes, in datagrams":  {f: eitherSideChanges, udp: true},
	"either side changes, with helpers":  {f: eitherSideChanges, as: 3100},
	"each party is killed":               {f: partiesKilled},
	"less memory than needed":            {f: limitedMemory},
	"each party is killed, in datagrams": {f: partiesKilled, udp: true},
}

// onOneHost are the tests that run with all devices but not between hosts, with the reason.
var onOneHost = map[string]string{
	"TestErrorsOfProcesses":             "each case has a pfd of its own; what is another node's: TestErrorsOfReads",
	"TestFolios":                        "how a pfd pages in does not depend on where a block comes from",
	"TestFoliosThatChangeInMidTransfer": "the same",
	"TestSwappedMemory":                 "the same",
	"TestArmSwappedOut":                 "the same",
	"TestOtherPIDNamespace":             "the same",
	"TestOtherUsersWithoutPrivilege":    "the same",
	"TestWithoutPrivilege":              "the same",
	"TestForkedChildLivesOn":            "a process and its own pfd",
	"TestExecEndsTheAttachment":         "the same",
	"TestStoppedTarget":                 "each method has a pfd of its own; targets are also stopped by TestStoppedInMidTransfer",
	"TestSlotsRunOut":                   "what is taken is one pfd's",
	"TestManyConnections":               "the same",
	"TestDescriptorsRunOut":             "the same",
	"TestRingFlood":                     "the same",
	"TestHolesInSharedMemory":           "the same",
	"TestEverySystemCallFailsOnce":      "the calls are one pfd's",
	"TestPfdKilled":                     "internal/hosts has a test of this name",
	"TestPfdKilledAtEachCall":           "the same",
	"TestPfdKilledAtEachCallOfATree":    "TestTreeOfAKilledPfd of internal/hosts",
}

// Attackers and victims on two hosts: what holds between two nodes of a pfd holds between two hosts.
func TestBetweenHosts(t *testing.T) {
	if os.Getenv("PFD_HOSTS") == "" {
		t.Skip("part of make hosts (PFD_HOSTS=1)")
	}
	for name, c := range betweenHosts {
		t.Run(name, func(t *testing.T) {
			c.f(t, startHosts(t, c.as, c.udp, strings.Fields(c.args)...))
		})
	}
}
