package link

// Numbers of looks at a session, one each Timing.Heartbeat (spec/hosts.md 1).
const (
	beatLooks   = 7  // from one heartbeat of an idle connection to the next
	silentLooks = 3  // without a byte and with an unanswered heartbeat: the link is not ready
	deadLooks   = 20 // without a byte: the link ends
)

// vigil watches the liveness of a session. It counts looks and not times, so that a process that was
// stopped does not end its own links.
type vigil struct {
	s     *session
	looks int
	seen  [classes]uint64 // octets at the last look
	quiet [classes]int    // looks since then
	sent  uint64          // frames at the last look
	moved uint64          // frames sent and received at the last regular heartbeat
	owed  int             // looks since the heartbeat that is unanswered, and since the last byte
	rest  int             // regular heartbeats since frames or messages went
	ends  int             // looks since the link is being closed
}

// look returns false if the session is dead.
func (v *vigil) look() bool {
	p := v.s.p
	if v.s.sealed.Load() { // no heartbeat is answered any more
		v.ends++
		return v.ends < deadLooks
	}
	for class, c := range v.s.conns {
		// Only a reader that waits for bytes can miss them.
		if n := c.octets.Load(); n != v.seen[class] || !c.reading.Load() {
			v.seen[class], v.quiet[class] = n, 0
		} else {
			v.quiet[class]++
		}
	}
	if max(v.quiet[classHigh], v.quiet[classBulk]) >= deadLooks {
		return false
	}
	if v.owed++; !v.s.unanswered.Load() || v.quiet[classHigh] == 0 {
		v.owed = 0
	}
	sent := p.sent()
	regular := v.looks%beatLooks == 0
	if regular {
		moved := sent + p.framesIn.Load() + p.told.Load()
		for _, c := range v.s.conns {
			c.idle.Store(moved == v.moved)
		}
		if v.rest++; moved != v.moved {
			v.rest = 0
		}
		v.moved = moved
		if v.spare(); v.s.spare && v.s.agreed.Load() && p.queues[classHigh].empty() && p.queues[classBulk].empty() {
			v.s.seal()
			return true
		}
	}
	if regular || sent != v.sent && !v.s.unanswered.Load() {
		v.s.beat(classHigh)
	}
	if regular {
		v.s.beat(classBulk)
		for _, q := range p.queues {
			q.trim()
		}
	}
	v.sent = sent
	v.looks++
	if silent := v.owed >= silentLooks; silent != p.ready.silent.Swap(silent) {
		p.report()
	}
	return true
}

// spare finds out if this side can do without the link: nothing uses it, and the side that does not dial has just
// knocked, so that both have an exanet-hostd. It tries that once in Timing.Idle.
func (v *vigil) spare() {
	p := v.s.p
	most := int(p.l.cfg.Timing.Idle/(beatLooks*p.l.cfg.Timing.Heartbeat)) + 1
	unused := p.udp == nil && v.rest >= most
	if !unused {
		p.knocked.Store(false)
	}
	if v.s.spare = unused && (p.dials || p.knocked.Load()); unused && !v.s.spare && v.rest%most == 0 {
		p.l.want(Want{Host: p.host.Name})
	}
}

// sent returns the number of frames that were queued.
func (p *peer) sent() uint64 {
	n := uint64(0)
	for _, q := range []*queue{p.queues[classHigh], p.queues[classBulk], p.udp} {
		if q != nil {
			q.mu.Lock()
			n += q.frames
			q.mu.Unlock()
		}
	}
	return n
}
