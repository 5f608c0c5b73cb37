package session

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/proc"
)

// proveGroup refuses a process that may not be in its group. Processes of a group
// write to each other's memory, and a user's processes do not all have the same
// rights: so each two of them show that they know the group's key, or that either
// may reach the other's memory, which the kernel judges (ptrace(2)). The proof is
// in the memory itself: who has read it has the right.
func (s *session) proveGroup() error {
	for _, o := range s.d.others(s) {
		if err := s.proveWith(o); err != nil {
			return refusal(attach.CodePermission,
				"group %q of uid %d has process %d, and %v: use another group, or one key (Options.GroupKey) in all of its processes",
				s.group.name, s.uid, o.process.PID(), err)
		}
	}
	return nil
}

// others lists the sessions that are in a session's group.
func (d *Host) others(s *session) (list []*session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for o := range d.live {
		if o != s && o.uid == s.uid && o.group.name == s.group.name {
			list = append(list, o)
		}
	}
	return list
}

func (s *session) proveWith(o *session) error {
	var none [attach.KeySize]byte
	switch {
	case s.group.key != none || o.group.key != none:
		if subtle.ConstantTimeCompare(s.group.key[:], o.group.key[:]) != 1 {
			return errKey
		}
		return nil
	}
	err := s.proves(o)
	if err != nil {
		err = fmt.Errorf("%w: %w", errReach, err)
	} else if err = o.proves(s); err != nil {
		err = fmt.Errorf("%w: %w", errReached, err)
	}
	if err != nil && o.leaves() {
		return nil
	}
	return err
}

// leaveTime is how long a process that joins a group waits for one that leaves it
// (ours).
const leaveTime = time.Second

// dyingTime is how long a task that exits may have no memory any more and not have ended
// (ours).
const dyingTime = 100 * time.Millisecond

// leaves tells whether the session leaves its group. One whose process is gone goes
// on for a moment; then it begins nothing any more, and nobody needs a right over it.
func (s *session) leaves() bool {
	timeout, look := time.NewTimer(dyingTime), time.NewTicker(time.Millisecond)
	defer timeout.Stop()
	defer look.Stop()
	for dying := true; ; {
		if dying && !s.withKeeper(proc.Alive) {
			dying = false
			timeout.Reset(leaveTime)
		}
		select {
		case <-s.leaving:
			return true
		case <-timeout.C:
			return false
		case <-look.C:
		}
	}
}

// withKeeper calls f with the keeper's descriptor, which is held meanwhile: no
// number that has become another file is read, or handed to a helper. False: it is
// closed, or f says so.
func (s *session) withKeeper(f func(fd int) bool) bool {
	raw, err := s.keeper.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	return raw.Control(func(fd uintptr) { ok = f(int(fd)) }) == nil && ok
}

var (
	errKey     = errors.New("its key is another")
	errReach   = errors.New("this process may not reach that one's memory")
	errReached = errors.New("that process may not reach this one's memory")
	errProof   = errors.New("other bytes are there than it said")
)

// proves has the process read what another's proof says, with its own rights.
func (s *session) proves(o *session) error {
	var b []byte
	var p *proc.Process // for pfd's own rights, which are the reader's where it needs no helper
	err := fmt.Errorf("its keeper: %w", proc.ErrGone)
	o.withKeeper(func(fd int) bool {
		if s.memport != nil {
			b, err = s.memport.Read(fd, o.group.proofVA, attach.ProofSize)
		} else {
			p, err = proc.Open(fd, fd)
		}
		return true
	})
	if p != nil {
		b, err = o.proofBy(p)
	}
	switch {
	case err != nil:
		return err
	case subtle.ConstantTimeCompare(b, o.group.proof[:]) != 1:
		return errProof
	}
	return nil
}

// How long the memory of a proof may take to answer, and how many reads of one process's proof
// may go on after that (ours).
const (
	proofTime  = 2 * time.Second
	proofsLate = 2
)

var errUnanswered = errors.New("the memory of its proof does not answer: its userfaultfd or file system hangs")

// proofBy reads the process's proof by p, which it closes. Memory that does not answer holds
// nobody up: neither who joins nor the process's own end.
func (o *session) proofBy(p *proc.Process) ([]byte, error) {
	if o.lateProofs.Load() >= proofsLate {
		return nil, errors.Join(errUnanswered, p.Close())
	}
	type proof struct {
		b   []byte
		err error
	}
	read := make(chan proof, 1)
	go func() {
		b := make([]byte, attach.ProofSize)
		_, err := p.ReadV([][]byte{b}, o.group.proofVA)
		read <- proof{b, errors.Join(err, p.Close())}
	}()
	select {
	case r := <-read:
		return r.b, r.err
	case <-time.After(proofTime):
		o.lateProofs.Add(1)
		go func() {
			<-read
			o.lateProofs.Add(-1)
		}()
		return nil, errUnanswered
	}
}
