package hostile

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/exanet/pfd/internal/deploy"
)

// place is a device of the table with a world over it.
type place struct{ deploy.Device }

// everywhere runs a test with each device of the table.
func everywhere(t *testing.T, f func(t *testing.T, at place)) {
	for _, d := range deploy.Devices() {
		t.Run(d.Name, func(t *testing.T) { f(t, place{d}) })
	}
}

// onEach runs a test with a pfd over each device.
func onEach(t *testing.T, f func(t *testing.T, w *world), args ...string) {
	everywhere(t, func(t *testing.T, at place) { f(t, at.start(t, args...)) })
}

// start starts a pfd over the device.
func (at place) start(t *testing.T, args ...string) *world {
	t.Helper()
	w := start(t, append(at.args(t, nil), args...)...)
	w.shared = at.Shared
	return w
}

// args returns pfd's arguments for the device; a user owns the device's process, if it has one.
func (at place) args(t *testing.T, as *syscall.Credential) []string {
	t.Helper()
	path, err := exanetctlProgram()
	if err != nil {
		t.Fatal(err)
	}
	return at.Args(t, path, as)
}

// alone are the tests that apply to only one device, with the reason.
var alone = map[string]string{
	"TestDeviceMemoryThatIsCut": "vfio-user: pfd and the device share no memory in one process",

	"TestMemoryKinds":                    "memory elsewhere is of one kind, what is shared: TestMethods",
	"TestMergedPages":                    "KSM merges private memory, which cannot be shared",
	"TestMemoryThatNeverComes":           "guard pages and secret memory cannot be shared",
	"TestInvalidationsAreCounted":        "pages are seen to go by walks of the process's own tables",
	"TestInvalidationCallsAreCounted":    "a userfaultfd tells of calls; what is shared is counted where it goes (shadow)",
	"TestFileThatEndsTooEarly":           "what is shared is sealed against shrinking",
	"TestFileThatHangs":                  "a file that hangs cannot be shared",
	"TestKilledWithAPageInThatHangs":     "the same",
	"TestCloseWhileTheHelperHangs":       "the same, and no helper is asked for what is shared",
	"TestSharedByOtherUsers":             "no helper is asked for what is shared over a socket",
	"TestTargetThatNeverServesItsFaults": "a process's userfaultfd does not hold up who else has the file",
	"TestStuckPageCostsItsBlockOnly":     "the same",
	"TestThreadsRunOut":                  "the same: what hangs is what is not shared",
	"TestAllChannelsBusy":                "the same: nothing of a process's stands still for ever",
	"TestMemoryPressure":                 "the pressure is on a group of processes; what is shared is whose group touched it first",
	"TestMemoryIsChargedToItsProcess":    "pfd and the device bring in what is shared by their own mappings, which are charged",
	"TestWriteIntoSwappedMemory":         "MADV_PAGEOUT leaves pages that several have mapped",
	"TestExecInMidTransfer":              "the device reaches files and no address space: exec changes nothing in them",
	"TestPIDUsedAgain":                   "the same",
	"TestNoByteWhereItMayNot":            "rights to memory are the share's, not the mapping's",
	"TestConnectionOfASetUIDProgram":     "what is reached is what was shared, whoever the process is",
	"TestKeeperOfSomebodyElse":           "the same",
	"TestKeeperThatOutlivesAnExec":       "the same",
	"TestRootWithoutCapabilities":        "the same",
	"TestGroupOfUnequals":                "the same",
	"TestFirstThreadEnded":               "the same",
	"TestTransfersThatStandStill":        "no register tells single blocks; channels: the tests of cmd/exanetctl",
	"TestUrgentAndLargeTransfers":        "times; over a socket they are the socket's",
	"TestFIFOOverflows":                  "holds the interrupts of a machine in the test's process back",
	"TestErrorsOfTheMachine":             "changes frames on the link of a machine in the test's process",
	"TestEightAttackers":                 "the attackers' weapons are memory that hangs, and pfd's sockets",
	"TestAttacksLeaveNothing":            "the same",
	"TestEachAttacker":                   "the same",
	"TestContextsHeldByOthers":           "contexts are held by blocks into memory that hangs",
	"TestAttachDuringAConnectFlood":      "of pfd's sockets alone",
	"TestMalformedAttachments":           "the same",
	"TestLingering":                      "the same",
	"TestTableLargerThanMemory":          "the limit is of pfd's memory; a device elsewhere has its own",
	"TestLogFlood":                       "of pfd's log alone",
	"TestBetweenHosts":                   "links are of nodes inside pfd",
	"TestHostThatLiesAboutTrees":         "the same",
}

// Each test runs with all devices of the table, or is listed in alone.
func TestEachTestHasItsDevices(t *testing.T) {
	rest, onOne := maps.Clone(alone), maps.Clone(onOneHost)
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" || fn.Name.Name == t.Name() {
				continue
			}
			found++
			all := false
			ast.Inspect(fn, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && (id.Name == "onEach" || id.Name == "everywhere" || id.Name == "Devices") {
					all = true
				}
				return true
			})
			why := alone[fn.Name.Name]
			if all == (why != "") {
				t.Errorf("%s: it runs with all devices: %v; the reason why it does not: %q", fn.Name.Name, all, why)
			}
			delete(rest, fn.Name.Name)
			if _, also := betweenHosts[fn.Name.Name]; all && also == (onOneHost[fn.Name.Name] != "") {
				t.Errorf("%s: it runs between hosts: %v; the reason why it does not: %q", fn.Name.Name, also, onOneHost[fn.Name.Name])
			}
			delete(onOne, fn.Name.Name)
		}
	}
	maps.Copy(rest, onOne)
	for name := range rest {
		t.Errorf("%s does not exist", name)
	}
	if found < 50 {
		t.Errorf("%d tests found", found)
	}
}
