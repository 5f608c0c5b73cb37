/* All connections of an attachment, a machine without I/O of its own (docs/streams.md; package stream: host). */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "stream.h"

bool same_process(const struct peer *a, const struct peer *b)
{
	return a->node == b->node && a->interface == b->interface && a->pdid == b->pdid;
}

bool same_peer(const struct peer *a, const struct peer *b) { return same_process(a, b) && a->generation == b->generation; }

struct listener *host_listener(const struct host *h, uint32_t port)
{
	struct listener *l = h->listeners;
	while (l && l->port != port)
		l = l->next;
	return l;
}

struct end *host_end(const struct host *h, uint32_t id)
{
	struct end *e = h->ends[id % ENDS];
	return e && e->id == id ? e : NULL;
}

/* by_peer returns the end whose other end has this id at this peer. */
static struct end *by_peer(const struct host *h, const struct peer *p, uint32_t id)
{
	for (unsigned i = 0; id && i < h->used; i++) {
		struct end *e = h->ends[i];
		if (e && e->peer_id == id && same_peer(&e->peer, p))
			return e;
	}
	return NULL;
}

/* add makes an end. Its id is not used again before 2^20 others. */
static struct end *add(struct host *h)
{
	unsigned place;
	struct end *e = out_add(h, &place);
	if (!e)
		return NULL;
	e->host = h;
	e->s.due = e->r.due = NEVER;
	do
		e->id = ++h->count * ENDS + place;
	while (!e->id);
	h->ends[place] = e;
	if (place >= h->used)
		h->used = place + 1;
	return e;
}

/* live makes sure that the life of an end's peer is watched; false: there is no memory. */
static bool live(struct host *h, int64_t now, struct end *e)
{
	struct life *l = h->lives;
	while (l && !same_peer(&l->peer, &e->peer))
		l = l->next;
	if (!l) {
		if (!(l = calloc(1, sizeof *l)))
			return false;
		l->peer = e->peer;
		l->beat = now + BEAT_EVERY;
		l->next = h->lives;
		h->lives = l;
		if (l->beat < h->beat)
			h->beat = l->beat;
	}
	l->ends++;
	e->life = l;
	return true;
}

static void unlive(struct host *h, struct end *e)
{
	struct life **at = &h->lives, *l = e->life;
	if (!l || --l->ends)
		return;
	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	free(l);
}

struct end *host_dial(struct host *h, int64_t now, uint32_t node, uint8_t interface, uint32_t port)
{
	struct end *e = add(h);
	if (!e)
		return NULL;
	e->peer = (struct peer){ .node = node, .interface = interface };
	e->port = port;
	end_dial(e, now);
	return e;
}

/* bury records an end that is finished: a repeated connect of its peer may still arrive. */
static void bury(struct host *h, int64_t now, const struct peer *p, uint32_t id)
{
	h->tombs[h->tomb++ % TOMBS] = (struct tomb){ *p, id, now + TOMBSTONE };
}

static bool buried(const struct host *h, int64_t now, const struct peer *p, uint32_t id)
{
	for (int i = 0; i < TOMBS; i++)
		if (h->tombs[i].until > now && h->tombs[i].id == id && same_peer(&h->tombs[i].peer, p))
			return true;
	return false;
}

static void remove_end(struct host *h, int64_t now, struct end *e)
{
	h->ends[e->id % ENDS] = NULL;
	if (e->peer_id)
		bury(h, now, &e->peer, e->peer_id);
	unlive(h, e);
	free(e->r.early);
	e->r.early = NULL;
	out_put(e, e->lost || e->peer_doubtful);
}

void host_gone(struct host *h, const struct life *l, const char *why)
{
	for (unsigned i = 0; i < h->used; i++) {
		struct end *e = h->ends[i];
		if (!e || (l && e->life != l) || e->lost)
			continue;
		end_gone(e, why);
		out_changed(e);
		h->again = true;
	}
}

void host_poll(struct host *h, int64_t now, struct end *e)
{
	end_poll(e, now);
	if (e->vanished) {
		e->vanished = false;
		host_gone(h, e->life, "the peer's process has ended");
		end_poll(e, now);
	}
	if (e->changed) {
		e->changed = false;
		out_changed(e);
	}
	if (end_over(e) && h->ends[e->id % ENDS] == e)
		remove_end(h, now, e);
	else if (end_deadline(e) < h->due)
		h->due = end_deadline(e);
}

void host_answer(struct host *h, const struct peer *p, const struct connection_message *m)
{
	if (!h->unsents && out_post(h, p, 0, m))
		return;
	if (h->unsents < UNSENT)	/* else it is asked for again */
		h->unsent[(h->first + h->unsents++) % UNSENT] = (struct answer){ *p, *m };
	h->due = 0;
}

static void answer_all(struct host *h)
{
	while (h->unsents && out_post(h, &h->unsent[h->first].to, 0, &h->unsent[h->first].m)) {
		h->first = (h->first + 1) % UNSENT;
		h->unsents--;
	}
}

static void reject(struct host *h, const struct peer *p, uint32_t to, uint8_t reason)
{
	const struct connection_message m = { .op = OP_REJECT, .to = to, .flags = reason };
	host_answer(h, p, &m);
}

/* opened takes the peer's memory out of its message. */
static bool opened(struct host *h, int64_t now, struct end *e, const struct peer *p, const struct connection_message *m)
{
	e->peer = *p;
	if (!live(h, now, e))
		return false;
	end_opened(e, m->from, &(struct area){ m->ring, m->words, m->size });
	return true;
}

static void accepted(struct end *e)
{
	const struct connection_message m = end_connection(e, OP_ACCEPT, 0);
	host_answer(e->host, &e->peer, &m);
}

/* connected takes a connect. It is answered alike however often it comes. */
static void connected(struct host *h, int64_t now, const struct peer *p, const struct connection_message *m)
{
	struct end *e = by_peer(h, p, m->from);
	struct listener *l = host_listener(h, m->to);
	if (e) {
		if (e->accepted && !e->error && !e->peer_shut)
			accepted(e);
		return;
	}
	if (buried(h, now, p, m->from) || (l && l->waiting >= BACKLOG))
		return;	/* it is asked for again */
	if (!l) {
		reject(h, p, m->from, REASON_PORT);
		return;
	}
	if (!(e = add(h))) {
		reject(h, p, m->from, REASON_ROOM);
		return;
	}
	e->port = m->to;
	e->accepted = true;
	if (!opened(h, now, e, p, m)) {
		e->closed = e->acked = e->peer_shut = true;	/* nothing knows of it */
		h->again = true;
		reject(h, p, m->from, REASON_ROOM);
		return;
	}
	if (l->last)
		l->last->queued = e;
	else
		l->first = e;
	l->last = e;
	l->waiting++;
	out_arrived(l);
	accepted(e);
}

/* speaks reports whether a peer may speak for the other end of e. */
static bool speaks(const struct end *e, const struct peer *p)
{
	return end_dials(e) ? p->node == e->peer.node && p->interface == e->peer.interface : same_peer(p, &e->peer);
}

void host_connection(struct host *h, int64_t now, const struct peer *from, const uint64_t *words, int n)
{
	struct connection_message m;
	const bool right = decode_connection(words, n, &m);
	struct peer p = *from;
	p.generation = m.generation;
	if (right && m.op == OP_CONNECT) {
		connected(h, now, &p, &m);
		return;
	}
	struct end *e = m.to ? host_end(h, m.to) : by_peer(h, &p, m.from);
	if (e && !speaks(e, &p))
		e = NULL;
	if (!e) {
		if (right && m.op == OP_SHUTDOWN && !(m.flags & FLAG_ANSWER)) {
			const struct connection_message answer = { .op = OP_SHUTDOWN, .to = m.from, .flags = FLAG_ANSWER | FLAG_UNKNOWN };
			bury(h, now, &p, m.from);
			host_answer(h, &p, &answer);
		} else if (right && m.op == OP_ACCEPT) {	/* this end has given up */
			const struct connection_message answer = { .op = OP_SHUTDOWN, .from = m.to, .to = m.from, .flags = FLAG_RESET };
			host_answer(h, &p, &answer);
		}
		return;
	}
	if (!right) {
		end_fail(e, ECONNRESET, "the peer sent a message that cannot be");
	} else if (m.op == OP_ACCEPT && end_dials(e)) {
		e->deaf = e->error != 0;	/* it gave up, and said that it writes nothing */
		if (!opened(h, now, e, &p, &m))
			end_fail(e, ENOMEM, "no memory");
	} else if (m.op == OP_REJECT && end_dials(e)) {
		end_refused(e, m.flags == REASON_ROOM ? "the peer has no memory for another connection" : "nobody listens on the port");
	} else if (m.op == OP_SHUTDOWN) {
		end_peer_shutdown(e, m.flags);
	}
	host_poll(h, now, e);
}

void host_short(struct host *h, int64_t now, const struct peer *from, const uint64_t *words, int n)
{
	struct short_span s;
	const bool right = decode_short(words, n, &s);
	struct end *e = host_end(h, s.to);
	if (!e || end_dials(e) || !same_process(from, &e->peer))
		return;
	e->life->silent = 0;
	if (!right || !end_message(e, &s))
		end_fail(e, ECONNRESET, "the peer sent a message that cannot be");
	host_poll(h, now, e);
}

/* watch shows signs of life, and ends connections to peers that have shown none for long. It returns when to call
 * it again. */
static int64_t watch(struct host *h, int64_t now)
{
	int64_t next = NEVER;
	if (now >= h->beat)
		for (unsigned i = 0; i < h->used; i++) {
			struct end *e = h->ends[i];
			if (e && e->life && !end_dials(e) && !e->peer_shut && !e->asked && !e->deaf)
				e->life->by = e;
		}
	for (struct life *l = h->lives; l; l = l->next) {
		if (now >= l->beat && l->by) {
			const struct end *last = host_end(h, l->last);
			if (l->silent >= SILENT) {
				host_gone(h, l, "the peer has shown no sign of life for 60 s");
			} else if (!(last && last->r.flying) && end_beat(l->by, now)) {	/* else pfd does not serve it */
				l->last = l->by->id;
				l->silent++;
			}
		}
		if (now >= l->beat)
			l->beat = now + BEAT_EVERY;
		l->by = NULL;
		if (l->beat < next)
			next = l->beat;
	}
	h->beat = next;
	return next;
}

int64_t host_step(struct host *h, int64_t now)
{
	int64_t next;
	do {
		next = watch(h, now);
		h->again = false;
		for (unsigned i = 0; i < h->used; i++) {
			if (h->ends[i])
				host_poll(h, now, h->ends[i]);
			if (h->ends[i] && end_deadline(h->ends[i]) < next)
				next = end_deadline(h->ends[i]);
		}
	} while (h->again);
	h->due = NEVER;
	answer_all(h);
	return h->unsents && now + BUSY_AGAIN < next ? now + BUSY_AGAIN : next;
}
