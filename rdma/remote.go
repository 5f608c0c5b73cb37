package rdma

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/exanet/pfd/device"
)

// ErrRemote says that a text or a set of numbers is not a Remote.
var ErrRemote = errors.New("not the name of remote memory")

// Remote names memory of a process for its peers, which write to it. It is a name and not a right:
// the target's domain decides who may write. Send its text form: over a pipe, in a file, in JSON.
type Remote struct {
	Node device.NodeID
	PDID device.PDID
	// Generation is that of the process's domain: a transfer to a process that has ended fails and
	// never reaches the next one with its PDID.
	Generation device.Generation
	VA         device.VA
	Len        uint64 // bytes
	// Interface is that of the process, 16 to 31, for messages to it. 0: unknown, because the text
	// form is of a version without it.
	Interface uint8
}

// remotePrefix starts the text form, version 2, which this project defines. Five hexadecimal
// numbers follow, with colons between: node 6 digits, PDID 4, generation 8, VA 16, length 16; and
// if it is known the interface, 2 digits. Version 1 had no generation.
const remotePrefix = "exanet2"

var remoteDigits = [...]int{6, 4, 8, 16, 16, 2}

// String returns the text form.
func (r Remote) String() string {
	s := fmt.Sprintf("%s:%06x:%04x:%08x:%016x:%016x", remotePrefix, uint32(r.Node), uint16(r.PDID), uint32(r.Generation), uint64(r.VA), r.Len)
	if r.Interface != 0 {
		s += fmt.Sprintf(":%02x", r.Interface)
	}
	return s
}

// MarshalText implements encoding.TextMarshaler. Errors match ErrRemote.
func (r Remote) MarshalText() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return []byte(r.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler. Errors match ErrRemote.
func (r *Remote) UnmarshalText(b []byte) error {
	v, err := ParseRemote(string(b))
	if err == nil {
		*r = v
	}
	return err
}

// ParseRemote parses the text form. Errors match ErrRemote.
func ParseRemote(s string) (Remote, error) {
	f := strings.Split(s, ":")
	if n := len(f) - 1; n != len(remoteDigits) && n != len(remoteDigits)-1 || f[0] != remotePrefix {
		return Remote{}, fmt.Errorf("%w: %.80q is not of the form %s:NODE:PDID:GENERATION:VA:LENGTH[:INTERFACE]", ErrRemote, s, remotePrefix)
	}
	var n [len(remoteDigits)]uint64
	for i, digits := range remoteDigits[:len(f)-1] {
		v, err := strconv.ParseUint(f[i+1], 16, 64)
		if err != nil || len(f[i+1]) != digits || strings.ToLower(f[i+1]) != f[i+1] {
			return Remote{}, fmt.Errorf("%w: %.80q: %.20q is not %d lower-case hexadecimal digits", ErrRemote, s, f[i+1], digits)
		}
		n[i] = v
	}
	r := Remote{Node: device.NodeID(n[0]), PDID: device.PDID(n[1]), Generation: device.Generation(n[2]), VA: device.VA(n[3]), Len: n[4], Interface: uint8(n[5])}
	if len(f)-1 == len(remoteDigits) && r.Interface == 0 {
		return Remote{}, fmt.Errorf("%w: %.80q: interface 0: leave the field out if the interface is unknown", ErrRemote, s)
	}
	return r, r.check()
}

func (r Remote) check() error {
	switch {
	case r.Node > device.NodeIDMask:
		return fmt.Errorf("%w: node %#x has more than %d bits", ErrRemote, uint32(r.Node), device.NodeIDBits)
	case r.Interface != 0 && (r.Interface < device.MailboxProcess || r.Interface >= device.MailboxProcess+device.Slots):
		return fmt.Errorf("%w: interface %d is no process's: %d to %d are", ErrRemote, r.Interface, device.MailboxProcess, device.MailboxProcess+device.Slots-1)
	case r.Len == 0:
		return fmt.Errorf("%w: it is empty", ErrRemote)
	case uint64(r.VA)+r.Len-1 < uint64(r.VA):
		return fmt.Errorf("%w: address %v + %d bytes passes the end of the address space", ErrRemote, r.VA, r.Len)
	}
	return nil
}
