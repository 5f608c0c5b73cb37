package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
)

// handle serves one connection to the attachment socket. ctx ends when pfd accepts no more
// attachments; an attachment that stands goes on until it is ended.
func (d *Host) handle(ctx context.Context, c *attach.Conn) {
	uid := c.Peer().UID
	if !d.handshakes.Take(uid) {
		// Read the hello first: closing a socket with unread data resets it, and the client
		// would never see the refusal. attach.Serve bounds the connections that wait here.
		hctx, cancel := context.WithTimeout(ctx, d.cfg.Settings().HandshakeTime)
		defer cancel()
		if _, err := c.AwaitHello(hctx); err != nil {
			d.refuse(c, err)
			return
		}
		d.refuse(c, &attach.RefusedError{Code: attach.CodeBusy,
			Text: fmt.Sprintf("uid %d has %d unfinished handshakes: finish or close some, and try again", uid, d.cfg.Settings().HandshakesPerUID)})
		return
	}
	s, err := d.handshake(ctx, c)
	d.handshakes.Give(uid)
	if err != nil {
		d.refuse(c, err)
		return
	}
	s.log.Info("attached", "group", s.joined.domain.Group, "method", s.method, "policy", s.policy)
	reason := s.wait()
	s.leave(reason)
	s.log.Info("ended", logs.KeyReason, reason)
}

// refuse counts and answers a connection that gets no attachment.
func (d *Host) refuse(c *attach.Conn, err error) {
	d.refused.Add(1)
	var r *attach.RefusedError
	answer := errors.As(err, &r)
	why, reason := err.Error(), "handshake"
	if answer {
		why, reason = r.Text, fmt.Sprint("code ", r.Code)
	}
	d.log.Info("attachment refused", "pid", c.Peer().PID, logs.KeyUID, c.Peer().UID, logs.KeyReason, reason, "why", why)
	if !answer {
		return // package attach has answered it, or the peer has left
	}
	if err := c.Refuse(r.Code, attach.TypeHello, r.Text); err != nil {
		d.log.Debug("refusal not delivered", "pid", c.Peer().PID, "err", err)
	}
}

// nodeNames names the nodes that there are, for people.
func (d *Host) nodeNames() string {
	if len(d.nodes) == 1 {
		return fmt.Sprintf("node %d only", d.nodes[0].ID())
	}
	return fmt.Sprintf("nodes %d to %d", d.nodes[0].ID(), d.nodes[len(d.nodes)-1].ID())
}

// requested returns the node that a process asks for.
func (d *Host) requested(h *attach.Hello) (*Node, error) {
	switch {
	case h.Place && int(h.Node) < len(d.nodes):
		return d.nodes[h.Node], nil
	case h.Place:
		return nil, refusal(attach.CodeNoNode, "this pfd has %d nodes, and none in place %d", len(d.nodes), h.Node)
	}
	if n := d.NodeByID(h.Node); n != nil {
		return n, nil
	}
	return nil, refusal(attach.CodeNoNode, "no node %d here: this pfd has %s", h.Node, d.nodeNames())
}

// handshake performs a connection's handshake and returns its session. After an error nothing is
// left behind. If the error is an *attach.RefusedError, the caller must send it; after any other
// the process has its answer already, or has left.
func (d *Host) handshake(ctx context.Context, c *attach.Conn) (_ *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Settings().HandshakeTime)
	defer cancel()
	hello, err := c.AwaitHello(ctx)
	if err != nil {
		return nil, err
	}
	n, err := d.requested(&hello)
	if err != nil {
		return nil, err
	}
	peer := c.Peer()
	s := &session{
		d: d, n: n, conn: c, uid: peer.UID, method: hello.Method.Chosen(), policy: hello.Policy.Chosen(),
		log:   d.log.With("node", n.Number(), "pid", peer.PID, "uid", peer.UID),
		ended: make(chan attach.Reason, 1), leaving: make(chan struct{}), left: make(chan struct{}),
	}
	if err := s.checkDevice(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.open(peer, hello.Threads); err != nil {
		return nil, err
	}
	err = c.Offer(ctx, s.pages, int(s.netlink.Fd()))
	// The process has the socket now, or never will.
	if err = errors.Join(err, s.netlink.Close()); err != nil {
		return nil, err
	}
	peer = c.Peer() // with its keeper
	s.group = member{hello.Group, hello.Key, hello.Proof, hello.ProofVA}
	if err := s.reach(peer); err != nil {
		return nil, err
	}
	if newView := d.features.NewView; newView != nil {
		if s.view, err = newView(tableBudget{d, s.uid}); err != nil {
			s.log.Debug("pfd reaches shared memory by the process's page tables", "err", err)
		}
	}
	if !d.admit(s) {
		return nil, refusal(attach.CodeBusy, "pfd stops: start another one, or wait for it to come back")
	}
	if err := s.proveGroup(); err != nil {
		s.giveUp()
		return nil, err
	}
	if err := d.Own(ctx, n, func() error { return s.join(&hello) }); err != nil {
		s.giveUp()
		return nil, joinRefusal(err)
	}
	if err := s.welcome(); err != nil {
		s.leave(brokenOff(err))
		return nil, fmt.Errorf("welcome not delivered: %w", err)
	}
	return s, nil
}

// open makes what needs no register: the process's descriptors, its pages and its netlink
// socket.
func (s *session) open(peer attach.Peer, threads bool) error {
	var err error
	if s.exit, err = exitFile(peer.PIDFD); err != nil {
		return refusal(attach.CodeInternal, "pfd: watching the process: %v: see its log", limits.Explain(err))
	}
	memory := attach.NewMemory
	if threads {
		memory = attach.NewThreadMemory
	}
	if s.pages, err = memory(); err != nil {
		return refusal(attach.CodeInternal, "pfd: %v: see its log", limits.Explain(err))
	}
	if s.method == pagein.Populate {
		// A page-in that outlasts the attachment still reads it.
		if s.served, err = attach.MapMemory(s.pages.FD()); err != nil {
			return refusal(attach.CodeInternal, "pfd: %v: see its log", limits.Explain(err))
		}
	}
	if s.netlink, s.netlinkPort, err = netlink.NewReceiver(s.n.sender.Port()); err != nil {
		return refusal(attach.CodeInternal, "pfd: %v: see its log", limits.Explain(err))
	}
	return nil
}

// join creates the session's domain and attaches it to the machine and the fault driver: all
// of it or nothing. On the owning goroutine.
func (s *session) join(hello *attach.Hello) error {
	n := s.n
	// A device that is back answers before its initialization, which ends all domains.
	if err := s.checkDevice(); err != nil {
		return err
	}
	dom, err := n.domains.Create(domain.Request{
		UID: s.uid, PID: s.process.PID(), Group: hello.Group,
		Accept: hello.Accept, AcceptGroup: hello.AcceptGroup,
	})
	if err != nil {
		return err
	}
	s.log = s.log.With("slot", dom.Slot, "pdid", uint16(dom.PDID))
	err = s.d.machine.Attach(n.index, dom.Slot, &Attachment{
		Pages: s.pages.Pages, Wake: s.pages.WakeFD(), Bells: &s.bells, Space: s.makeSpace(), ReadOnly: &s.readOnly, UID: s.uid, PID: s.conn.Peer().PID,
		Gone:     func() { s.end(attach.ReasonProcess) },
		Declined: func(source device.NodeID, r mailbox.RAPF) bool { return n.faults.Declined(dom.Slot, source, r) },
		Log:      s.log,
	})
	if err != nil {
		return errors.Join(fmt.Errorf("attaching to the device: %w", err), n.domains.Destroy(dom.Slot, nil))
	}
	s.joined = joined{domain: *dom, since: s.d.cfg.Now(), base: n.faults.Slot(dom.Slot), invalidatedBefore: n.invalidations(dom.Slot)}
	if ended := s.d.features.Transfers; ended != nil {
		s.joined.transfersBefore = ended(n.index).Slots[dom.Slot]
	}
	err = n.faults.Add(fault.Target{
		Slot: dom.Slot, PDID: dom.PDID,
		Policy: s.policy, Method: s.method,
		Delegate: s.delegateFor(dom.Slot),
		Forbids:  func(page device.VA) bool { return s.readOnly.Forbids(page, device.PageSize) },
	})
	if err != nil {
		undo := n.domains.Destroy(dom.Slot, func() { s.d.machine.Detach(n.index, dom.Slot) })
		return errors.Join(err, undo)
	}
	n.sessions[dom.Slot] = s
	n.attached++
	return nil
}

// joinRefusal adds a code to the error of join. The texts of package domain end with the
// remedy.
func joinRefusal(err error) error {
	code := attach.CodeInternal
	var r *attach.RefusedError
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, domain.ErrNoSlot), errors.Is(err, domain.ErrNoPDID):
		code = attach.CodeNoSlot
	case errors.Is(err, domain.ErrQuota), errors.Is(err, domain.ErrNames):
		code = attach.CodeQuota
	case errors.Is(err, domain.ErrGroupFull):
		code = attach.CodeGroupFull
	case errors.Is(err, domain.ErrPeers), errors.Is(err, domain.ErrPDID), errors.Is(err, domain.ErrGroupName):
		code = attach.CodeProtocol
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, errStopped):
		return refusal(attach.CodeBusy, "pfd is stopping, or its engine did not answer in time: try again")
	}
	return refusal(code, "%v", err)
}

// welcome sends the process its welcome.
func (s *session) welcome() error {
	dom := &s.joined.domain
	w := attach.Welcome{Grant: attach.Grant{
		Slot: uint8(dom.Slot), Interface: dom.Interface, Member: uint8(dom.Member),
		VABits: uint8(s.n.caps.Load() & device.CapsVABitsMask),
		PDID:   dom.PDID, Method: s.method, Policy: s.policy, Node: s.n.ID(),
		PFDPort: s.n.sender.Port(), OwnPort: s.netlinkPort, PFDPID: uint32(os.Getpid()), Caps: s.n.caps.Load(), Page: s.page(),
		Generation: dom.Generation,
	}}
	if s.sharer() != nil || s.registrar() != nil {
		if err := s.conn.TakeDescriptors(); err != nil {
			return err
		}
	}
	return s.conn.Welcome(w)
}

// brokenOff returns the reason of an attachment whose connection ended with err. A process
// that sends an invalid message, or reads no answer, broke the protocol; an error of the
// kernel's is not the process's fault.
func brokenOff(err error) attach.Reason {
	switch {
	case errors.Is(err, attach.ErrMessage), errors.Is(err, attach.ErrValue), errors.Is(err, attach.ErrVersion),
		errors.Is(err, os.ErrDeadlineExceeded):
		return attach.ReasonProtocol
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return attach.ReasonClosed
	}
	return attach.ReasonLost
}

// wait blocks until the attachment ends: the process closes its socket, dies or leaves its
// address space, or the device or pfd ends.
func (s *session) wait() attach.Reason {
	ctx, cancel := context.WithCancel(context.Background())
	var watchers sync.WaitGroup
	watchers.Go(func() {
		switch err := s.conn.Hold(ctx, attach.Handlers{Sharer: s.sharer(), Registrar: s.registrar(), Windower: windower{s, ctx}, Ringer: ringer{s}, Threader: s.threader(ctx)}); {
		case err == nil:
			s.end(attach.ReasonClosed)
		case ctx.Err() == nil:
			s.log.Info("attachment broken off", "err", err)
			s.endWith(brokenOff(err), err.Error())
		}
	})
	for _, f := range []*os.File{s.exit, s.keeper} {
		watchers.Go(func() {
			if waitExit(f) == nil {
				s.end(attach.ReasonProcess)
			}
		})
	}
	reason := <-s.ended
	cancel()
	// Closing wakes the goroutines that watch them.
	_ = s.exit.Close()
	_ = s.keeper.Close()
	watchers.Wait()
	return reason
}

// helperEndTime bounds the wait for a memory helper's requests in flight when its attachment
// ends. Defined by this project.
const helperEndTime = 200 * time.Millisecond

// leave ends the attachment. Page-ins and accesses stop; after the last access in flight the
// machine detaches; then the process is told.
func (s *session) leave(reason attach.Reason) {
	s.end(reason)
	text := reason.String()
	if s.why != "" {
		text += ": " + s.why
	}
	n, slot := s.n, s.joined.domain.Slot
	quiet := make(chan struct{})
	n.bus.Post(func() {
		n.faults.Remove(slot)
		s.endThreads()
		after := func() {
			s.d.machine.Detach(n.index, slot)
			s.unshared()
			n.sessions[slot] = nil
			n.formerly(slot, s.tenancyOf(s.d.cfg.Now()))
			n.invalidated = n.invalidated.Plus(s.told())
			n.ended++
			close(quiet)
			close(s.left)
		}
		if err := n.domains.Destroy(slot, after); err != nil {
			s.log.Error("domain not destroyed", "err", err)
			after()
		}
		close(s.leaving)
	})
	if s.memport != nil {
		// A helper that does not answer in time never will: it ends with its socket.
		abandon := time.AfterFunc(helperEndTime, func() {
			s.memport.Abandon()
			n.bus.Post(func() {})
		})
		defer abandon.Stop()
	}
	select {
	case <-quiet:
		s.pages.End(reason)
		s.unregister()
		if err := s.conn.End(reason, text); err != nil {
			s.log.Debug("end not delivered", "err", err)
		}
		s.close()
	case <-s.d.stopped:
		// The machine has stopped while an access is in flight in the kernel: what that uses
		// stays mapped until pfd exits.
		s.pages.End(reason)
		s.pages, s.process, s.memport, s.view = nil, nil, nil, nil
		if err := s.conn.End(reason, text); err != nil {
			s.log.Debug("end not delivered", "err", err)
		}
	}
	s.unrung()
	s.d.remove(s)
}

// unregister closes the userfaultfds that are registered for the process's memory. The process
// may register its own once it has been told of the end.
func (s *session) unregister() {
	var errs []error
	if s.regions != nil {
		errs = append(errs, s.regions.Close())
	}
	if s.view != nil {
		s.d.turns.Do(s.uid, func() { errs = append(errs, s.view.Unwatch()) })
	}
	errs = append(errs, s.unwatchAll())
	if err := errors.Join(errs...); err != nil {
		s.log.Warn("closing userfaultfds of an attachment", "err", err)
	}
}

// close releases what handshake has acquired. It may be called again.
func (s *session) close() {
	var errs []error
	for _, f := range []*os.File{s.netlink, s.exit, s.keeper} {
		if f != nil {
			if err := f.Close(); !errors.Is(err, os.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if s.regions != nil {
		errs = append(errs, s.regions.Close())
	}
	if s.memport != nil {
		errs = append(errs, s.memport.Close())
	}
	if s.pages != nil {
		errs = append(errs, s.pages.Close())
	}
	if s.view != nil {
		s.d.turns.Do(s.uid, func() { errs = append(errs, s.view.Close()) })
	}
	if s.process != nil {
		errs = append(errs, s.process.Close())
	}
	if err := errors.Join(errs...); err != nil {
		s.log.Warn("closing an attachment", "err", err)
	}
}

// giveUp ends a session that is listed and has no domain. A process that joins its group at
// this moment has nothing to prove to it.
func (s *session) giveUp() {
	close(s.leaving)
	s.d.remove(s)
}

// waitExit waits until the process of a pidfd is dead (nil), or f is closed.
func waitExit(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("waiting for a process: %w", err)
	}
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	if err != nil {
		return fmt.Errorf("waiting for a process: %w", err)
	}
	return nil
}

// checkDevice refuses an attachment to a node whose device is gone.
func (s *session) checkDevice() error {
	if s.n.down.Load() {
		return refusal(attach.CodeBusy, "the device of node %d is gone and pfd waits for it: start it again, and try again", s.n.Number())
	}
	return nil
}
