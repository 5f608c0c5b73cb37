package user

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/sockets"
)

// ResetKind is the source of a reset.
type ResetKind uint8

// The kinds of reset.
const (
	ResetCommand ResetKind = iota // DEVICE_RESET
	ResetFLR                      // a function level reset by configuration space
)

// Device is the function of a PCI device behind its BARs. It is called only on the owner's
// goroutine (Config.Run), never concurrently with itself. During a call the client waits for an
// answer and may not answer messages itself: the device must not use DMA then, but from another
// goroutine or after the call. An access has 1, 2, 4 or 8 bytes, is aligned to its size and
// inside the BAR: the server splits others as the kernel's VFIO does. The MSI-X table and pending
// bits are the server's and never reach the device.
type Device interface {
	// Read returns size bytes at an offset of a BAR; bits above them are ignored.
	Read(bar int, offset uint64, size int) uint64
	// Write stores the low size bytes of value.
	Write(bar int, offset uint64, size int, value uint64)
	// Reset brings the device to its state after power-on.
	Reset(kind ResetKind)
}

// Watcher is a Device that is notified of its client. It is called on the owner's goroutine.
type Watcher interface {
	// Connected is called when a client has negotiated the protocol.
	Connected()
	// Disconnected is called when the client is gone: its memory is unmapped and its eventfds are
	// closed. The device keeps its state (spec, "Client Disconnection").
	Disconnected()
}

// IOEvent is a place in a BAR whose writes a client may replace by an eventfd. The device then
// sees one Write of the value for all signals since the eventfd was last read. It has no effect
// with a client that does not use it.
type IOEvent struct {
	BAR    int
	Offset uint64
	Size   int    // 1, 2, 4 or 8
	Value  uint64 // only a write of this value is replaced
}

// Config describes the device to serve and how to call it. A zero value selects the default named
// beside the field.
type Config struct {
	Identity Identity
	BARs     [6]BAR
	MSIX     MSIX
	IOEvents []IOEvent

	// Run calls f on the goroutine that owns the device and returns when f has returned. nil: the
	// connection's goroutine is the owner.
	Run func(f func())

	MaxTransfer uint32        // bytes of data in one message; 1 MiB
	MaxMaps     int           // DMA mappings; 4 Mi, of which 65535 are announced
	MaxFDs      int           // descriptors in one message; 8 (QEMU accepts 16 at most)
	Timeout     time.Duration // for a client to send VERSION, to complete a message, to answer a DMA message, to read; 5 s
	Log         *slog.Logger  // refusals at level debug; nil: no log
}

// Stats counts events of a server since its start.
type Stats struct {
	Connections uint64 // clients that were served
	Turned      uint64 // clients refused because another was connected
	Refused     uint64 // requests answered by an error
	MapsRefused uint64 // of these, DMA_MAPs: memory that the device cannot access
	Aborted     uint64 // connections closed because the peer violated the protocol
	Accesses    uint64 // to the BARs, by messages
}

// Server serves a PCI device on a vfio-user socket. It serves one client at a time and refuses a
// second with EBUSY, unless the first is gone and only its cleanup is left. Between clients the
// device keeps its state, configuration space included.
type Server struct {
	cfg Config
	dev Device
	pci *pciConfig // owned by the owner
	irq *interrupts
	dma DMA
	ios ioEvents
	log *slog.Logger

	memory bool // owner: the BARs answer

	mu     sync.Mutex // guards holder and live
	holder *conn      // the connection whose client is served
	live   map[*conn]struct{}
	wg     sync.WaitGroup

	connections, turned, refused, mapsRefused, aborted, accesses atomic.Uint64
}

// New checks the description of a device and makes its server. The caller must call Close.
func New(cfg Config, dev Device) (*Server, error) {
	if cfg.MaxTransfer == 0 {
		cfg.MaxTransfer = defaultMaxTransfer
	}
	if cfg.MaxTransfer > 1<<30 {
		return nil, fmt.Errorf("vfio-user server: MaxTransfer %d, at most 1 GiB", cfg.MaxTransfer)
	}
	if cfg.MaxMaps == 0 {
		cfg.MaxMaps = serverMaxMaps
	}
	if cfg.MaxFDs == 0 {
		cfg.MaxFDs = 8
	}
	if cfg.MaxFDs < 1 || cfg.MaxFDs > recvFDs {
		return nil, fmt.Errorf("vfio-user server: MaxFDs %d, must be 1 to %d", cfg.MaxFDs, recvFDs)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if _, err := os.Stat("/proc/self/fd"); err != nil { // isEventFD and reopen use it
		return nil, fmt.Errorf("vfio-user server: %w: is /proc mounted?", err)
	}
	pci, err := newConfig(cfg.Identity, cfg.BARs, cfg.MSIX)
	if err != nil {
		return nil, fmt.Errorf("vfio-user server: %w", err)
	}
	for i, bar := range cfg.BARs {
		if err := checkAreas(bar); err != nil {
			return nil, fmt.Errorf("vfio-user server: BAR %d: %w", i, err)
		}
	}
	s := &Server{cfg: cfg, dev: dev, pci: pci, log: cfg.Log, live: map[*conn]struct{}{}}
	s.irq = newInterrupts(cfg.MSIX, func() {
		s.log.Warn("vfio-user: the client is disconnected: it made its eventfd block")
		s.hangUp()
	})
	if err := s.ios.open(s); err != nil {
		return nil, fmt.Errorf("vfio-user server: %w", err)
	}
	return s, nil
}

// checkAreas makes sure that a client cannot make the file behind mapped areas smaller, which
// would kill the process that serves the device.
func checkAreas(bar BAR) error {
	if len(bar.Areas) == 0 {
		return nil
	}
	seals, err := unix.FcntlInt(uintptr(bar.FD), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("areas need a memfd: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return errors.New("areas need a memfd sealed with F_SEAL_SHRINK")
	}
	var st unix.Stat_t
	if err := unix.Fstat(bar.FD, &st); err != nil {
		return fmt.Errorf("areas: %w", err)
	}
	last := bar.Areas[len(bar.Areas)-1]
	if end := bar.FDOffset + last.Offset + last.Size; end > uint64(st.Size) {
		return fmt.Errorf("areas end at %#x of a memfd of %#x bytes", end, st.Size)
	}
	return nil
}

// DMA returns the device's access to its client's memory. It is valid for the life of the server;
// without a client every access fails.
func (s *Server) DMA() *DMA { return &s.dma }

// Interrupt sends MSI-X vector v to the client, or marks it pending until the client can receive
// it. It is safe for concurrent use. It does not block, whatever state the client's eventfd is
// in. It returns an error if there is no such vector.
func (s *Server) Interrupt(v int) error { return s.irq.raise(v) }

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{s.connections.Load(), s.turned.Load(), s.refused.Load(), s.mapsRefused.Load(), s.aborted.Load(), s.accesses.Load()}
}

// run calls f on the owner's goroutine.
func (s *Server) run(f func()) {
	if s.cfg.Run == nil {
		f()
	} else {
		s.cfg.Run(f)
	}
}

// Serve listens at path, for the user of this process only, and serves one client after another.
// It returns nil when ctx ends, and an error if the socket fails. It removes the socket file at
// the end.
//
// listening, if present, is called once when clients can connect. The socket's file may exist
// earlier: it is made before that, or an earlier server left it behind.
func (s *Server) Serve(ctx context.Context, path string, listening ...func()) error {
	fd, err := listen(path)
	if err != nil {
		return fmt.Errorf("vfio-user server: %w", err)
	}
	file, err := sockets.Made(path)
	if err != nil {
		closeFDs([]int{fd})
		return fmt.Errorf("vfio-user server: %w", err)
	}
	for _, f := range listening {
		f()
	}
	l := newSocket(fd)
	l.sendTime = s.cfg.Timeout
	stop := context.AfterFunc(ctx, l.shutdown)
	err = s.accept(ctx, l)
	stop()
	_ = file.Remove() // the file or its directory may be gone already, or belong to another server
	l.close()
	s.farewell()
	s.hangUp()
	s.wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("vfio-user server at %s: %w", path, err)
}

// maxConns bounds the connections at one time: one is served, the others have not sent VERSION
// yet. More wait in the socket's queue. Defined by this project.
const maxConns = 64

func (s *Server) accept(ctx context.Context, l *socket) error {
	slots := make(chan struct{}, maxConns)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		fd, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				l.shed([]int{fd})
			}
			return nil
		case err == unix.EINTR || err == unix.ECONNABORTED:
			<-slots
		case err == unix.EMFILE || err == unix.ENFILE || err == unix.ENOMEM || err == unix.ENOBUFS:
			<-slots
			s.log.Warn("vfio-user: cannot accept", "error", err)
			select { // wait until descriptors or memory are free again
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		case err != nil:
			return fmt.Errorf("accept: %w", err)
		default:
			c := s.admit(fd)
			s.wg.Go(func() {
				err, level := s.serve(c), slog.LevelDebug
				if errors.Is(err, sockets.ErrDescriptors) { // the client receives no reason, and the cause may be our own limit
					level = slog.LevelWarn
				}
				s.log.Log(ctx, level, "vfio-user: connection ended", "error", err)
				go func() { c.sock.wait(0); <-slots }() // bounds the descriptors that do not close, too
			})
		}
	}
}

// enter makes a connection the server's client and reports whether it did. If the previous
// connection is over it waits for its cleanup, up to Timeout.
func (s *Server) enter(c *conn) bool {
	late := time.NewTimer(s.cfg.Timeout)
	defer late.Stop()
	for {
		s.mu.Lock()
		h := s.holder
		if h == nil {
			s.holder = c
		}
		s.mu.Unlock()
		if h == nil {
			return true
		}
		if !h.sock.hungUp() {
			return false
		}
		select {
		case <-h.left:
		case <-late.C:
			return false
		}
	}
}

// farewell logs a warning if a client is connected when the server ends.
func (s *Server) farewell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder == nil {
		return
	}
	if pid, program, ok := s.holder.sock.peer(); ok {
		s.log.Warn("vfio-user: the server ends under its client: QEMU aborts when the socket of a device closes, stop virtual machines first",
			"pid", pid, "program", program)
	}
}

// hangUp ends all connections.
func (s *Server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.live {
		c.end()
	}
}

// Close ends the connection and releases the server's resources. Serve must have returned, or be
// about to return because its context has ended. Close may be called again.
func (s *Server) Close() {
	s.hangUp()
	s.wg.Wait()
	s.ios.close()
}

// admit makes a connection that hangUp ends.
func (s *Server) admit(fd int) *conn {
	c := newConn(s, fd)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[c] = struct{}{}
	return c
}

func (s *Server) serve(c *conn) error {
	err := c.loop()
	if !errors.Is(err, ErrGone) {
		s.aborted.Add(1)
	}
	c.finish()
	c.release()
	s.mu.Lock()
	delete(s.live, c)
	if s.holder == c {
		s.holder = nil
	}
	s.mu.Unlock()
	close(c.left)
	c.sock.wait(s.cfg.Timeout)
	return err
}

// reset resets configuration space, vectors and device. Mappings and eventfds of the client stay.
func (s *Server) reset(kind ResetKind) {
	s.pci.restore()
	s.irq.reset()
	s.refresh()
	s.dev.Reset(kind)
}

// refresh applies the state of configuration space to memory decode, DMA and interrupts.
func (s *Server) refresh() {
	s.memory = s.pci.memory()
	s.dma.setMaster(s.pci.master())
	s.irq.setOpen(s.pci.master() && !s.pci.functionMasked())
}
