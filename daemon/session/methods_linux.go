package session

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/space/uffd"
)

// regionsPerUID limits the userfaultfds that pfd serves for one uid: each has a goroutine, which a
// process can block for good. Those that a memory helper serves do not count: pfd keeps nothing of
// them. Values below are defined by this project.
const (
	regionsPerUID = 64
	allRegions    = 1024
)

// registrar handles the session's userfaultfds.
type registrar struct{ s *session }

func (s *session) registrar() attach.Registrar {
	if s.method != pagein.UFFD {
		return nil
	}
	return registrar{s}
}

// Register implements attach.Registrar.
func (r registrar) Register(m attach.Range, fd int) error {
	d, uid := r.s.d, r.s.uid
	if r.s.memport != nil {
		return r.s.memport.Register(m.VA, m.Size, fd)
	}
	if err := r.s.regions.Fits(m.VA, m.VA+device.VA(m.Size)); err != nil {
		return err
	}
	if !d.regions.Take(uid) {
		return fmt.Errorf("uid %d has %d registered ranges: free some", uid, regionsPerUID)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		d.regions.Give(uid)
		return os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	region, err := uffd.Serve(own, m.VA, m.Size, func() { d.regions.Give(uid) })
	if err != nil {
		d.regions.Give(uid)
		return errors.Join(err, unix.Close(own))
	}
	return r.s.regions.Add(region)
}

// Unregister implements attach.Registrar.
func (r registrar) Unregister(m attach.Range) error {
	if r.s.memport != nil {
		return r.s.memport.Unregister(m.VA, m.Size)
	}
	return r.s.regions.Remove(m.VA, m.VA+device.VA(m.Size))
}
