package serve

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/vfio/user"
)

// The memory of a hostile driver, by DMA address: four levels of tables, rings, words, and the source
// and destination of a transfer.
const (
	liarBase     = 1 << 32
	liarSize     = 4 << 20
	liarEvents   = liarBase + 8*device.PageSize
	liarCommands = liarBase + 9*device.PageSize
	liarWord     = liarBase + 10*device.PageSize
	liarData     = 512 << 10 // of a transfer, at VA 64 KiB and 1 MiB

	liarReadOnly  = 2 << 32 // a read-only page, and a write-only one
	liarWriteOnly = 3 << 32
	liarNowhere   = 4 << 32

	liarSlot = 2
	liarPDID = 7
)

// liar is a driver of node 0 that does not keep the rules.
type liar struct {
	client
	fd, page int
	sent     uint32 // commands
}

func newLiar(t *testing.T, dir string) *liar {
	l := &liar{client: client{t, connect(t, dir)}}
	for size, fd := range map[int64]*int{liarSize: &l.fd, device.PageSize: &l.page} {
		var err error
		if *fd, err = unix.MemfdCreate("liar", unix.MFD_CLOEXEC); err == nil {
			err = unix.Ftruncate(*fd, size)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(*fd) })
	}
	l.must(l.mapAll(), l.MapDMA(liarReadOnly, device.PageSize, l.page, 0, user.DMARead), l.MapDMA(liarWriteOnly, device.PageSize, l.page, 0, user.DMAWrite))
	l.setUp()
	return l
}

func (l *liar) must(errs ...error) {
	l.Helper()
	if err := errors.Join(errs...); err != nil {
		l.Fatal(err)
	}
}

func (l *liar) mapAll() error {
	return l.MapDMA(liarBase, liarSize, l.fd, 0, user.DMARead|user.DMAWrite)
}

func (l *liar) put(addr, v uint64) {
	l.Helper()
	_, err := unix.Pwrite(l.fd, binary.LittleEndian.AppendUint64(nil, v), int64(addr-liarBase))
	l.must(err)
}

// setUp restores the node's slot, whatever was done before, with both queues enabled.
func (l *liar) setUp() {
	l.Helper()
	l.must(l.PowerOn(), l.SetCommand(user.CommandMemory|user.CommandMaster), l.Reset())
	for level := range uint64(3) { // tables of four levels (VMSAv8-64, 4 KiB granule)
		l.put(liarBase+level*device.PageSize, liarBase+(level+1)*device.PageSize|3)
	}
	for page := uint64(16); page < 512; page++ {
		l.put(liarBase+3*device.PageSize+8*page, liarBase+page*device.PageSize|0x443)
	}
	w32 := func(w device.WindowID, off uint32, v uint64) { l.Helper(); l.write(w, off, 4, v) }
	w64 := func(w device.WindowID, off uint32, v uint64) { l.Helper(); l.write(w, off, 8, v) }
	w32(device.PL, device.PLCtrl, device.CtrlEnable)
	w32(device.SMMU, device.SCR0, device.SCR0GFRE|device.SCR0GFIE|device.SCR0USFCFG)
	w32(device.SMMU, device.SMR+4*liarSlot, device.SMRValid|liarSlot)
	w32(device.SMMU, device.S2CR+4*liarSlot, liarSlot)
	w32(device.SMMU, device.Bank(liarSlot, device.TCR), 64-48)
	w64(device.SMMU, device.Bank(liarSlot, device.TTBR0), liarBase|(liarSlot+1)<<48)
	w32(device.SMMU, device.Bank(liarSlot, device.SCTLR), device.SCTLRDriver)
	w64(device.PL, device.PLPDCfg+8*liarSlot, device.PDCfg(liarPDID, 1))
	l.must(unix.Fallocate(l.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, liarEvents-liarBase, 2*device.PageSize))
	l.sent = 0
	l.turnOn(device.PLEventQueue, liarEvents)
	l.turnOn(device.PLCommandQueue, liarCommands)
}

func (l *liar) turnOn(queue uint32, at uint64) {
	l.Helper()
	l.write(device.PL, queue+device.QueueCtrl, 4, device.QueueTurnOff)
	l.write(device.PL, queue+device.QueueBase, 8, at)
	l.write(device.PL, queue+device.QueueSize, 4, device.QueueMinLog)
	l.write(device.PL, queue+device.QueueStatus, 4, device.QueueErrors)
	l.write(device.PL, queue+device.QueueCtrl, 4, device.QueueTurnOn)
}

// ring starts a transfer from the node to itself.
func (l *liar) ring(ch int) {
	l.Helper()
	d := device.Descriptor{Src: 64 << 10, Dst: 1 << 20, Size: liarData, DstPDID: liarPDID, DstGeneration: 1, Done: device.DoneInitialized}
	for i, v := range d.Words() {
		l.write(device.BTCM, l.descriptor(ch)+8*uint32(i), 8, v)
	}
	l.write(device.BTCM, device.BTCMDoorbells+device.PageSize*liarSlot, 8, uint64(ch)+1)
}

func (l *liar) descriptor(ch int) uint32 {
	return uint32(device.BTCMDescriptors + device.PageSize*liarSlot + device.DescriptorSize*ch)
}

// command puts a command into the ring of 16, and rings the doorbell.
func (l *liar) command(c device.Command) {
	l.Helper()
	e := c.Encode()
	e[0] |= uint64(l.sent/16%2 ^ 1)
	var b [device.QueueEntrySize]byte
	e.Put(b[:])
	_, err := unix.Pwrite(l.fd, b[:], liarCommands-liarBase+int64(l.sent%16)*device.QueueEntrySize)
	l.must(err)
	l.sent++
	l.write(device.PL, device.PLCommandQueue+device.QueueDoorbell, 4, 1)
}

// until waits for a register of window pl.
func (l *liar) until(off uint32, mask, want uint64) {
	l.Helper()
	var v uint64
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if v = l.read(device.PL, off, 4); v&mask == want {
			return
		}
	}
	l.Fatalf("pl+%#x is %#x, want %#x of %#x", off, v, want, mask)
}

// fault makes a bank report a fault of an access.
func (l *liar) fault() {
	l.write(device.SMMU, device.Bank(liarSlot, device.FAR), 8, 0x5000)
	l.write(device.SMMU, device.Bank(liarSlot, device.FSRRESTORE), 4, device.FSRTF)
}

const (
	eventStatus   = device.PLEventQueue + device.QueueStatus
	commandStatus = device.PLCommandQueue + device.QueueStatus
	allStatus     = device.QueueErrors | device.QueueIsOn
)

// lies are actions of drivers; rounds of them run while transfers do.
var lies = []struct {
	name   string
	rounds int
	act    func(l *liar, round int)
}{
	{"unmaps in mid-transfer", 50, func(l *liar, _ int) { l.must(l.UnmapDMA(liarBase, liarSize), l.mapAll()) }},
	{"remaps while the device writes", 50, func(l *liar, round int) {
		// Other pages of the file at the transfer's destination, and back.
		at, size := uint64(liarBase+1<<20), uint64(1<<20)
		l.must(l.UnmapDMA(at, size), l.MapDMA(at, size, l.fd, 2<<20, user.DMARead|user.DMAWrite))
		if round%2 == 1 {
			l.must(l.UnmapDMA(liarBase, liarSize), l.mapAll())
		}
	}},
	{"files shrunk under a walk", 50, func(l *liar, round int) {
		l.must(unix.Ftruncate(l.fd, []int64{0, device.PageSize, 1 << 20}[round%3]), unix.Ftruncate(l.fd, liarSize))
		l.setUp()
	}},
	{"DEVICE_RESET", 20, func(l *liar, _ int) { l.must(l.Reset()) }},
	{"FLR", 20, func(l *liar, _ int) { l.must(l.Write(user.RegionConfig, 0x68, 2, 1<<15)); l.setUp() }},
	{"CTRL.reset", 20, func(l *liar, _ int) { l.write(device.PL, device.PLCtrl, 4, device.CtrlReset) }},
	{"D3hot", 20, func(l *liar, _ int) { l.must(l.Write(user.RegionConfig, 0x44, 2, 3), l.PowerOn()) }},
	{"bus mastering off under a SYNC", 20, func(l *liar, _ int) {
		for range 8 {
			l.command(device.Command{Kind: device.CommandSync, Index: device.SyncAll, Address: liarWord, Value: 1})
		}
		l.must(l.SetCommand(user.CommandMemory), l.SetCommand(user.CommandMemory|user.CommandMaster))
		l.setUp()
	}},
	{"a ring where nothing is", 5, func(l *liar, _ int) {
		l.turnOn(device.PLEventQueue, liarNowhere)
		l.fault()
		l.until(eventStatus, allStatus, device.QueueErrAccess)
		l.turnOn(device.PLCommandQueue, liarNowhere)
		l.write(device.PL, device.PLCommandQueue+device.QueueDoorbell, 4, 1)
		l.until(commandStatus, allStatus, device.QueueErrAccess)
		l.setUp()
	}},
	{"a ring in memory that may not be written, or read", 5, func(l *liar, _ int) {
		l.turnOn(device.PLEventQueue, liarReadOnly)
		l.fault()
		l.until(eventStatus, allStatus, device.QueueErrAccess)
		l.turnOn(device.PLCommandQueue, liarWriteOnly)
		l.write(device.PL, device.PLCommandQueue+device.QueueDoorbell, 4, 1)
		l.until(commandStatus, allStatus, device.QueueErrAccess)
		l.setUp()
	}},
	{"a ring that is unmapped under way", 5, func(l *liar, _ int) {
		l.must(l.UnmapDMA(liarEvents, 2*device.PageSize))
		l.fault()
		l.until(eventStatus, allStatus, device.QueueErrAccess)
		l.must(l.UnmapDMA(liarBase, liarSize), l.mapAll())
		l.setUp()
	}},
	{"a consumer that never moves", 5, func(l *liar, _ int) {
		for range 100 {
			l.command(device.Command{Kind: device.CommandNop, Value: 1})
		}
		l.fault()
		l.until(eventStatus, allStatus, device.QueueIsOn)
		if v := l.read(device.PL, device.PLEventQueue+device.QueueProd, 4); v > 16 {
			l.Errorf("PROD %d of a ring of 16 from which nothing was taken", v)
		}
		l.setUp()
	}},
	{"indices out of range", 5, func(l *liar, round int) {
		ahead := (l.read(device.PL, device.PLEventQueue+device.QueueProd, 4) + 12) % 32 // events may arrive meanwhile
		l.write(device.PL, device.PLEventQueue+device.QueueCons, 4, []uint64{0xffff, 32, ahead}[round%3])
		l.until(eventStatus, allStatus, device.QueueErrIndex)
		l.setUp()
	}},
	{"base changed under way", 5, func(l *liar, _ int) {
		l.command(device.Command{Kind: device.CommandNop})
		for _, q := range []uint32{device.PLEventQueue, device.PLCommandQueue} {
			l.write(device.PL, q+device.QueueBase, 8, liarNowhere)
			l.until(q+device.QueueStatus, allStatus, device.QueueErrChanged)
		}
		l.setUp()
	}},
	{"any bytes for commands", 50, func(l *liar, round int) {
		rng := rand.New(rand.NewPCG(uint64(round), 1))
		for at := uint64(liarCommands); at < liarCommands+16*device.QueueEntrySize; at += 8 {
			v := rng.Uint64()
			if at%device.QueueEntrySize == 0 { // valid kinds, of the current phase
				v = v&^0xffff | 1 | uint64(round%7)<<8
			}
			l.put(at, v)
		}
		l.write(device.PL, device.PLCommandQueue+device.QueueDoorbell, 4, 1)
		l.read(device.PL, device.PLID, 4)
		l.setUp()
	}},
}

// TestLies: whatever the driver of a node does to its memory, device or queues during its transfers, a
// later transfer arrives, another node answers, and when the driver is gone the server holds no more
// resources than before.
func TestLies(t *testing.T) {
	pid, dir := startProcess(t)
	other, err := user.Redial(t.Context(), SocketPath(dir, 1), user.Options{}, func(c *user.Client) error { return c.SetCommand(user.CommandMemory) })
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	before := usageOf(t, pid)
	for _, lie := range lies {
		t.Run(lie.name, func(t *testing.T) {
			l := newLiar(t, dir)
			for round := range lie.rounds {
				for ch := range 4 {
					l.ring(ch)
				}
				lie.act(l, round)
				if v, err := other.Read(int(device.PL), device.PLNodeID, 4); v != 1 || err != nil {
					t.Fatalf("the other node reads %#x, %v", v, err)
				}
			}
			l.setUp()
			source := make([]byte, liarData)
			for i := range source {
				source[i] = byte(i>>8 ^ i)
			}
			_, err := unix.Pwrite(l.fd, source, 64<<10)
			l.must(err)
			l.ring(5)
			var done uint32
			for end := time.Now().Add(2 * time.Minute); done != device.DoneCompleted && done != device.DoneFailed && time.Now().Before(end); time.Sleep(time.Millisecond) {
				done = uint32(l.read(device.BTCM, l.descriptor(5)+device.DescDone, 4))
			}
			got := make([]byte, liarData)
			_, err = unix.Pread(l.fd, got, 1<<20)
			l.must(err)
			if done != device.DoneCompleted || string(got) != string(source) {
				t.Errorf("a transfer after it: done %d, status %d, every byte right: %v", done, uint8(l.read(device.BTCM, l.descriptor(5)+device.DescReserved1, 8)), string(got) == string(source))
			}
			l.Close()
			after := usageOf(t, pid)
			for end := time.Now().Add(5 * time.Minute); after.over(before) && time.Now().Before(end); after = usageOf(t, pid) {
				time.Sleep(10 * time.Millisecond)
			}
			if after.over(before) {
				t.Errorf("%+v after it, %+v before", after, before)
			}
		})
	}
}
