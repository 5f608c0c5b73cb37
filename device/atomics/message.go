package atomics

import "errors"

// Sizes of the messages, in u64 (docs/spec/gsas.md 3; defined by this project).
const (
	MaxArgs      = 5
	MaxValues    = 4
	MaxRequest   = 2 + MaxArgs
	MaxAnswer    = 1 + MaxValues
	headerWords  = 2 // of a request: the first word, the address
	answerHeader = 1
)

// InFlight is the number of operations of a unit that have begun and have not ended, at most (defined by
// this project).
const InFlight = 64

// The bits of the first word (docs/spec/gsas.md 3). The request's are 003 fig. 9's, and the tag is
// defined by this project. Of the answer, number, protection ID and tag are the request's.
//
//	request  thread         [23:0]   wired
//	request  protection ID  [47:24]  wired
//	request  tag            [55:48]  wired
//	request  op             [63:56]
//	answer   number         [15:0]
//	answer   protection ID  [47:24]
//	answer   tag            [55:48]
//	answer   status         [63:56]
const (
	protectionShift = 24
	tagShift        = 48
	opShift         = 56
)

// Tag distinguishes the requests of a thread: the packetizer channel [1:0], and the low six bits
// of the request's number [7:2] (docs/spec/gsas.md 3; defined by this project).
type Tag uint8

// The bits of a tag (docs/spec/gsas.md 3).
const (
	tagChannelMask = 3
	tagNumberShift = 2
)

// TagOf returns the tag of a request that channel sends with a number.
func TagOf(channel int, number uint16) Tag {
	return Tag(channel&tagChannelMask) | Tag(number<<tagNumberShift)
}

// Channel returns the packetizer channel.
func (t Tag) Channel() int { return int(t & tagChannelMask) }

// Wired returns bits [55:0] of a request's first word, which the packetizer stamps.
func Wired(t Thread, p Protection, tag Tag) uint64 {
	return uint64(t)&IDMask | uint64(p)&IDMask<<protectionShift | uint64(tag)<<tagShift
}

// WiredBits are the bits of a request's first word that the sender cannot write (003 §2.2.2).
const WiredBits = 1<<opShift - 1

// Reasons why a request is no operation. Decoders return them unwrapped.
var (
	ErrOp     = errors.New("operation does not exist")
	ErrLength = errors.New("message has the wrong length")
)

// Request asks the unit of a node for one operation.
type Request struct {
	Thread     Thread     // wired
	Protection Protection // wired: the tree of the thread
	Tag        Tag        // wired
	Op         Op
	Address    Address
	Args       [MaxArgs]uint64
}

// Encode writes the request's words and returns their number.
func (r *Request) Encode(words []uint64) int {
	words[0] = Wired(r.Thread, r.Protection, r.Tag) | uint64(r.Op)<<opShift
	words[1] = uint64(r.Address)
	return headerWords + copy(words[headerWords:], r.Args[:r.Op.Args()])
}

// DecodeRequest decodes a request. Its errors are ErrOp and ErrLength; the request then has the
// fields of the first word, if there is one.
func DecodeRequest(words []uint64) (r Request, err error) {
	if len(words) == 0 {
		return r, ErrLength
	}
	r = Request{
		Thread: Thread(words[0] & IDMask), Protection: Protection(words[0] >> protectionShift & IDMask),
		Tag: Tag(words[0] >> tagShift), Op: Op(words[0] >> opShift),
	}
	switch {
	case !r.Op.Valid():
		return r, ErrOp
	case len(words) != headerWords+r.Op.Args():
		return r, ErrLength
	}
	r.Address = Address(words[1])
	copy(r.Args[:], words[headerWords:])
	return r, nil
}

// Answer is the unit's answer to a request. The mailbox's SOURCE says which unit has answered.
type Answer struct {
	Number     uint16 // of the request, as written to SEND
	Protection Protection
	Tag        Tag
	Status     Status
	Values     [MaxValues]uint64
	N          int // values
}

// Encode writes the answer's words and returns their number.
func (a *Answer) Encode(words []uint64) int {
	words[0] = uint64(a.Number) | uint64(a.Protection)&IDMask<<protectionShift | uint64(a.Tag)<<tagShift | uint64(a.Status)<<opShift
	return answerHeader + copy(words[answerHeader:], a.Values[:a.N])
}

// DecodeAnswer decodes an answer. The caller must trust it only if the message's source has PDID
// 0. Its error is ErrLength.
func DecodeAnswer(words []uint64) (a Answer, err error) {
	if len(words) < answerHeader || len(words) > MaxAnswer {
		return a, ErrLength
	}
	a = Answer{
		Number: uint16(words[0]), Protection: Protection(words[0] >> protectionShift & IDMask),
		Tag: Tag(words[0] >> tagShift), Status: Status(words[0] >> opShift),
	}
	a.N = copy(a.Values[:], words[answerHeader:])
	return a, nil
}

// Newer reports whether number n comes after m, by less than half of all numbers.
func Newer(n, m uint16) bool { return n != m && n-m < 1<<15 }

// Call is an operation that the unit leaves to the node's driver. Its answer names ID.
type Call struct {
	ID uint32
	Request
}
