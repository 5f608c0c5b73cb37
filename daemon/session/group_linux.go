package session

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/space/proc"
)

// proveGroup refuses a process that may not be in its group. Processes of a group write to
// each other's memory, and a user's processes do not all have the same rights. So each two of
// them must show that they know the group's key, or that each may access the other's memory,
// which the kernel judges (ptrace(2)). The proof stands in the memory itself: a process that
// can read it has the right.
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

// others lists the other sessions of a session's group.
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
	if s.group.key != none || o.group.key != none {
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
	if err != nil && o.awaitLeaving() {
		return nil
	}
	return err
}

// Values below are defined by this project.
const (
	leaveTime = time.Second            // how long a process that joins waits for one that leaves
	dyingTime = 100 * time.Millisecond // how long a task that exits may have lost its memory without having ended
)

// awaitLeaving reports whether the session leaves its group, and waits a while for that. The session of a dead process goes on
// for a moment; then it starts no more accesses, and nobody needs a right over it.
func (s *session) awaitLeaving() bool {
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

// withKeeper calls f with the keeper's descriptor, which stays open meanwhile, so that its
// number cannot name another file. It returns f's result, or false if it is closed.
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

// proves has the process read another one's proof with its own rights.
func (s *session) proves(o *session) error {
	var b []byte
	var p *proc.Process // by pfd's own rights, which are those of a reader without a helper
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

// Values below are defined by this project.
const (
	proofTime  = 2 * time.Second // bounds the wait for the memory of a proof
	proofsLate = 2               // bounds the reads of one process's proof that go on after that
)

var errUnanswered = errors.New("the memory of its proof does not answer: its userfaultfd or file system hangs")

// proofBy reads the process's proof by p, which it closes. Memory that does not answer delays
// neither the process that joins for long nor the end of this one.
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
