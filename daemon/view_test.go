package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/api"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/space/proc"
)

var update = flag.Bool("update", false, "write the golden files anew; look at the difference before keeping it")

// get makes a request as curl does.
func (r *running) get(path string) (int, []byte) {
	r.t.Helper()
	return r.request(http.MethodGet, path)
}

func (r *running) request(method, path string) (int, []byte) {
	r.t.Helper()
	c := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", r.cfg.Socket)
		},
		// A connection a request: nothing stays open behind the test.
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(r.ctx(), method, "http://pfd"+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, body
}

// Values that differ from run to run.
var volatile = regexp.MustCompile(`"(pid|uid|generation|uptime_ns|age_ns|socket|attach_socket|daemon_version|time_ns)": ("[^"]*"|\d+)`)

// Known register values become known JSON. The golden files were checked by hand against the
// values set here and spec/hardware.md 3 to 5.
func TestGoldenAnswers(t *testing.T) {
	r := start(t)
	r.attach(hello())
	r.until("the handshake is over", func() bool { return r.host.Handshakes().Total() == 0 })
	r.fake.do(func() {
		n := r.fake.nodes[0]
		n.Set64(device.PL, device.TXPackets.Offset(), 64)
		n.Set64(device.PL, device.Nacks1.Offset(), 1<<40)
		bank := func(reg uint32) uint32 { return device.Bank(0, reg) }
		n.Set(device.SMMU, bank(device.FSR), device.FSRTF|device.FSRMULTI)
		n.Set64(device.SMMU, bank(device.FAR), 0x7f0012345678)
		n.Set(device.SMMU, bank(device.FSYNR0), device.FSYNR0WNR)
		n.setChannel(0, 3, device.Descriptor{
			Src: 0x1000, Dst: 0x7fff00002000, Size: 1 << 20, Done: device.DoneOngoing, DstNode: 1,
		}, device.ChannelState{
			PDID: 1, DstPDID: 2, Live: true, Issued: 131072, Blocks: 64, Acked: 5, InFlight: 3, Paused: 1, Retransmitted: 7,
			Window: 8, Class: uint8(r5.Medium), Oldest: 12, Newest: 14, AgeNS: 3e6,
		})
		n.setChannel(0, 31, device.Descriptor{Size: 1, Done: device.DoneFailed, Status: device.StatusDomain}, device.ChannelState{PDID: 1})
		n.setChannel(0, 32, device.Descriptor{Size: 1, Done: device.DoneReadOngoing}, device.ChannelState{PDID: 1})
		r.fake.transactions = []r5.TransactionInfo{{
			ID: 12, Slot: 0, Channel: 3, Node: 1, PDID: 1, DestinationPDID: 2, State: control.TransactionPaused,
			Sequence: 35, First: 34, Block: 7, Blocks: 12, Acked: 5, Offset: 114688, Length: 16384, Attempts: 2, RAPFs: 1,
			LastCode: device.CodeSlaveError, Began: 4e9, Due: 5e9 + 100e6, Class: r5.Low,
		}, {
			ID: 1023, Slot: 0, Channel: 40, Node: 0x2abcde, PDID: 1, DestinationPDID: 1, State: control.TransactionIssued,
			Sending: true, Words: true, Sequence: 16383, First: 16383, Blocks: 1, Length: 64, Began: 5e9,
		}}
		n.setFIFO(0, device.FaultEntry{
			Source: 0x2abcde, Transaction: 1023, Sequence: 16383, PDID: 1, Process: 2,
			Page: 0x7f0012345, Response: device.ResponseSlaveError,
		}, 4096)
	})
	// An ongoing transfer would make the daemon's end wait for it.
	defer r.fake.do(r.fake.nodes[0].resetChannels)
	for name, path := range map[string]string{
		"status":       "/v1/status",
		"nodes":        "/v1/nodes?node=1",
		"domains":      "/v1/domains",
		"channels":     "/v1/channels?node=0",
		"transactions": "/v1/transactions?node=0",
		"smmu":         "/v1/smmu?node=0",
		"fifo":         "/v1/fifo?node=0",
		"counters":     "/v1/counters?node=0",
		"faults":       "/v1/faults?n=5",
	} {
		t.Run(name, func(t *testing.T) {
			code, body := r.get(path)
			if code != http.StatusOK {
				t.Fatalf("%s answers %d: %s", path, code, body)
			}
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, body, "", " "); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			got := volatile.ReplaceAll(pretty.Bytes(), []byte(`"$1": 0`))
			golden := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s answers\n%s\nwant (%s)\n%s", path, got, golden, want)
			}
		})
	}
}

// A stranger sees no transactions of others, and root sees all.
func TestTransactionsOfOthers(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	r.until("the handshake is over", func() bool { return r.host.Handshakes().Total() == 0 })
	slot := int(g.Slot)
	r.fake.do(func() {
		r.fake.transactions = []r5.TransactionInfo{
			{ID: 12, Slot: slot, PDID: device.PDID(g.PDID)},
			{ID: 13, Slot: slot, PDID: 999}, // of the domain that had the slot before
			{ID: 14, Slot: slot + 1, PDID: device.PDID(g.PDID)},
		}
	})
	for _, tt := range []struct {
		name string
		peer api.Peer
		want []uint16
	}{
		{"root", api.Peer{All: true}, []uint16{12, 13, 14}},
		{"a stranger", api.Peer{UID: g.Peer().UID + 4711}, []uint16{}},
	} {
		got := []uint16{}
		for _, x := range answer[control.Transactions](t, r.Daemon, tt.peer, "/v1/transactions?node=0").Transactions {
			got = append(got, x.ID)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s sees transactions %v, want %v", tt.name, got, tt.want)
		}
	}
}

// The highest level of a FIFO and the sums of all transfers reveal what others do.
func TestSumsOfOthers(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	r.until("the handshake is over", func() bool { return r.host.Handshakes().Total() == 0 })
	slot := int(g.Slot)
	r.fake.do(func() {
		r.fake.nodes[0].ended.Over(slot, tally.Write, device.Low, device.StatusNone, 4096, 1)
		r.fake.nodes[0].ended.Over(slot, tally.Write, device.Low, device.StatusDecode, 4096, 1)
		r.fake.nodes[0].ended.Arrived(slot, 4096)
	})
	for _, tt := range []struct {
		name    string
		peer    api.Peer
		highest int
	}{
		{"root", api.Peer{All: true}, 0},
		{"its owner", api.Peer{UID: g.Peer().UID}, -1},
		{"a stranger", api.Peer{UID: g.Peer().UID + 4711}, -1},
	} {
		for _, f := range answer[control.FIFOs](t, r.Daemon, tt.peer, "/v1/fifo?node=0").FIFOs {
			if f.Highest != tt.highest {
				t.Errorf("%s sees a highest level of %d, want %d", tt.name, f.Highest, tt.highest)
			}
		}
		want := control.Transfers{Completed: 1, Failed: 1, Bytes: 4096}
		if n := answer[control.Nodes](t, r.Daemon, tt.peer, "/v1/nodes?node=0").Nodes[0]; (n.Transfers != nil) != tt.peer.All || tt.peer.All && *n.Transfers != want {
			t.Errorf("%s sees the transfers %+v of all", tt.name, n.Transfers)
		}
		domains := answer[control.Domains](t, r.Daemon, tt.peer, "/v1/domains").Domains
		if stranger := tt.name == "a stranger"; stranger != (len(domains) == 0) || !stranger && *domains[0].Transfers != want {
			t.Errorf("%s sees the domains %+v", tt.name, domains)
		}
	}
}

func TestBadRequests(t *testing.T) {
	r := start(t)
	for _, tc := range []struct {
		method, path string
		status       int
		code, text   string
	}{
		{"GET", "/v2/status", 404, control.CodeNotFound, "/v1/status, /v1/nodes, /v1/domains"},
		{"POST", "/v1/status", 405, control.CodeMethod, "GET only"},
		{"DELETE", "/metrics", 405, control.CodeMethod, "GET only"},
		{"GET", "/v1/status?node=0", 400, control.CodeBadRequest, "node"},
		{"GET", "/v1/nodes?node=2", 400, control.CodeBadRequest, "nodes 0 to 1"},
		{"GET", "/v1/nodes?node=-1", 400, control.CodeBadRequest, "nodes 0 to 1"},
		{"GET", "/v1/nodes?node=0&node=1", 400, control.CodeBadRequest, "once"},
		{"GET", "/v1/faults?n=0", 400, control.CodeBadRequest, "1 to 1024"},
		{"GET", "/v1/faults?n=1025", 400, control.CodeBadRequest, "1 to 1024"},
		{"GET", "/v1/faults?n=99999999999999999999", 400, control.CodeBadRequest, "1 to 1024"},
		{"GET", "/v1/registers?window=bar0", 400, control.CodeBadRequest, "pl, smmu"},
		{"GET", "/v1/nodes?%zz", 400, control.CodeBadRequest, "query"},
	} {
		status, body := r.request(tc.method, tc.path)
		var e control.ErrorReply
		if err := json.Unmarshal(body, &e); err != nil {
			t.Errorf("%s %s: %v in %s", tc.method, tc.path, err, body)
			continue
		}
		if status != tc.status || e.Version != control.Version || e.Code != tc.code || !strings.Contains(e.Error, tc.text) {
			t.Errorf("%s %s answers %d %+v, want %d %s with %q", tc.method, tc.path, status, e, tc.status, tc.code, tc.text)
		}
	}
}

// A dump does not read registers that a read changes: FIFO heads, mailboxes' data.
func TestRegisterDumpHasNoSideEffects(t *testing.T) {
	r := start(t)
	n := r.fake.nodes[0]
	touched := map[string]bool{}
	r.fake.do(func() {
		n.OnAccess = func(a faultAccess) {
			head := a.Window == device.PL && (a.Offset&^0xf == device.PLRXFIFO || a.Offset&^0xf == device.PLTXFIFO)
			data := a.Window == device.MBOX && a.Offset%device.PageSize == device.MboxData
			if a.Write || head || data {
				touched[fmt.Sprintf("%v+%#x", a.Window, a.Offset)] = true
			}
		}
	})
	list, err := r.client.Registers(r.ctx(), 0, "")
	if err != nil {
		t.Fatal(err)
	}
	r.fake.do(func() { n.OnAccess = nil })
	if len(touched) > 0 {
		t.Errorf("the dump touched %v", touched)
	}
	seen := map[string]control.Register{}
	for _, reg := range list {
		seen[reg.Window+" "+reg.Name] = reg
	}
	if id := seen["pl ID"]; id.Value == nil || *id.Value != device.IDValue || id.Offset != 0 || id.Width != 4 {
		t.Errorf("ID is dumped as %+v", id)
	}
	for _, name := range []string{"pl RXFIFO_A", "pl TXFIFO_D", "mbox DATA[0]"} {
		if reg, ok := seen[name]; !ok || !reg.Skipped || reg.Value != nil {
			t.Errorf("%s is dumped as %+v, %v", name, reg, ok)
		}
	}
	for _, w := range []string{"pl", "smmu", "btcm", "pktz", "mbox"} {
		one, err := r.client.Registers(r.ctx(), 0, w)
		if err != nil || len(one) == 0 {
			t.Errorf("window %s: %d registers, %v", w, len(one), err)
		}
	}
}

// The path of a fault through the daemon: entry, interrupt, page-in by gup in the attached process
// (this one), RAPF, and the answers of the control socket.
func TestFaultIsServedAndShown(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	page, err := unix.Mmap(-1, 0, device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(page)
	self, err := proc.OpenPID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	va := rdma.VAOf(page)
	if w, err := self.Walk(va, 1, true); err != nil || w.Absent != 1 {
		t.Fatalf("the page is there before its fault: %+v, %v", w, err)
	}
	r.fake.do(func() {
		r.fake.nodes[0].Push(device.FaultEntry{
			Source: 1, Transaction: 7, Sequence: 9, PDID: g.PDID,
			Page: uint64(va) >> device.PageShift, Response: device.ResponseSlaveError,
		}, device.PageSize)
	})
	r.until("the RAPF is out", func() bool { return len(r.fake.nodes[0].Sent) == 1 })
	if w, err := self.Walk(va, 1, true); err != nil || w.Absent != 0 || w.Denied != 0 {
		t.Errorf("the page may not be written: %+v, %v", w, err)
	}
	faults, err := r.client.Faults(r.ctx(), control.AllNodes, 10)
	if err != nil || len(faults) != 1 {
		t.Fatalf("faults %+v, %v", faults, err)
	}
	f := faults[0]
	if f.Node != 0 || f.Slot != int(g.Slot) || uint64(f.Page) != uint64(va) || !f.Write || f.Method != "gup" || f.Policy != "p1" ||
		f.Kind != "minor" || f.Outcome != "resolved" || f.SourceNode != 1 || f.Transaction != 7 || f.Sequence != 9 || !f.Block {
		t.Errorf("fault %+v", f)
	}
	if f.TimeNS <= 0 || f.DrainedNS < 0 || f.StartedNS < f.DrainedNS || f.ResidentNS < f.StartedNS || f.RAPFNS < f.ResidentNS {
		t.Errorf("the stages are not in order: %+v", f)
	}
	if d := r.domainsOf(0)[0]; d.Faults != 1 || d.PagesIn != 1 || d.Failed != 0 {
		t.Errorf("domain %+v", d)
	}
	_, metrics := r.get("/metrics")
	for _, line := range []string{
		"exanet_pinned_bytes 0\n", "exanet_domains{node=\"0\"} 1\n", "exanet_rings 0\n", "exanet_memory_windows 0\n",
		"exanet_faults_total{node=\"0\"} 1\n", "exanet_rapf_sent_total{node=\"0\"} 1\n",
		"# TYPE exanet_retransmits_total counter\n", "exanet_nacks_total{code=\"1\",node=\"1\"} 0\n",
	} {
		if !strings.Contains(string(metrics), line) {
			t.Errorf("the metrics miss %q", line)
		}
	}
}

// A process's faults are shown to its user alone. (Package session tests which user that is.)
func TestFaultsAreTheirUsers(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	r.fake.do(func() {
		r.fake.nodes[0].Push(device.FaultEntry{Source: 1, PDID: g.PDID, Page: 1, Response: device.ResponseSlaveError}, 1)
	})
	r.until("it is answered", func() bool { return len(r.fake.nodes[0].Sent) == 1 })
	for _, tt := range []struct {
		name string
		peer api.Peer
		want int
	}{{"its user", api.Peer{UID: g.Peer().UID}, 1}, {"a stranger", api.Peer{UID: g.Peer().UID + 4711}, 0}} {
		if f := answer[control.Faults](t, r.Daemon, tt.peer, "/v1/faults").Faults; len(f) != tt.want {
			t.Errorf("%s sees %+v", tt.name, f)
		}
	}
}

func TestMailboxesAreDrained(t *testing.T) {
	r := start(t)
	n := r.fake.nodes[1]
	const box = 5 * device.PageSize
	r.fake.do(func() {
		left := uint32(3)
		n.Set(device.MBOX, box+device.MboxStatus, left)
		n.Set64(device.MBOX, box+device.MboxSource, 2<<56) // two words each
		reads := 0
		n.OnAccess = func(a faultAccess) {
			if a.Window == device.MBOX && a.Offset == box+device.MboxData {
				if reads++; reads%2 == 0 {
					left--
					n.Set(device.MBOX, box+device.MboxStatus, left)
				}
			}
		}
		n.handler.Interrupt(device.VectorMailbox)
		if reads != 6 || left != 0 || r.node(1).Counts().Mailbox != 3 {
			t.Errorf("%d words read, %d messages left, %d counted", reads, left, r.node(1).Counts().Mailbox)
		}
		// One that never empties costs its depth an interrupt and no more.
		n.OnAccess = nil
		n.Set(device.MBOX, box+device.MboxStatus, 1)
		n.handler.Interrupt(device.VectorMailbox)
		if got := r.node(1).Counts().Mailbox; got != 3+device.MailboxDepth {
			t.Errorf("%d messages counted, want %d", got, 3+device.MailboxDepth)
		}
		if mask := n.Get(device.PL, device.PLIRQMask); mask != 1<<device.VectorDone {
			t.Errorf("IRQ_MASK is %#x, want vector 3 masked alone", mask)
		}
	})
}

func TestDeviceThatIsGoneIsSaid(t *testing.T) {
	r := start(t)
	r.fake.do(func() { r.fake.nodes[0].Err = device.ErrGone })
	status, body := r.get("/v1/nodes")
	var e control.ErrorReply
	if err := json.Unmarshal(body, &e); err != nil || status != http.StatusServiceUnavailable || e.Code != control.CodeDeviceGone {
		t.Errorf("answers %d %s, %v", status, body, err)
	}
	if status, body := r.get("/v1/nodes?node=1"); status != http.StatusOK {
		t.Errorf("the other node answers %d %s", status, body)
	}
}

func TestServiceManagerIsTold(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@pfd-notify-test-" + fmt.Sprint(os.Getpid())} {
		t.Run(name[:1], func(t *testing.T) {
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			t.Setenv("NOTIFY_SOCKET", name)
			r := start(t)
			buf := make([]byte, 256)
			n, err := c.Read(buf)
			if err != nil || !strings.HasPrefix(string(buf[:n]), "READY=1\n") {
				t.Errorf("told %q, %v", buf[:n], err)
			}
			r.cancel()
			if n, err = c.Read(buf); err != nil || string(buf[:n]) != "STOPPING=1" {
				t.Errorf("told %q, %v", buf[:n], err)
			}
			if err := r.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
