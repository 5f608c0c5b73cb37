/* The outside of streams: messages, writes and memory (docs/streams.md; package stream: stack, memory). */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "stream.h"

/* The step from one end's words to the next one's; after the words is the source of writes of words alone. */
enum { WORDS_STEP = (WORDS_SIZE + 8 + 63) & ~63, OWN_BEAT = WORDS_SIZE, AT_ONCE = 256, STATUS_DOMAIN = 5 };

static exanet_stream *stream_of(const struct end *e) { return (exanet_stream *)e; }
static struct streams *its(const struct end *e) { return stream_of(e)->s; }
static struct streams *host_streams(const struct host *h) { return (struct streams *)((char *)h - offsetof(struct streams, host)); }

/* Messages */

void deliver(void *arg, const struct exanet_message *m)
{
	struct inbox *b = arg;
	if (b->tail - load32(&b->head) == INBOX)
		return;	/* messages may be lost */
	b->list[b->tail % INBOX] = *m;
	store32(&b->tail, b->tail + 1);
}

static struct sent *sent_as(struct streams *s, int which, uint32_t number) { return &s->sent[which][number % SENT]; }

/* take_refusal takes the refusal of a message of this process. */
static void take_refusal(struct streams *s, int which, int64_t now, uint32_t number, uint32_t node)
{
	const struct sent *t = sent_as(s, which, number);
	struct end *e = host_end(&s->host, t->id);
	if (t->number != number || !e || e->peer.node != node)
		return;	/* any node can send a refusal */
	if (!which)
		end_short_refused(e, now, t->n);
	else if (end_dials(e))
		end_ask_refused(e);
	host_poll(&s->host, now, e);
}

void receive_messages(struct streams *s)
{
	collect_messages(s->e);
	for (int which = 1; which >= 0; which--) {
		struct inbox *b = &s->inbox[which];
		for (int i = 0; i < AT_ONCE && b->head != load32(&b->tail); i++) {
			const struct exanet_message m = b->list[b->head % INBOX];
			const struct peer from = { .node = m.node, .interface = m.interface, .pdid = m.pdid };
			store32(&b->head, b->head + 1);
			if (!m.count)
				take_refusal(s, which, now(), m.number, m.node);
			else if (which)
				host_connection(&s->host, now(), &from, m.words, m.count);
			else
				host_short(&s->host, now(), &from, m.words, m.count);
		}
	}
}

/* send_to sends a message and returns its number, or a negative errno. One of the process to itself does not leave it. */
static int send_to(struct streams *s, const struct peer *to, const uint64_t *words, int n)
{
	const struct host *h = &s->host;
	if (to->node != h->own.node || to->interface != h->own.interface || (to->generation && to->generation != h->own.generation))
		return post_message(s->e, &(struct exanet_remote){ .node = to->node, .generation = to->generation, .pdid = to->pdid, .interface = to->interface }, words, n);
	struct exanet_message m = { .node = h->own.node, .pdid = h->own.pdid, .interface = h->own.interface, .count = n };
	memcpy(m.words, words, n * sizeof *words);
	pthread_mutex_lock(&s->e->lock);
	deliver(&s->inbox[m.words[0] >> 18 & 1], &m);
	pthread_mutex_unlock(&s->e->lock);
	wake_program(s);
	return 0;
}

bool out_post(struct host *h, const struct peer *to, uint32_t id, const struct connection_message *m)
{
	struct streams *s = host_streams(h);
	struct connection_message own = *m;
	uint64_t words[EXANET_WORDS];
	own.generation = h->own.generation;
	encode_connection(&own, words);
	const int number = send_to(s, to, words, EXANET_WORDS);
	if (number > 0)
		*sent_as(s, 1, number) = (struct sent){ number, id, 0 };
	return number >= 0;
}

bool out_short(struct end *e, uint64_t n, const uint64_t *words, int count)
{
	const int number = send_to(its(e), &e->peer, words, count);
	if (number > 0)
		*sent_as(its(e), 0, number) = (struct sent){ number, e->id, n };
	return number >= 0;
}

/* Writes */

/* start begins a write; false: all channels are taken, or pfd is stopped. */
static bool start(const struct end *e, struct exanet_transfer *t, int *transfer)
{
	t->remote.node = e->peer.node;
	t->remote.generation = e->peer.generation;
	t->remote.pdid = e->peer.pdid;
	t->remote.interface = e->peer.interface;
	t->flags |= WRITE_SOON;
	*transfer = exanet_write(its(e)->e, t);
	return *transfer != -EBUSY;
}

/* own_beat counts one beat, and returns a write of it to the peer's words. */
static struct exanet_transfer own_beat(const struct end *e)
{
	unsigned char *own = stream_of(e)->words + OWN_BEAT;
	store64(own, load64(own) + 1);
	return (struct exanet_transfer){ .local = own, .size = 8, .remote = { .address = e->remote.words + BEAT_AT, .length = 8 } };
}

bool out_write(struct end *e, uint64_t n, uint64_t offset, uint32_t size, struct words w)
{
	struct exanet_transfer t = {
		.local = e->copy + offset % e->copy_size, .size = size,
		.remote = { .address = e->remote.ring, .length = e->remote.size }, .offset = offset % e->remote.size,
	};
	if (!size)
		t = own_beat(e);
	t.notify = e->remote.words + n % SPANS * SPAN_WORDS;
	t.first = w.first;
	t.last = w.last;
	return start(e, &t, &stream_of(e)->writes[n % SPANS]);
}

bool out_credit(struct end *e, struct words w)
{
	struct exanet_transfer t = own_beat(e);
	t.flags = EXANET_URGENT;
	t.notify = e->remote.words + CREDIT_AT;
	t.first = w.first;
	t.last = w.last;
	return start(e, &t, &stream_of(e)->credit);
}

static enum landed landed(const struct end *e, int transfer)
{
	const int status = transfer < 0 ? transfer : exanet_poll(its(e)->e, transfer);
	if (status == EXANET_ONGOING)
		return FLYING;
	if (status > 0 && status != STATUS_DOMAIN && !e->error)	/* else it may be aborted */
		stream_of(e)->status = status;
	return !status ? LANDED : status == STATUS_DOMAIN ? VANISHED : FAILED;
}

enum landed out_landed(struct end *e, uint64_t n) { return landed(e, stream_of(e)->writes[n % SPANS]); }

enum landed out_credited(struct end *e) { return landed(e, stream_of(e)->credit); }

void out_abort(struct end *e)
{
	for (uint64_t n = e->s.oldest; n != e->s.next; n++)
		if (e->s.spans[n % SPANS].flying)
			exanet_abort(its(e)->e, stream_of(e)->writes[n % SPANS]);
	if (e->r.flying)
		exanet_abort(its(e)->e, stream_of(e)->credit);
}

/* pair loads two words that the device writes, the last first: it is written last. */
static struct words pair(const struct end *e, unsigned at)
{
	const unsigned char *w = stream_of(e)->words + at;
	const uint64_t last = load64(w + 8);
	return (struct words){ load64(w), last };
}

struct words out_slot(const struct end *e, unsigned i) { return pair(e, i * SPAN_WORDS); }

struct words out_credits(const struct end *e, uint64_t *beat)
{
	*beat = load64(stream_of(e)->words + BEAT_AT);
	return pair(e, CREDIT_AT);
}

/* Memory */

/* take_rings returns a ring and a copy, side by side, or NULL. */
static unsigned char *take_rings(struct streams *s)
{
	if (!s->nrings) {
		unsigned char *slab = s->nslabs < ENDS / SLAB_ENDS ? exanet_alloc(s->e, (size_t)SLAB_ENDS * 2 * END_RING) : NULL;
		if (!slab)
			return NULL;
		s->slabs[s->nslabs++] = slab;
		for (int i = SLAB_ENDS - 1; i >= 0; i--)
			s->rings[s->nrings++] = slab + (size_t)i * 2 * END_RING;
	}
	return s->rings[--s->nrings];
}

struct end *out_add(struct host *h, unsigned *place)
{
	struct streams *s = host_streams(h);
	if (!s->words && !(s->words = exanet_alloc(s->e, (size_t)ENDS * WORDS_STEP)))
		return NULL;
	if (!s->nplaces && s->used == ENDS) {
		fail(ENOBUFS, "%d streams are open or have failed: close some, or attach again", ENDS);
		return NULL;
	}
	exanet_stream *x = calloc(1, sizeof *x);
	if (!x || !(x->rings = take_rings(s))) {
		if (!x)
			fail(ENOMEM, "no memory");
		free(x);
		return NULL;
	}
	*place = s->nplaces ? s->places[--s->nplaces] : s->used++;
	x->s = s;
	x->words = s->words + *place * WORDS_STEP;
	memset(x->words, 0, WORDS_STEP);
	waiter_init(&x->w);
	x->end.r.ring = x->rings;
	x->end.r.size = x->end.copy_size = x->end.own.size = END_RING;
	x->end.copy = x->rings + END_RING;
	x->end.own.ring = (uintptr_t)x->rings;
	x->end.own.words = (uintptr_t)x->words;
	return &x->end;
}

void out_put(struct end *e, bool retired)
{
	exanet_stream *x = stream_of(e);
	struct streams *s = x->s;
	if (!retired)
		s->places[s->nplaces++] = e->id % ENDS;
	if (retired || s->nrings >= KEPT_RINGS)
		s->stale[s->nstale++] = (struct stale){ x->rings, retired };
	else
		s->rings[s->nrings++] = x->rings;
	x->over = true;
	if (!x->held)
		free_stream(x);
}

void discard(struct streams *s)
{
	while (s->nstale && !s->error) {
		const struct stale one = s->stale[s->nstale - 1];
		s->nstale--;
		pthread_mutex_unlock(&s->lock);
		if (madvise(one.rings, 2 * END_RING, MADV_REMOVE))	/* it is no file: ulimit -f, method uffd */
			madvise(one.rings, 2 * END_RING, MADV_DONTNEED);
		exanet_invalidate(s->e, one.rings, 2 * END_RING);
		pthread_mutex_lock(&s->lock);
		if (!one.retired)
			s->rings[s->nrings++] = one.rings;
	}
}

void free_memory(struct streams *s)
{
	if (s->words)
		unmap_shared(s->e, s->words, ((size_t)ENDS * WORDS_STEP + 4095) & ~(size_t)4095);
	for (unsigned i = 0; i < s->nslabs; i++)
		unmap_shared(s->e, s->slabs[i], (size_t)SLAB_ENDS * 2 * END_RING);
}
