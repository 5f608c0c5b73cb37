package owner

import (
	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// Process is an attached process as the owner looks at it. S is what the owner keeps for
// it. The exported fields are set before Attach and do not change afterwards.
type Process[S any] struct {
	Pages *attach.Pages // its doorbell, packetizer and wake flags
	Wake  int           // eventfd by which the process wakes a sleeping owner
	UID   uint32        // whose process it is
	// Helper, where it is given, is told when the owner sleeps, as the process is.
	Helper Helper
	Slot   S

	kick  uint32 // last seen
	sends bool   // the doorbell was taken, and messages were not looked at since
	since int64  // when it published last, or became hot
	hot   bool
	muted int64 // until then its kicks are left alone, 0: they are not

	tail  uint32      // messages put into its ring
	held  attach.Mail // taken out of its mailbox while the ring was full
	holds bool
}

// User is what a Loop does its work for. The owner calls its methods.
type User[S any] interface {
	// Ring starts a transfer, or more of one: the process has rung for a channel.
	// device.ChannelsPerSlot stands for all channels that do not exist.
	Ring(p *Process[S], channel int)
	// Send sends a message of a packetizer channel, and returns the channel's status.
	Send(p *Process[S], channel int, m *attach.Message) (status uint64)
	// Room reports whether it could deliver messages that were held (Process.Deliver).
	Room(p *Process[S]) bool
	// Answers reports whether a kick of the process may announce an answer, and not
	// something that it has published.
	Answers(p *Process[S]) bool
	// Busy reports whether something of the process is under way that only a look in
	// every pass can find.
	Busy(p *Process[S]) bool
	// Mutes counts that a process's kicks are left alone for a while.
	Mutes(p *Process[S])
	// Fired takes that a watched descriptor has fired.
	Fired(fd int)
}

// Helper is a process that answers the owner, and wakes it where the owner sleeps.
type Helper interface{ SetAsleep(asleep bool) }

// Muted reports whether the process's kicks are left alone at present.
func (p *Process[S]) Muted() bool { return p.muted != 0 }

// Seen reports whether the owner has seen the process's last kick.
func (p *Process[S]) Seen() bool { return p.Pages.Kick() == p.kick }

// setAsleep tells the process and its helper whether to wake the owner.
func (p *Process[S]) setAsleep(asleep bool) {
	p.Pages.SetAsleep(asleep)
	if p.Helper != nil {
		p.Helper.SetAsleep(asleep)
	}
}

// take takes what the process has published: its doorbell and, the next time, its
// messages. A doorbell is announced by both, and its transfer need not wait for the
// second announcement. It reports whether there was anything.
func (p *Process[S]) take(u User[S]) (any bool) {
	p.sends = false
	if v := p.Pages.TakeDoorbell(); v != 0 {
		u.Ring(p, int(min(v-1, device.ChannelsPerSlot)))
		p.sends = true
		return true
	}
	if p.holds {
		any = u.Room(p)
	}
	var m attach.Message
	for c := range device.PktzChannels {
		if p.Pages.TakeSend(c, &m) {
			any = true
			p.Pages.SetPktzStatus(c, u.Send(p, c, &m))
		}
	}
	return any
}

// Deliver moves messages into the process's ring until it is full, and wakes the process.
// next takes a message out of the process's mailbox; it returns false if there is none.
// Deliver reports whether it has moved any. A message for which there is no room is
// held: User.Room is called when the process has kicked.
func (p *Process[S]) Deliver(next func(*attach.Mail) bool) (any bool) {
	for range device.MailboxDepth + 1 { // the one that is held, and the mailbox
		if !p.holds && !next(&p.held) {
			break
		}
		if p.holds = !p.Pages.PutMail(p.tail, &p.held); p.holds {
			break
		}
		p.tail++
		any = true
	}
	if any || p.holds {
		p.Pages.Notify() // one whose ring is full may be asleep, too
	}
	return any
}
