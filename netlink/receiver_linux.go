package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// NewReceiver makes, in pfd, the socket of a process: a port id of its own,
// SO_PASSCRED, and connected to the sender's port id, so that the kernel itself
// refuses messages of others (ECONNREFUSED) and nobody else can fill it. pfd
// sends the descriptor by SCM_RIGHTS, then closes the file; the process gives
// what it got to FromFD.
func NewReceiver(sender uint32) (f *os.File, port uint32, err error) {
	fd, port, err := open()
	if err != nil {
		return nil, 0, fmt.Errorf("make netlink receiver: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("make netlink receiver: %w", os.NewSyscallError("setsockopt SO_PASSCRED", err))
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: sender}); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("make netlink receiver: %w", os.NewSyscallError("connect", err))
	}
	return os.NewFile(uintptr(fd), "netlink:fault"), port, nil
}

// Credentials say who the sender is, as a receiver was told at Attach.
type Credentials struct {
	Port uint32 // netlink port id; 0: the kernel
	// PID and UID as SCM_CREDENTIALS gives them: the process id of who sends, as it
	// has it itself (a netlink socket does not translate it to the receiver's
	// namespace, unlike SO_PEERCRED; WELCOME tells it), and its real user id in the
	// receiver's. SO_PEERCRED of the attachment socket gives the same user id where
	// pfd is not set-uid. Not looked at for the kernel.
	PID int32
	UID uint32
}

// ReceiverCounters counts what came.
type ReceiverCounters struct {
	Received  uint64 // faults given to the caller
	Forged    uint64 // another port id or other credentials: dropped
	Malformed uint64 // from the sender, but no fault message: dropped
	Overruns  uint64 // the kernel dropped messages for want of room (ENOBUFS)
}

// Receiver takes fault messages from one sender. Receive is for one goroutine
// at a time; Close and Counters are for any.
type Receiver struct {
	f    *os.File
	raw  syscall.RawConn
	from Credentials
	buf  [receiveBuffer]byte
	oob  [oobSize]byte

	// What the last recvmsg gave; read is made once, so that waiting does not
	// allocate a closure a call.
	read     func(fd uintptr) bool
	n, oobn  int
	flags    int
	peer     unix.Sockaddr
	readErr  error
	closed   atomic.Bool
	last     uint32
	received atomic.Uint64
	forged   atomic.Uint64
	bad      atomic.Uint64
	overruns atomic.Uint64
}

// struct ucred (linux/socket.h) in the control message that SO_PASSCRED adds:
// pid, uid, gid, 32 bits each in the machine's byte order.
const (
	oobSize   = 64 // one struct ucred with its cmsghdr, and room to see a second
	ucredPID  = 0
	ucredUID  = 4
	ucredSize = 12
)

// FromFD makes a receiver of a descriptor that pfd passed, and owns it from
// then on, also when it fails. It accepts messages of from only.
func FromFD(fd int, from Credentials) (*Receiver, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink receiver: %w", os.NewSyscallError("fcntl", err))
	}
	unix.CloseOnExec(fd)
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || family != unix.AF_NETLINK {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink receiver: descriptor %d is no netlink socket", fd)
	}
	// pfd has set it; a receiver does not rest on that.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink receiver: %w", os.NewSyscallError("setsockopt SO_PASSCRED", err))
	}
	r := &Receiver{f: os.NewFile(uintptr(fd), "netlink:fault"), from: from}
	if r.raw, err = r.f.SyscallConn(); err != nil {
		r.f.Close()
		return nil, fmt.Errorf("netlink receiver: %w", err)
	}
	r.read = r.recvmsg
	return r, nil
}

// Counters gives the counters.
func (r *Receiver) Counters() ReceiverCounters {
	return ReceiverCounters{
		Received: r.received.Load(), Forged: r.forged.Load(),
		Malformed: r.bad.Load(), Overruns: r.overruns.Load(),
	}
}

// Close closes the socket and ends a Receive with ErrClosed. A second Close
// does nothing.
func (r *Receiver) Close() error {
	r.closed.Store(true)
	if err := r.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("netlink receiver: %w", err)
	}
	return nil
}

// Receive waits for the next fault from the sender and drops, and counts, all
// else. ErrClosed after Close, which ends it.
func (r *Receiver) Receive() (Fault, error) {
	for {
		if err := r.raw.Read(r.read); err != nil {
			if r.closed.Load() { // this error is none that errors.Is would know
				return Fault{}, ErrClosed
			}
			return Fault{}, fmt.Errorf("netlink receiver: %w", err)
		}
		if f, ok, err := r.judge(); ok || err != nil {
			return f, err
		}
	}
}

// Last gives the number (nlmsg_seq) of the fault that Receive returned last.
// It is for the goroutine that calls Receive.
func (r *Receiver) Last() uint32 { return r.last }

// judge looks at what recvmsg took; false: it was counted and dropped.
func (r *Receiver) judge() (Fault, bool, error) {
	switch {
	case errors.Is(r.readErr, unix.ENOBUFS):
		r.overruns.Add(1)
		return Fault{}, false, nil
	case r.readErr != nil:
		return Fault{}, false, fmt.Errorf("netlink receiver: %w", os.NewSyscallError("recvmsg", r.readErr))
	case !r.genuine():
		r.forged.Add(1)
		return Fault{}, false, nil
	case r.flags&unix.MSG_TRUNC != 0:
		r.bad.Add(1)
		return Fault{}, false, nil
	}
	f, err := ParseMessage(r.buf[:r.n])
	if err != nil {
		r.bad.Add(1)
		return Fault{}, false, nil
	}
	r.last = number(r.buf[:r.n])
	r.received.Add(1)
	return f, true, nil
}

// recvmsg takes one datagram; false: there is none yet.
func (r *Receiver) recvmsg(fd uintptr) bool {
	for {
		r.n, r.oobn, r.flags, r.peer, r.readErr = unix.Recvmsg(int(fd), r.buf[:], r.oob[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(r.readErr, unix.EINTR) {
			return !errors.Is(r.readErr, unix.EAGAIN)
		}
	}
}

// genuine tells whether the datagram came from the sender that we were told:
// the port id that the kernel states, and the credentials beside the message.
func (r *Receiver) genuine() bool {
	nl, ok := r.peer.(*unix.SockaddrNetlink)
	if !ok || nl.Pid != r.from.Port || nl.Groups != 0 {
		return false
	}
	if r.from.Port == 0 {
		return true // only the kernel sends from port id 0
	}
	if r.flags&unix.MSG_CTRUNC != 0 {
		return false
	}
	h, cred, _, err := unix.ParseOneSocketControlMessage(r.oob[:r.oobn])
	if err != nil || h.Level != unix.SOL_SOCKET || h.Type != unix.SCM_CREDENTIALS || len(cred) != ucredSize {
		return false
	}
	return int32(binary.NativeEndian.Uint32(cred[ucredPID:])) == r.from.PID &&
		binary.NativeEndian.Uint32(cred[ucredUID:]) == r.from.UID
}
