package owner

import (
	"math/bits"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// Process is an attached process, as seen by the owner. S is the owner's state for it. The
// exported fields are set before Attach and do not change afterwards.
type Process[S any] struct {
	Pages *attach.Pages // its doorbell, packetizer and wake flags
	Wake  int           // eventfd with which the process wakes a sleeping owner
	UID   uint32        // of the process
	// Helper, if not nil, is told when the owner sleeps, as the process is.
	Helper Helper
	Slot   S

	kick  uint32 // last value seen
	sends bool   // the doorbell was handled, messages were not checked since
	since int64  // when it last published, or became hot
	hot   bool
	here  bool  // it is attached: its pages are mapped
	muted int64 // until then its kicks are ignored, 0: they are not

	mail    mail
	has     uint32                  // bit i: it has thread i
	threads [attach.MaxThreads]mail // of its threads

	message attach.Message // of take: it would allocate one for each call of User.Send
}

// mail is the owner's part of a mailbox that it copies to a Port.
type mail struct {
	tail  uint32      // messages put into the ring
	held  attach.Mail // taken from the mailbox while the ring was full
	holds bool
}

// Own, in place of the index of a thread, stands for the process's own interface.
const Own = -1

// User does the work of a Loop. The owner calls its methods. thread is the index of a thread of the
// process, or Own.
type User[S any] interface {
	// Ring starts or continues a transfer: the process has rung the doorbell for channel.
	// device.ChannelsPerSlot stands for all channels that do not exist.
	Ring(p *Process[S], channel int)
	// Send sends a message of a packetizer channel and returns the channel's status.
	Send(p *Process[S], thread, channel int, m *attach.Message) (status uint64)
	// Room reports whether it could deliver held messages (Process.Deliver).
	Room(p *Process[S], thread int) bool
	// Answers reports whether a kick of the process may announce an answer rather than something
	// that it has published.
	Answers(p *Process[S]) bool
	// Busy reports whether the process has work in flight that only polling in every pass can
	// detect.
	Busy(p *Process[S]) bool
	// Mutes records that a process was muted.
	Mutes(p *Process[S])
	// Fired handles a watched descriptor that has fired.
	Fired(fd int)
}

// Helper is a process that answers the owner, and wakes it when it sleeps.
type Helper interface{ SetAsleep(asleep bool) }

// Muted reports whether the process's kicks are currently ignored.
func (p *Process[S]) Muted() bool { return p.muted != 0 }

// Seen reports whether the owner has seen the process's last kick.
func (p *Process[S]) Seen() bool { return p.Pages.Kicks() == p.kick }

// setAsleep tells the process and its helper whether they must wake the owner.
func (p *Process[S]) setAsleep(asleep bool) {
	p.Pages.SetAsleep(asleep)
	if p.Helper != nil {
		p.Helper.SetAsleep(asleep)
	}
}

// take handles what the process has published: its doorbell and, the next time, its messages. One
// kick announces both, and a transfer need not wait for a second kick. It reports whether there
// was anything.
func (p *Process[S]) take(u User[S]) (any bool) {
	p.sends = false
	if v := p.Pages.TakeDoorbell(); v != 0 {
		u.Ring(p, int(min(v-1, device.ChannelsPerSlot)))
		p.sends = true
		return true
	}
	if p.has != 0 {
		any = p.takeThreads(u)
	}
	if p.mail.holds {
		any = u.Room(p, Own) || any
	}
	told := false // a message to another process was taken, for whose STATUS its sender may wait
	for c := range device.PktzChannels {
		if p.Pages.TakeSend(c, &p.message) {
			any = true
			told = told || p.message.Mailbox >= device.MailboxProcess
			p.Pages.SetPktzStatus(c, u.Send(p, Own, c, &p.message))
		}
	}
	if told && p.Pages.Waiting() {
		p.Pages.Notify()
	}
	return any
}

// takeThreads handles what the threads have published that the process names in RUNG. It reports
// whether there was anything.
func (p *Process[S]) takeThreads(u User[S]) (any bool) {
	for rung := p.Pages.TakeRung() & p.has; rung != 0; rung &= rung - 1 {
		i := bits.TrailingZeros32(rung)
		port := p.Pages.Thread(i)
		if p.threads[i].holds {
			any = u.Room(p, i) || any
		}
		refused := false
		for c := range device.PktzChannels {
			if port.TakeSend(c, &p.message) {
				any = true
				status := u.Send(p, i, c, &p.message)
				refused = refused || status != device.PktzFree
				port.SetPktzStatus(c, status)
			}
		}
		if refused && port.Waiting() {
			port.Notify()
		}
	}
	return any
}

// AddThread makes the process have thread i, whose Port was reset.
func (p *Process[S]) AddThread(i int) {
	p.threads[i] = mail{}
	p.has |= 1 << i
}

// RemoveThread undoes that. The owner does not touch the thread's Port any more.
func (p *Process[S]) RemoveThread(i int) { p.has &^= 1 << i }

// Deliver moves messages into the ring of a thread, or Own, until it is full, and wakes its waiters.
// next takes a message from the mailbox; it returns false if there is none. Deliver reports whether
// it moved any. A message without room is held: User.Room is called when the process has kicked.
func (p *Process[S]) Deliver(thread int, next func(*attach.Mail) bool) (any bool) {
	port, m := &p.Pages.Port, &p.mail
	if thread != Own {
		port, m = p.Pages.Thread(thread), &p.threads[thread]
	}
	for range device.MailboxDepth + 1 { // the one that is held, and the mailbox
		if !m.holds && !next(&m.held) {
			break
		}
		if m.holds = !port.PutMail(m.tail, &m.held); m.holds {
			break
		}
		m.tail++
		any = true
	}
	if any || m.holds {
		port.Notify() // one whose ring is full may be asleep, too
	}
	return any
}
