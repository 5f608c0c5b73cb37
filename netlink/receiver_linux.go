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

// NewReceiver creates, in pfd, the socket of a process. It has its own port id and SO_PASSCRED, and
// is connected to the sender's port id, so that the kernel refuses the messages of other sockets
// (ECONNREFUSED) and they cannot fill it. pfd sends the descriptor by SCM_RIGHTS, then closes the
// file; the process passes the received descriptor to FromFD.
func NewReceiver(sender uint32) (f *os.File, port uint32, err error) {
	fd, port, err := open()
	if err != nil {
		return nil, 0, fmt.Errorf("create netlink receiver: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("create netlink receiver: %w", os.NewSyscallError("setsockopt SO_PASSCRED", err))
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: sender}); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("create netlink receiver: %w", os.NewSyscallError("connect", err))
	}
	return os.NewFile(uintptr(fd), "netlink:fault"), port, nil
}

// Credentials identify the sender, as the receiver learned them at Attach.
type Credentials struct {
	Port uint32 // netlink port id; 0: the kernel
	// PID and UID as in SCM_CREDENTIALS. PID is the sender's process id in the sender's own
	// namespace: unlike SO_PEERCRED, a netlink socket does not translate it to the receiver's, so
	// WELCOME has it. UID is the sender's real user id in the receiver's namespace, equal to that
	// of SO_PEERCRED on the attachment socket unless pfd is set-uid. Both are ignored for the
	// kernel.
	PID int32
	UID uint32
}

// ReceiverCounters counts the messages received.
type ReceiverCounters struct {
	Received  uint64 // faults returned to the caller
	Forged    uint64 // from another port id or with other credentials: dropped
	Malformed uint64 // from the sender, but not a fault message: dropped
	Overruns  uint64 // the kernel dropped messages for lack of room (ENOBUFS)
}

// Receiver receives fault messages from one sender. Only one goroutine at a time may call Receive;
// Close and Counters are safe for concurrent use.
type Receiver struct {
	f    *os.File
	raw  syscall.RawConn
	from Credentials
	buf  [receiveBuffer]byte
	oob  [oobSize]byte

	// Results of the last recvmsg. read is created once, so that waiting does not allocate a
	// closure for each call.
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
	oobSize   = 64 // one struct ucred with its cmsghdr, and room to detect a second
	ucredPID  = 0
	ucredUID  = 4
	ucredSize = 12
)

// FromFD creates a receiver from a descriptor that pfd sent, and owns the descriptor from then on,
// even if FromFD fails. The receiver accepts only messages of from.
func FromFD(fd int, from Credentials) (*Receiver, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink receiver: %w", os.NewSyscallError("fcntl", err))
	}
	unix.CloseOnExec(fd)
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || family != unix.AF_NETLINK {
		unix.Close(fd)
		return nil, fmt.Errorf("netlink receiver: descriptor %d is not a netlink socket", fd)
	}
	// pfd has set it, but the receiver must not depend on that.
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

// Counters returns the counters.
func (r *Receiver) Counters() ReceiverCounters {
	return ReceiverCounters{
		Received: r.received.Load(), Forged: r.forged.Load(),
		Malformed: r.bad.Load(), Overruns: r.overruns.Load(),
	}
}

// Close closes the socket; a Receive in progress returns ErrClosed. A second Close does nothing.
func (r *Receiver) Close() error {
	r.closed.Store(true)
	if err := r.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("netlink receiver: %w", err)
	}
	return nil
}

// Receive waits for the next fault from the sender. It drops and counts all other messages. After
// Close it returns ErrClosed.
func (r *Receiver) Receive() (Fault, error) {
	for {
		if err := r.raw.Read(r.read); err != nil {
			if r.closed.Load() { // err itself cannot be matched
				return Fault{}, ErrClosed
			}
			return Fault{}, fmt.Errorf("netlink receiver: %w", err)
		}
		if f, ok, err := r.judge(); ok || err != nil {
			return f, err
		}
	}
}

// Last returns the number (nlmsg_seq) of the fault that Receive returned last. Only the goroutine
// that calls Receive may call it.
func (r *Receiver) Last() uint32 { return r.last }

// judge checks the datagram that recvmsg received; it returns false if it was counted and dropped.
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

// recvmsg receives one datagram; it returns false if there is none yet.
func (r *Receiver) recvmsg(fd uintptr) bool {
	for {
		r.n, r.oobn, r.flags, r.peer, r.readErr = unix.Recvmsg(int(fd), r.buf[:], r.oob[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(r.readErr, unix.EINTR) {
			return !errors.Is(r.readErr, unix.EAGAIN)
		}
	}
}

// genuine reports whether the datagram came from the expected sender, by the port id that the
// kernel reports and the credentials with the message.
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
