/* machine slots: sends short spans by a sender of libexanet, and takes them by its receiver, past each age that the
 * number in a slot can have.
 * machine unsent: an answer waits for a channel.
 * machine reset: the spans that arrived before a reset can be read after it.
 * machine silence: a peer shows no sign of life, while pfd is stopped and while it is not.
 * The machine's outside is this file, and delivers at once. */
#define _GNU_SOURCE
#include <stdio.h>

#include "../../libexanet/stream_end.c"
#include "../../libexanet/stream_host.c"
#include "../../libexanet/stream_wire.c"

static struct words slots[SPANS];
static struct end to;
static bool stopped;	/* pfd is */
static bool busy;	/* no channel is free */

bool out_short(struct end *e, uint64_t n, const uint64_t *words, int count)
{
	struct short_span s;
	(void)e, (void)n;
	return decode_short(words, count, &s) && end_message(&to, &s);
}

bool out_write(struct end *e, uint64_t n, uint64_t offset, uint32_t size, struct words w)
{
	(void)e, (void)offset, (void)size;
	slots[n % SPANS] = w;
	return true;
}

bool out_post(struct host *h, const struct peer *p, uint32_t id, const struct connection_message *m)
{
	(void)h, (void)p, (void)id, (void)m;
	return !busy;
}

enum landed out_landed(struct end *e, uint64_t n) { (void)e, (void)n; return LANDED; }
bool out_credit(struct end *e, struct words w) { (void)e, (void)w; return true; }
enum landed out_credited(struct end *e) { (void)e; return stopped ? FLYING : LANDED; }
struct words out_slot(const struct end *e, unsigned i) { (void)e; return slots[i]; }
struct words out_credits(const struct end *e, uint64_t *beat) { (void)e; *beat = 0; return (struct words){ 0, 0 }; }
void out_abort(struct end *e) { (void)e; }
void out_put(struct end *e, bool retired) { (void)e, (void)retired; }
void out_changed(struct end *e) { (void)e; }
void out_arrived(struct listener *l) { (void)l; }
struct end *out_add(struct host *h, unsigned *place) { *place = h->used; return calloc(1, sizeof(struct end)); }

static int span(struct end *e)
{
	const uint64_t at = e->s.next;
	end_send(e, 0, 1);
	if (take(&to.r, slots[at % SPANS]) != 1 || (at > SPANS && take(&to.r, slots[(at + 1) % SPANS]))) {
		printf("span %llu is not taken, or the next one is there already\n", (unsigned long long)at);
		return 1;
	}
	consume(&to.r, 1);
	credited(&e->s, (struct credit){ to.r.read, to.r.done, false });
	settle(e);
	return 0;
}

static int old_slots(void)
{
	static unsigned char ring[RING_LEAST], copy[RING_LEAST];
	static struct end e;
	enum { STEP = 1 << 18 };
	e.copy = copy;
	e.copy_size = e.s.window = sizeof copy;
	to.r.ring = ring;
	to.r.size = sizeof ring;
	e.s.due = e.r.due = NEVER;
	e.peer_id = 1;
	for (int i = 0; i < SPANS; i++)	/* each slot was written once */
		slots[i] = encode_slot((struct slot){ i, 1, i + 1, 0 });
	e.s.next = e.s.oldest = e.s.credit.spans = to.r.next = to.r.done = SPANS;
	while (e.s.next < UINT64_C(5) << 23) {
		for (int i = 0; i < 2 * SPANS; i++)
			if (span(&e))
				return 1;
		const uint64_t skip = STEP - e.s.next % STEP - SPANS;	/* by message: they touch no slot */
		e.s.next += skip;
		e.s.oldest += skip;
		e.s.credit.spans += skip;
		to.r.next += skip;
		to.r.done += skip;
	}
	return 0;
}

/* pass lets seconds pass. */
static void pass(struct host *h, int64_t *now, int seconds)
{
	for (int64_t end = *now + seconds * BEAT_EVERY; *now < end; *now += BEAT_EVERY / 10)
		host_step(h, *now);
}

static int silence(void)
{
	static struct host h;
	static unsigned char ring[RING_LEAST];
	int64_t now = 1;
	const struct peer p = { .node = 1, .interface = 17, .pdid = 5, .generation = 7 };
	const struct connection_message m = { .op = OP_ACCEPT, .from = 1, .ring = 1 << 20, .words = 1 << 10, .size = RING_LEAST };
	for (int i = 0; i < 100; i++) {	/* each could write a beat before pfd goes on */
		struct end *e = host_dial(&h, now, p.node, p.interface, 80);
		e->r.ring = ring;
		e->r.size = sizeof ring;
		if (!opened(&h, now, e, &p, &m))
			return 1;
	}
	pass(&h, &now, 30);
	stopped = true;
	pass(&h, &now, 300);
	stopped = false;
	now += 300 * BEAT_EVERY;	/* this process was stopped */
	pass(&h, &now, 20);
	for (int i = 0; i < 100; i++)
		if (h.ends[i]->error) {
			printf("while pfd is stopped: %s\n", h.ends[i]->why);
			return 1;
		}
	pass(&h, &now, 20);
	if (!h.ends[0]->error)
		puts("a peer that shows no sign of life is not given up");
	return !h.ends[0]->error;
}

/* unsent: an answer for which no channel is free is due at once. */
static int unsent(void)
{
	static struct host h;
	const struct peer p = { .node = 1, .interface = 17, .pdid = 5 };
	const struct connection_message m = { .op = OP_SHUTDOWN, .from = 1, .to = 9, .generation = 7 };
	uint64_t words[EXANET_WORDS];
	int64_t now = BEAT_EVERY;
	encode_connection(&m, words);
	host_step(&h, now);
	busy = true;
	host_connection(&h, now, &p, words, EXANET_WORDS);
	const bool due = h.due <= now && host_step(&h, now) == now + BUSY_AGAIN;
	busy = false;
	if (!due || host_step(&h, now) < now + BEAT_EVERY || h.unsents)
		puts("the answer is not sent as soon as a channel is free");
	return !due || h.unsents;
}

static int reset(void)
{
	static unsigned char ring[RING_LEAST];
	static struct life life;
	static struct end e;
	e.peer_id = 1;
	e.life = &life;
	e.r.ring = ring;
	e.r.size = sizeof ring;
	e.s.due = e.r.due = NEVER;
	for (int i = 0; i < 3; i++)
		slots[i] = encode_slot((struct slot){ 10 * i, 10, i + 1, 0 });
	end_fail(&e, ECONNRESET, "the peer's process has ended");
	if (e.r.taken != 30)
		printf("%llu bytes can be read\n", (unsigned long long)e.r.taken);
	return e.r.taken != 30;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "reset"))
		return reset();
	if (argc == 2 && !strcmp(argv[1], "slots"))
		return old_slots();
	if (argc == 2 && !strcmp(argv[1], "unsent"))
		return unsent();
	return argc == 2 && !strcmp(argv[1], "silence") ? silence() : 2;
}
