package atomics

import (
	"fmt"

	"github.com/exanet/pfd/device"
)

// Op is an operation, word 0 [63:56] of a request (003 fig. 9; the numbers are defined by this
// project).
type Op uint8

// The operations (docs/spec/gsas.md 3): those of 003 §1, §2.3 and §2.4, and others that are
// defined by this project. The names say how many bits they access, 64 if none.
const (
	Read64  Op = 0x01
	Read128 Op = 0x02
	Read256 Op = 0x03

	Write64  Op = 0x09
	Write128 Op = 0x0a
	Write256 Op = 0x0b

	FetchAdd Op = 0x10
	Swap     Op = 0x11
	CAS      Op = 0x12 // expected, new
	FetchAnd Op = 0x13
	FetchOr  Op = 0x14
	FetchXor Op = 0x15

	CAS128    Op = 0x1a // two words expected, two new
	CWrite256 Op = 0x1b // writes four words if the first word there is the expected one

	Alloc Op = 0x20 // pages, hint
	Free  Op = 0x21

	Spawn Op = 0x30
	Join  Op = 0x31
	Alive Op = 0x32 // a thread
)

// form describes the words of an operation.
type form struct {
	name         string
	bytes        uint8 // that it accesses, and their alignment; 0: it accesses no memory
	args, values uint8 // words of the request after the address, of the answer after the first
	reads        bool
	writes       bool
}

// forms is indexed by Op. It is never modified.
var forms = [...]form{
	Read64: {"read64", 8, 0, 1, true, false}, Read128: {"read128", 16, 0, 2, true, false}, Read256: {"read256", 32, 0, 4, true, false},
	Write64: {"write64", 8, 1, 0, false, true}, Write128: {"write128", 16, 2, 0, false, true}, Write256: {"write256", 32, 4, 0, false, true},
	FetchAdd: {"fetch_add", 8, 1, 1, true, true}, Swap: {"swap", 8, 1, 1, true, true}, CAS: {"cas", 8, 2, 1, true, true},
	FetchAnd: {"fetch_and", 8, 1, 1, true, true}, FetchOr: {"fetch_or", 8, 1, 1, true, true}, FetchXor: {"fetch_xor", 8, 1, 1, true, true},
	CAS128: {"cas128", 16, 4, 2, true, true}, CWrite256: {"cwrite256", 32, 5, 4, true, true},
	Alloc: {name: "alloc", args: 2, values: 1}, Free: {name: "free", args: 1},
	Spawn: {name: "spawn", args: 1, values: 1}, Join: {name: "join", args: 1, values: 1}, Alive: {name: "alive", args: 1, values: 1},
}

func (o Op) form() form {
	if int(o) < len(forms) {
		return forms[o]
	}
	return form{}
}

// Valid reports whether the operation exists.
func (o Op) Valid() bool { return o.form().name != "" }

// Memory reports whether the unit itself performs the operation, on memory. The others are for the
// node's driver.
func (o Op) Memory() bool { return o.form().bytes != 0 }

// Bytes returns how many bytes the operation accesses: 8, 16 or 32, aligned to their number; 0 if
// it accesses no memory.
func (o Op) Bytes() int { return int(o.form().bytes) }

// Args returns how many words of arguments follow the address.
func (o Op) Args() int { return int(o.form().args) }

// Values returns how many words of values a successful answer has.
func (o Op) Values() int { return int(o.form().values) }

// Reads reports whether the operation returns what memory holds.
func (o Op) Reads() bool { return o.form().reads }

// Writes reports whether the operation may change memory.
func (o Op) Writes() bool { return o.form().writes }

// String returns the operation's name in lower case.
func (o Op) String() string {
	if o.Valid() {
		return o.form().name
	}
	return fmt.Sprintf("op 0x%02x", uint8(o))
}

// Status is the result of an operation, word 0 [63:56] of an answer (docs/spec/gsas.md 3; the
// numbers are those of 001 table 3.2, 8 and 10 those of a channel's status, messages.md 1).
type Status uint8

// The statuses. All but OK and Waiting mean that nothing was changed.
const (
	OK         Status = 0
	NoMemory   Status = Status(device.CodeSlaveError) // the page could not be brought in
	BadAddress Status = Status(device.CodeDecode)     // no such page, or not aligned
	NoRoom     Status = Status(device.CodeNoContext)
	Denied     Status = Status(device.CodeDomain) // a page of another tree
	BadRequest Status = Status(device.CodeReserved)
	Busy       Status = Status(device.CodeBufferFull) // too many operations in flight
	Waiting    Status = 8                             // for its page; the only status that is not final
	Gone       Status = 10                            // the node or its memory is gone
)

var statusNames = [...]string{
	OK: "done", NoMemory: "the page cannot be brought in", BadAddress: "no such page, or a bad alignment",
	NoRoom: "no room", Denied: "the page belongs to another tree", BadRequest: "bad operation or length",
	Busy: "too many operations in flight", Waiting: "waiting for its page", Gone: "the node is gone",
}

// String returns the status in words.
func (s Status) String() string {
	if int(s) < len(statusNames) && statusNames[s] != "" {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Apply performs an operation on the words at its address, of which there are Bytes/8, and returns
// its values. It is not atomic by itself.
func (o Op) Apply(m *[MaxValues]uint64, args *[MaxArgs]uint64) (values [MaxValues]uint64) {
	if o.Reads() {
		copy(values[:o.Values()], m[:])
	}
	switch o {
	case Write64, Swap:
		m[0] = args[0]
	case Write128:
		copy(m[:2], args[:])
	case Write256:
		copy(m[:4], args[:])
	case FetchAdd:
		m[0] += args[0]
	case FetchAnd:
		m[0] &= args[0]
	case FetchOr:
		m[0] |= args[0]
	case FetchXor:
		m[0] ^= args[0]
	case CAS:
		if m[0] == args[0] {
			m[0] = args[1]
		}
	case CAS128:
		if m[0] == args[0] && m[1] == args[1] {
			m[0], m[1] = args[2], args[3]
		}
	case CWrite256:
		if m[0] == args[0] {
			copy(m[:4], args[1:])
		}
	}
	return values
}
