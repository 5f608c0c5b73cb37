/* One end of a connection, a machine without I/O of its own (docs/streams.md; package stream: sender, receiver,
 * end). Its caller gives it the time, polls it after each event and at its deadline, and holds the lock. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "stream.h"

static const char bad_span[] = "the peer wrote a span that cannot be", bad_credit[] = "the peer wrote a credit that cannot be";

static inline uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline int64_t first(int64_t a, int64_t b) { return a < b ? a : b; }

/* base returns the first byte of the copy that may not be overwritten yet. */
static uint64_t base(const struct sender *s)
{
	if (s->oldest == s->next)
		return s->sent;
	const struct span *o = &s->spans[s->oldest % SPANS];
	if (o->flying || s->credit.bytes < o->offset)
		return o->offset;
	return least(s->credit.bytes, o->offset + o->length);
}

/* sender_room returns how many of want bytes the next span may have; 0: it has to wait. The last slot is left to
 * the end of the stream. */
uint64_t sender_room(const struct sender *s, uint64_t want)
{
	if (!s->window || s->stopped || s->fin || s->next - s->oldest >= SPANS - 1 || !want)
		return 0;
	const uint64_t free = s->window - least(s->sent - base(s), s->window);
	const uint64_t n = least(least(want, s->window / 4), least(free, s->window - s->sent % s->window));
	if (n == free && n < want && n < s->window / 8)
		return 0;	/* many small spans would use up the slots */
	return n;
}

static uint64_t append(struct sender *s, int64_t now, uint64_t n, uint8_t flags)
{
	const uint64_t number = s->next++;
	s->spans[number % SPANS] = (struct span){ .offset = s->sent, .length = n, .flags = flags, .due = now };
	s->sent += n;
	return number;
}

/* wait_until sets when a span is written. */
static void wait_until(struct sender *s, uint64_t n, int64_t due)
{
	s->spans[n % SPANS].due = due;
	s->due = first(s->due, due);
}

/* credited takes a credit of the receiver; false: it cannot be. */
static bool credited(struct sender *s, struct credit c)
{
	if (c.bytes < s->credit.bytes || c.bytes > s->sent || c.spans < s->credit.spans || c.spans > s->next || (s->credit.reset && !c.reset))
		return false;
	s->credit = c;
	s->stopped |= c.reset;
	return true;
}

static bool flies(const struct sender *s)
{
	for (uint64_t n = s->oldest; n != s->next; n++)
		if (s->spans[n % SPANS].flying)
			return true;
	return false;
}

/* forget_spans forgets the spans that the receiver has consumed and no write of which is in flight. */
static void forget_spans(struct sender *s)
{
	while (s->oldest != s->next && !s->spans[s->oldest % SPANS].flying && (s->oldest < s->credit.spans || s->stopped))
		s->oldest++;
}

static uint64_t unconsumed(const struct sender *s) { return s->oldest > s->credit.spans ? s->oldest : s->credit.spans; }

uint64_t receiver_available(const struct receiver *r, const unsigned char **at)
{
	const uint64_t place = r->read % r->size;
	*at = r->ring + place;
	return least(r->taken - r->read, r->size - place);
}

static void consume(struct receiver *r, uint64_t n)
{
	r->read += n;
	while (r->done < r->next && r->ends[r->done % SPANS] <= r->read)
		r->done++;
}

/* accept_span checks a span and counts it. */
static bool accept_span(struct receiver *r, uint64_t offset, uint64_t length, uint8_t flags)
{
	const bool fin = flags & FIN;
	if (r->fin || flags & ~FIN || fin != !length || offset != r->taken || length > r->size - r->taken % r->size ||
	    length > r->size - (r->taken - r->read) || r->next - r->done >= SPANS)
		return false;
	r->taken += length;
	r->ends[r->next++ % SPANS] = r->taken;
	r->fin = fin;
	consume(r, 0);
	return true;
}

/* take takes the next span out of its slot, or from a message that came early: 1, 0: there is none, -1: it cannot
 * be. */
static int take(struct receiver *r, struct words w)
{
	const struct slot s = decode_slot(w);
	const unsigned i = r->next % SPANS;
	const uint32_t want = (r->next + 1) & SPAN_NUMBER, ahead = (s.number - want) & SPAN_NUMBER;
	struct short_span *m = r->early ? &r->early[i] : NULL;
	if (s.number == want) {
		if (!accept_span(r, s.offset, s.length, s.flags))
			return -1;
	} else if (m && m->length) {
		unsigned char *to = r->ring + r->taken % r->size;
		if (!accept_span(r, r->taken, m->length, 0))
			return -1;
		memcpy(to, m->data, m->length);
	} else {	/* never written, or by an earlier span */
		return !s.number || (ahead % SPANS == 0 && ahead > SPAN_NUMBER / 2) ? 0 : -1;
	}
	if (m)
		m->length = 0;
	return 1;
}

/* end_message keeps a span that came by message until take takes it. A number that has passed is doubled on the
 * way, or was written into its slot, too. It returns false for a span that cannot be. */
bool end_message(struct end *e, const struct short_span *m)
{
	struct receiver *r = &e->r;
	const int32_t ahead = m->number - (uint32_t)r->next;
	if (ahead < 0 || r->stop)
		return true;
	if (ahead >= SPANS)
		return false;
	if (!r->early && !(r->early = calloc(SPANS, sizeof *r->early)))
		return true;	/* it comes once more, into its slot */
	r->early[m->number % SPANS] = *m;
	return true;
}

static bool credit_due(struct receiver *r, int64_t now, struct credit *c)
{
	*c = (struct credit){ r->read, r->done, r->stop };
	if (r->flying || same_credit(*c, r->told)) {	/* the end of the one in flight is an event */
		r->due = NEVER;
		return false;
	}
	if (c->reset != r->told.reset || c->bytes - r->told.bytes >= r->size / 4 || c->spans - r->told.spans >= SPANS / 4 ||
	    (r->fin && r->done == r->next) || now >= r->due)
		return true;
	if (r->due == NEVER)
		r->due = now + CREDIT_WITHIN;
	return false;
}

void end_opened(struct end *e, uint32_t id, const struct area *remote)
{
	e->peer_id = id;
	e->remote = *remote;
	e->life->silent = 0;
	e->s.window = least(remote->size, e->copy_size);
	e->asked = e->ask_due = 0;
	e->changed = true;
}

void end_dial(struct end *e, int64_t now) { e->asked = e->ask_due = now; }

struct connection_message end_connection(const struct end *e, uint8_t op, uint8_t flags)
{
	struct connection_message m = { .op = op, .from = e->id, .to = end_dials(e) && op == OP_CONNECT ? e->port : e->peer_id, .flags = flags };
	if (op == OP_SHUTDOWN) {
		m.flags |= (e->error ? FLAG_RESET : 0) | (e->doubtful ? FLAG_DOUBTFUL : 0);
	} else {
		m.ring = e->own.ring;
		m.size = e->own.size;
		m.words = e->own.words;
	}
	return m;
}

/* post posts a message that is repeated until it is answered, and returns whether it was sent. */
static bool post(struct end *e, int64_t now, uint8_t op)
{
	const struct connection_message m = end_connection(e, op, 0);
	const bool sent = out_post(e->host, &e->peer, e->id, &m);
	e->ask_due = now + (sent ? ASK_AGAIN : BUSY_AGAIN);
	return sent;
}

/* A dial counts what it sends, and not the time: while pfd or this process is stopped, its silence says nothing of
 * the peer. */
static void ask(struct end *e, int64_t now)
{
	if (e->error || now < e->ask_due)
		return;
	if (e->asks >= ASK_FOR / ASK_AGAIN)
		end_fail(e, ETIMEDOUT, "no answer within 5 s");
	else if (post(e, now, OP_CONNECT))
		e->asks++;
}

/* end_ask_refused takes the refusal of a connect. A full mailbox is refused, too, so it counts when every message
 * is refused for some time. */
void end_ask_refused(struct end *e)
{
	e->refusals++;
	if (end_dials(e) && !e->error && e->refusals == e->asks && e->asks > REFUSED_FOR / ASK_AGAIN)
		end_refused(e, "no process that admits this one has the interface");
}

void end_refused(struct end *e, const char *why)
{
	e->acked = e->peer_shut = true;
	end_fail(e, ECONNREFUSED, why);
}

static void load(struct end *);

void end_fail(struct end *e, int error, const char *why)
{
	if (e->error)
		return;
	e->error = error;
	e->why = why;
	if (!end_dials(e))
		load(e);	/* spans that have arrived can be read after the reset */
	e->s.stopped = e->r.stop = e->changed = true;
	e->asked = e->ask_due = 0;
	out_abort(e);
}

void end_gone(struct end *e, const char *why)
{
	e->acked = e->lost = e->deaf = true;
	end_fail(e, ECONNRESET, why);
}

/* settle takes the ends of this end's writes. */
static void settle(struct end *e)
{
	enum landed worst = FLYING;
	for (uint64_t n = e->s.oldest; n != e->s.next; n++) {
		struct span *p = &e->s.spans[n % SPANS];
		if (!p->flying)
			continue;
		const enum landed l = out_landed(e, n);
		p->flying = l == FLYING;
		if (l > worst)
			worst = l;
	}
	forget_spans(&e->s);
	if (e->r.flying) {
		const enum landed l = out_credited(e);
		e->r.flying = l == FLYING;
		e->deaf |= l >= FAILED;
		if (l > worst)
			worst = l;
	}
	e->changed |= worst != FLYING;
	if (worst < FAILED)
		return;
	e->doubtful = true;
	e->vanished |= worst == VANISHED;
	if (!e->peer_shut)	/* else it has consumed all that it will */
		end_fail(e, ECONNRESET, worst == VANISHED ? "the peer's process has ended" : "a write to the peer has failed");
}

/* load takes what the peer has written. */
static void load(struct end *e)
{
	uint64_t beat;
	const struct credit c = decode_credit(out_credits(e, &beat));
	if (beat != e->beats) {
		e->beats = beat;
		e->life->silent = 0;
	}
	if (!e->error && !same_credit(c, e->s.credit)) {
		e->life->silent = 0;
		e->changed = true;
		if (!credited(&e->s, c)) {
			end_fail(e, ECONNRESET, bad_credit);
			return;
		}
		forget_spans(&e->s);
	}
	while (!e->r.stop) {
		const int taken = take(&e->r, out_slot(e, e->r.next % SPANS));
		if (taken < 0)
			end_fail(e, ECONNRESET, bad_span);
		if (taken <= 0)
			return;
		e->life->silent = 0;
		e->changed = true;
	}
}

/* write_span writes span n into its slot, or later if no channel is free: then it returns false. */
static bool write_span(struct end *e, int64_t now, uint64_t n)
{
	struct span *p = &e->s.spans[n % SPANS];
	p->flying = out_write(e, n, p->offset, p->length, encode_slot((struct slot){ p->offset, p->length, n + 1, p->flags }));
	if (p->flying)
		p->due = NEVER;
	else
		wait_until(&e->s, n, now + BUSY_AGAIN);
	return p->flying;
}

/* write_overdue writes each span that has to be written into its slot now. */
static void write_overdue(struct end *e, int64_t now)
{
	struct sender *s = &e->s;
	if (now < s->due)
		return;
	bool is_free = true;
	s->due = NEVER;
	for (uint64_t n = unconsumed(s); n < s->next && !s->stopped; n++) {
		struct span *p = &s->spans[n % SPANS];
		if (s->credit.bytes > p->offset)	/* it was taken, and its bytes may be overwritten */
			p->due = NEVER;
		else if (p->due <= now && is_free)
			is_free = write_span(e, now, n);
		else
			s->due = first(s->due, p->due <= now ? now + BUSY_AGAIN : p->due);
	}
}

void end_send(struct end *e, int64_t now, uint64_t n)
{
	const uint64_t k = append(&e->s, now, n, 0);
	if (n <= SHORT && k % REFRESH < REFRESH - SPANS) {
		struct short_span m = { .to = e->peer_id, .number = k, .length = n };
		uint64_t words[EXANET_WORDS];
		memcpy(m.data, e->copy + e->s.spans[k % SPANS].offset % e->copy_size, n);
		if (out_short(e, k, words, encode_short(&m, words))) {
			wait_until(&e->s, k, now + ASK_AGAIN);
			return;
		}
	}
	write_span(e, now, k);
}

/* end_short_refused has a span written into its slot whose message was refused. */
void end_short_refused(struct end *e, int64_t now, uint64_t n)
{
	if (n - e->s.oldest < e->s.next - e->s.oldest && n >= e->s.credit.spans && e->s.spans[n % SPANS].due != NEVER)
		wait_until(&e->s, n, now);
}

void end_of_stream(struct end *e, int64_t now)
{
	if (e->s.fin || e->s.stopped || end_dials(e))
		return;
	e->s.fin = true;
	write_span(e, now, append(&e->s, now, 0, FIN));
}

/* silent reports whether this end writes nothing to its peer any more, or not yet. After its shutdown the peer
 * may use its memory for another connection. */
static bool silent(const struct end *e) { return end_dials(e) || e->peer_shut || e->deaf || e->asked; }

static void write_credit(struct end *e, int64_t now, struct credit c)
{
	e->r.flying = out_credit(e, encode_credit(c));
	e->r.due = e->r.flying ? NEVER : now + BUSY_AGAIN;
	if (e->r.flying)
		e->r.told = c;
}

/* tell writes a credit if one is due. */
static void tell(struct end *e, int64_t now)
{
	struct credit c;
	if (silent(e))
		e->r.due = NEVER;
	else if (credit_due(&e->r, now, &c))
		write_credit(e, now, c);
}

void end_consume(struct end *e, int64_t now, uint64_t n)
{
	consume(&e->r, n);
	tell(e, now);
}

/* end_beat writes the last credit again: the peer sees that this process runs, and a failure shows that the peer
 * has ended. */
bool end_beat(struct end *e, int64_t now)
{
	if (e->r.flying || silent(e))
		return false;
	write_credit(e, now, (struct credit){ e->r.read, e->r.done, e->r.stop });
	return e->r.flying;
}

/* hurry makes all short spans be written into their slots: their messages may be refused, and the process may end
 * before it learns of that. */
static void hurry(struct sender *s, int64_t now)
{
	for (uint64_t n = unconsumed(s); n < s->next; n++)
		if (s->spans[n % SPANS].due != NEVER)
			s->spans[n % SPANS].due = s->due = now;
}

void end_close(struct end *e, int64_t now)
{
	e->closed = true;
	if (end_dials(e)) {
		end_fail(e, ECANCELED, "the program has closed it");
		return;
	}
	end_of_stream(e, now);
	hurry(&e->s, now);
	e->r.stop = true;
}

static bool in_flight(const struct end *e) { return e->r.flying || flies(&e->s); }

/* finish asks the peer to end the connection when nothing of this end is in flight. */
static void finish(struct end *e, int64_t now)
{
	const bool finished = e->s.stopped || (e->s.fin && e->s.credit.spans == e->s.next);
	if (e->acked) {
		e->lost |= !e->peer_shut && now - e->asked >= ASK_FOR;
		return;
	}
	if ((!e->closed && !e->error && !e->peer_shut) || in_flight(e))
		return;
	if ((!e->error && !e->peer_shut && !finished) || (!e->r.told.reset && !e->peer_shut && !e->deaf && !end_dials(e)))
		return;
	if (!e->asked)
		e->asked = now;
	if (now - e->asked >= ASK_FOR)
		e->acked = e->lost = true;
	else if (now >= e->ask_due)
		post(e, now, OP_SHUTDOWN);
}

void end_poll(struct end *e, int64_t now)
{
	if (end_dials(e)) {
		ask(e, now);
		if (!e->error)
			return;
	} else {
		settle(e);
		load(e);
		write_overdue(e, now);
		tell(e, now);
	}
	finish(e, now);
}

/* end_peer_shutdown takes the peer's shutdown, or its answer to this end's. */
void end_peer_shutdown(struct end *e, uint8_t flags)
{
	if (flags & FLAG_ANSWER) {
		e->acked |= e->asked != 0;	/* else nothing was asked */
		if (flags & FLAG_UNKNOWN && !e->peer_shut) {
			e->peer_shut = e->changed = true;
			e->peer_doubtful = !end_dials(e);
		}
		return;
	}
	if (!end_dials(e) && !e->error)
		load(e);
	const bool known = e->peer_shut;
	e->peer_shut = e->s.stopped = e->changed = true;
	e->peer_doubtful |= (flags & FLAG_DOUBTFUL) != 0;
	if ((flags & FLAG_RESET && !known) || end_dials(e))
		end_fail(e, ECONNRESET, "its other end was reset");
	const struct connection_message m = end_connection(e, OP_SHUTDOWN, FLAG_ANSWER);
	host_answer(e->host, &e->peer, &m);
}

bool end_over(const struct end *e) { return e->closed && e->acked && (e->peer_shut || e->lost) && !in_flight(e); }

bool end_flushed(const struct end *e) { return e->s.stopped || (e->s.fin && e->s.due == NEVER && !flies(&e->s)); }

/* end_deadline returns when end_poll has to be called, if nothing happens before. */
int64_t end_deadline(const struct end *e)
{
	const int64_t d = first(e->s.due, e->r.due);
	if ((end_dials(e) && !e->error) || (e->asked && !e->acked && !in_flight(e)))
		return first(d, e->ask_due);
	return e->acked && !e->peer_shut && !e->lost ? first(d, e->asked + ASK_FOR) : d;
}
