package hostile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/keeper"
	"github.com/exanet/pfd/rdma"
)

// impostor attaches without the library, over a connection that another process may have made.
// It names arbitrary processes as its keeper and to its helper.
type impostor struct {
	sock int
	keep []any
}

func (i *impostor) obey(o order) (r reply, err error) {
	switch o.Op {
	case "dial":
		if i.sock, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Connect(i.sock, &unix.SockaddrUnix{Name: control.AttachSocket(o.Attach.Socket)})
		}
		r.Count = i.sock
	case "claim": // descriptor o.Advice of process o.Off
		var fd int
		if fd, err = unix.PidfdOpen(int(o.Off), 0); err == nil {
			i.sock, err = unix.PidfdGetfd(fd, o.Advice, 0)
		}
	case "hello":
		return i.hello(o)
	}
	return r, err
}

// hello attaches. It names process o.Off as keeper (0: its own keeper), and the helper is told
// to serve process o.Size (0: this one).
func (i *impostor) hello(o order) (r reply, err error) {
	method, err := pagein.ParseMethod(o.Attach.Method)
	if err != nil {
		return r, err
	}
	k, err := keeper.Start()
	if err != nil {
		return r, err
	}
	i.keep = append(i.keep, k)
	named, err := i.pidfd(int(o.Off), k.PIDFD())
	if err != nil {
		return r, err
	}
	h := attach.Hello{Product: attach.Product(), Node: device.NodeID(o.Attach.Node), Group: o.Attach.Group, Method: method, Key: o.Attach.key()}
	at, proof := k.Proof()
	h.ProofVA, h.Proof = device.VA(at), proof
	msg, err := h.Append(nil)
	if err != nil {
		return r, err
	}
	if err := unix.Sendmsg(i.sock, msg, nil, nil, 0); err != nil {
		return r, err
	}
	var answer attach.Welcome
	for {
		var b [attach.MaxMessage]byte
		var oob [64]byte
		n, oobn, _, _, err := unix.Recvmsg(i.sock, b[:], oob[:], 0)
		if err != nil {
			return r, err
		}
		var fds []int
		if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(msgs) == 1 {
			fds, _ = unix.ParseUnixRights(&msgs[0])
		}
		if _, err := attach.DecodeHelperRequest(b[:n]); err == nil {
			if err := i.helper(o, fds, named); err != nil {
				return r, err
			}
			continue
		}
		if head, err := attach.DecodeHeader(b[:n]); err == nil && head.Type == attach.TypeMemory {
			if err := i.mapped(fds, named); err != nil {
				return r, err
			}
			continue
		}
		if refused, err := attach.DecodeRefused(b[:n]); err == nil {
			r.Code, r.Text = uint8(refused.Code), refused.Text
			return r, nil
		}
		if answer, err = attach.DecodeWelcome(b[:n]); err != nil {
			return r, err
		}
		break
	}
	r.Done = true
	r.Remote = rdma.Remote{Node: answer.Node, PDID: answer.PDID, Generation: answer.Generation, VA: raceAt, Len: raceSize}.String()
	return r, nil
}

// mapped maps the memory that pfd sent and names a keeper, like the library.
func (i *impostor) mapped(fds []int, named int) error {
	if len(fds) != attach.MemoryFDs {
		return fmt.Errorf("%d descriptors for a memory", len(fds))
	}
	pages, err := attach.MapMemory(fds[0])
	if err != nil {
		return err
	}
	i.keep = append(i.keep, pages)
	return unix.Sendmsg(i.sock, bare(attach.TypeMapped), unix.UnixRights(named), nil, 0)
}

// bare returns a message that consists of a header (docs/attach.md, section 2).
func bare(typ attach.Type) []byte {
	b := make([]byte, 72)
	binary.LittleEndian.PutUint16(b, uint16(typ))
	binary.LittleEndian.PutUint16(b[2:], attach.Protocol)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	copy(b[8:], attach.Product())
	return b
}

// pidfd returns a pidfd of process pid, or own if pid is 0.
func (i *impostor) pidfd(pid, own int) (int, error) {
	if pid == 0 {
		return own, nil
	}
	return unix.PidfdOpen(pid, 0)
}

// helper starts pfd's program for another process, as the library does for its own.
func (i *impostor) helper(o order, fds []int, named int) error {
	if len(fds) != attach.HelperFDs {
		return fmt.Errorf("%d descriptors for a helper", len(fds))
	}
	pid := int(o.Size)
	if pid == 0 {
		pid = os.Getpid()
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	files := []*os.File{nil, nil, nil}
	for _, fd := range []int{fds[1], fds[2], fds[3], process, named} {
		files = append(files, os.NewFile(uintptr(fd), "helper"))
	}
	p, err := os.StartProcess("/proc/self/fd/"+strconv.Itoa(fds[0]), []string{"pfd", attach.HelperCommand},
		&os.ProcAttr{Dir: "/", Files: files})
	i.keep = append(i.keep, files, p)
	return err
}

// changeSelf changes the rights of others on this process.
func changeSelf(o order) error {
	switch o.Op {
	case "setuid": // the effective uid only, as a set-uid program does for a while
		if err := unix.Setresuid(-1, int(o.Size), -1); err != nil {
			return err
		}
		return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	case "undumpable":
		return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	case "leaderless":
		return endFirstThread()
	}
	return errors.ErrUnsupported
}

// endFirstThread ends the first thread of this process; the others continue.
func endFirstThread() error {
	for deadline := time.Now().Add(patience); ; {
		b, err := os.ReadFile("/proc/self/stat")
		if err != nil {
			return err
		}
		if strings.Contains(string(b), ") Z ") {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("the first thread does not end")
		}
		go func() {
			runtime.LockOSThread()
			if unix.Gettid() == os.Getpid() {
				_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
			}
			time.Sleep(time.Millisecond) // keeps this thread busy, so that the next goroutine gets another
			runtime.UnlockOSThread()
		}()
	}
}
