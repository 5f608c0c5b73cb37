/* Threads of the global address space (package gsas). Numbers in comments are sections of docs/spec/gsas.md. */
#define _GNU_SOURCE
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gsas.h"

/* An operation is asked for again after ASK_AGAIN. A unit that has not answered for SILENCE is gone. A unit keeps an answer
 * for 30 s at least; a process that was stopped for LONG_GAP between two asks does not ask again. PAUSE_MOST is the longest
 * pause before a unit that is busy is asked again. */
#define LONG_GAP INT64_C(10000000000)
#define SILENCE INT64_C(9000000000)	/* the link to its host may be down for that long */
enum { MS = 1000000, ASK_AGAIN = 20 * MS, PAUSE_MOST = 100 * MS, LOOK_ANSWER = 10 * MS };
enum { THREAD_ENDED = 0x3010 };	/* of the port of a thread */
enum { REFUSED_REQUEST = 1 };	/* of answered */

#define REGION (UINT64_C(1) << 34)	/* a tree's memory on a node (docs/attach.md 12) */
#define OFFSET ((UINT64_C(1) << 48) - 1)
#define DIRECTORY_PAGES 64

static int errors;	/* exanet_gsas_errors */

const struct operation operations[OPS] = {
	[EXANET_LOAD64] = { "load64", 0, 1, 8 }, [EXANET_LOAD128] = { "load128", 0, 2, 16 }, [EXANET_LOAD256] = { "load256", 0, 4, 32 },
	[EXANET_STORE64] = { "store64", 1, 0, 8 }, [EXANET_STORE128] = { "store128", 2, 0, 16 }, [EXANET_STORE256] = { "store256", 4, 0, 32 },
	[EXANET_FETCH_ADD] = { "fetch_add", 1, 1, 8 }, [EXANET_SWAP] = { "swap", 1, 1, 8 }, [EXANET_COMPARE_SWAP] = { "compare_swap", 2, 1, 8 },
	[EXANET_FETCH_AND] = { "fetch_and", 1, 1, 8 }, [EXANET_FETCH_OR] = { "fetch_or", 1, 1, 8 }, [EXANET_FETCH_XOR] = { "fetch_xor", 1, 1, 8 },
	[EXANET_COMPARE_SWAP128] = { "compare_swap128", 4, 2, 16 }, [EXANET_COMPARE_STORE256] = { "compare_store256", 5, 4, 32 },
	[OP_ALLOC] = { "alloc", 2, 1, 0 }, [OP_FREE] = { "free", 1, 0, 0 }, [OP_ALIVE] = { "alive", 1, 1, 0 },
};

int exanet_gsas_errors(int on) { return __atomic_exchange_n(&errors, on, __ATOMIC_SEQ_CST); }

/* The messages of docs/attach.md 12. */

void thread_message(unsigned char *m, const unsigned char *token)
{
	message(m, THREAD, THREAD_SIZE);
	memcpy(m + 72, token, 16);
}

void unthread_message(unsigned char *m, int index)
{
	message(m, UNTHREAD, UNTHREAD_SIZE);
	m[72] = index;
}

bool threaded(const unsigned char *m, struct exanet_gsas *g)
{
	static const unsigned char none[16];
	const unsigned interface = m[72];
	g->index = m[73];
	g->id = get(m + 76, 4);
	g->protection = get(m + 80, 4);
	g->region = get(m + 84, 4);
	memcpy(g->token, m + 88, sizeof g->token);
	return interface >= 32 && interface < 64 && g->index < THREADS && !get(m + 74, 2) && g->id >> 18 == interface &&
	       g->protection >> 18 >= 32 && g->protection >> 18 < 64 && g->region < 1 << 14 && memcmp(g->token, none, sizeof none);
}

int request(uint64_t *words, int op, uint64_t address, const uint64_t *args)
{
	words[0] = (uint64_t)op << 56;
	words[1] = address;
	for (int i = 0; i < operations[op].args; i++)
		words[2 + i] = args[i];
	return 2 + operations[op].args;
}

/* Threads. */

static struct threads *threads_of(exanet *e)
{
	if (!e->threads)
		e->threads = calloc(1, sizeof *e->threads);
	return e->threads;
}

/* enter adds a new thread to the attachment's. */
static int enter(exanet_gsas *g)
{
	exanet *e = g->e;
	int error = 0;
	pthread_mutex_lock(&e->lock);
	struct threads *t = threads_of(e);
	uint16_t (**numbers)[1 << 16] = t ? &t->numbers[g->id >> 18] : NULL;
	if (numbers && !*numbers)
		*numbers = calloc(THREAD_CHANNELS, sizeof **numbers);	/* absent until used */
	if (!numbers || !*numbers) {
		error = fail(ENOMEM, "no memory");
	} else {
		g->numbers = *numbers;
		g->next = t->list;
		t->list = g;
	}
	pthread_mutex_unlock(&e->lock);
	return error;
}

static int end_thread(exanet *e, int index)
{
	unsigned char m[UNTHREAD_SIZE];
	unthread_message(m, index);
	return question(e, m, sizeof m, -1, -1, NULL);
}

static int make_thread(exanet *e, const unsigned char *token, exanet_gsas **out)
{
	UNCANCELLED;
	unsigned char m[THREAD_SIZE], a[THREADED_SIZE];
	int error;
	*out = NULL;
	if (inherited(e))
		return refuse_child(e);
	if (e->size != MEMORY_THREADS)
		return fail(EINVAL, "the attachment has no threads of the global address space: attach with EXANET_THREADS");
	exanet_gsas *g = calloc(1, sizeof *g);
	if (!g)
		return fail(ENOMEM, "no memory");
	g->e = e;
	g->memory = -1;
	thread_message(m, token);
	if ((error = question_thread(e, m, a, &g->memory)))
		goto out;
	if (!threaded(a, g)) {
		error = fail(EPROTO, "pfd violates the protocol");
		goto out;
	}
	g->port = e->pages + MEMORY + PORT * g->index;
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->freed, NULL);
	if (!(error = enter(g))) {
		*out = g;
		return 0;
	}
	end_thread(e, g->index);
	fail(ENOMEM, "no memory");
out:
	if (g->memory >= 0)
		close(g->memory);
	free(g);
	return error;
}

int exanet_gsas_begin(exanet *e, exanet_gsas **g)
{
	static const unsigned char none[16];
	return make_thread(e, none, g);
}

static int digit(char c) { return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? (c | 0x20) - 'a' + 10 : -1; }

int exanet_gsas_join(exanet *e, const char *text, exanet_gsas **g)
{
	unsigned char token[16], any = 0;
	int n = 0;
	*g = NULL;
	for (; n < 32 && digit(text[n]) >= 0; n++) {
		token[n / 2] = n % 2 ? token[n / 2] | digit(text[n]) : digit(text[n]) << 4;
		any |= token[n / 2];
	}
	if (n != 32 || text[n] || !any)
		return fail(EINVAL, "\"%.40s\" is not the token of a tree: give its 32 hexadecimal digits", text);
	/* EAGAIN: the pfd of the root of the tree has not answered. Other requests have their turn. */
	for (int64_t pause = ASK_AGAIN, end = now() + SILENCE;; rest(&pause, PAUSE_MOST)) {
		int error = make_thread(e, token, g);
		if (error != -EAGAIN || now() >= end)
			return error;
	}
}

/* release frees a thread that the attachment does not have any more. */
static void release(exanet_gsas *g)
{
	if (g->map && !inherited(g->e))	/* a child has no mapping */
		munmap(g->map, REGION);
	close(g->memory);
	free(g);
}

int exanet_gsas_close(exanet_gsas *g)
{
	UNCANCELLED;
	exanet *e = g->e;
	if (inherited(e))
		return refuse_child(e);
	pthread_mutex_lock(&e->lock);
	for (struct exanet_gsas **at = &e->threads->list; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	pthread_mutex_unlock(&e->lock);
	const int error = end_thread(e, g->index);
	pthread_mutex_destroy(&g->lock);
	pthread_cond_destroy(&g->freed);
	release(g);
	return error == -ENOTCONN ? 0 : error;	/* it ended with the attachment */
}

void free_threads(exanet *e)
{
	struct threads *t = e->threads;
	if (!t)
		return;
	for (exanet_gsas *g; (g = t->list); release(g))
		t->list = g->next;
	for (int i = 0; i < 64; i++)
		free(t->numbers[i]);
	free(t);
}

int exanet_gsas_token(const exanet_gsas *g, char *text, size_t size)
{
	if (inherited(g->e))
		return refuse_child(g->e);
	if (size < EXANET_GSAS_TOKEN)
		return fail(ENOSPC, "a token's text has %d bytes", EXANET_GSAS_TOKEN);
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", g->token[i]);
	return 0;
}

uint32_t exanet_gsas_id(const exanet_gsas *g) { return g->id; }
uint32_t exanet_gsas_tree(const exanet_gsas *g) { return g->protection; }

uint64_t exanet_gsas_directory(const exanet_gsas *g)
{
	return exanet_gsas_at(g->protection & 0x3ffff, OFFSET + 1 - (uint64_t)EXANET_GSAS_PAGE * (DIRECTORY_PAGES - (g->protection >> 18)));
}

int exanet_gsas_limit(exanet_gsas *g, int ms)
{
	if (inherited(g->e))
		return refuse_child(g->e);
	if (ms < 0)
		return fail(EINVAL, "a limit of %d ms: give 0 for none, or more", ms);
	return (int)(__atomic_exchange_n(&g->limit, (int64_t)ms * MS, __ATOMIC_RELAXED) / MS);
}

/* Requests and answers. */

static void ring(exanet_gsas *g)
{
	__atomic_fetch_or((uint32_t *)(g->e->pages + RUNG), UINT32_C(1) << g->index, __ATOMIC_SEQ_CST);
	kick(g->e);
}

/* word returns where a word of the process's own port is in that of a thread. */
static unsigned char *word(const exanet_gsas *g, int at) { return g->port + (at - PACKETIZER); }

/* accept_answer hands an answer to its call: the caller must accept it only from a unit. */
static void accept_answer(exanet_gsas *g, uint32_t node, uint64_t first, const unsigned char *values, int n)
{
	struct call *c = &g->calls[first >> 48 & (THREAD_CHANNELS - 1)];
	if (!c->open || c->done || c->node != node || c->number != (uint16_t)first)
		return;	/* of an operation that nobody awaits */
	c->status = first >> 56;
	if (c->status == GSAS_WAITING) {
		c->waiting = true;
		return;
	}
	for (int i = 0; i < VALUES; i++)
		c->values[i] = i < n ? load64(values + 8 * i) : 0;
	store32(&c->done, 1);
}

bool accept_answers(exanet_gsas *g)
{
	bool full = false;
	uint32_t head = load32(word(g, MAIL_HEAD));
	for (int i = 0; i < MAIL_SLOTS && head != load32(word(g, MAIL_TAIL)); i++) {
		const unsigned char *m = word(g, MAIL) + MAIL_SIZE * (head % MAIL_SLOTS);
		const uint64_t source = load64(m);
		const int n = source >> 56 & 0xf;
		if (!(source >> 32 & 0xffff) && n >= 1 && n <= 1 + VALUES)	/* no process has PDID 0 */
			accept_answer(g, source & 0x3fffff, load64(m + 8), m + 16, n - 1);
		store32(word(g, MAIL_HEAD), head + 1);	/* last: another waiter sees the mail or its answer */
		full |= load32(word(g, MAIL_TAIL)) - head++ >= MAIL_SLOTS;
	}
	return full;
}

static bool mail_waits(const exanet_gsas *g) { return load32(word(g, MAIL_HEAD)) != load32(word(g, MAIL_TAIL)); }

struct waited { exanet_gsas *g; struct call *c; };

/* answered takes what has come: 0 once the call is answered, REFUSED_REQUEST, or a negative errno. */
static int answered(exanet *e, const void *arg)
{
	const struct waited *w = arg;
	exanet_gsas *g = w->g;
	const bool over = load32(e->pages + STATE) || (now() - (int64_t)load64(&e->looked) > LOOK_ANSWER && gone(e));
	if (mail_waits(g)) {
		pthread_mutex_lock(&g->lock);
		const bool full = accept_answers(g);
		pthread_mutex_unlock(&g->lock);
		if (full)
			ring(g);
	}
	if (load32(&w->c->done))
		return 0;
	if (over)
		return fail(ENOTCONN, "the attachment has ended: attach again");
	if (load32(word(g, THREAD_ENDED)))
		return fail(EHOSTUNREACH, "the tree is lost: the pfd of its root has ended");
	const unsigned char *p = g->port + PACKETIZER_CHANNEL * (w->c - g->calls);
	if (w->c->sent && !load64(p + PACKETIZER_SEND) && load64(p + PACKETIZER_STATUS))
		return REFUSED_REQUEST;
	return EXANET_ONGOING;
}

/* unread reports whether pfd has not read the last message of a call's channel. */
static bool unread(const exanet_gsas *g, const struct call *c)
{
	return load64(g->port + PACKETIZER_CHANNEL * (c - g->calls) + PACKETIZER_SEND);
}

/* ask sends a call's request, unless pfd has not read the channel's last message. */
static void ask(exanet_gsas *g, struct call *c)
{
	c->asked = now();
	c->sent = !unread(g, c);
	if (!c->sent)
		return;
	publish_in(g->port, c - g->calls, c->node | (uint64_t)MAILBOX_GSAS << 24, c->words, c->n, c->number);
	ring(g);
}

/* ask_new asks for an operation of which nothing is in flight. */
static void ask_new(exanet_gsas *g, struct call *c)
{
	pthread_mutex_lock(&g->lock);
	c->number = ++g->numbers[c - g->calls][c->node];
	c->waiting = false;
	c->open = true;
	store32(&c->done, 0);
	pthread_mutex_unlock(&g->lock);
	c->began = now();
	ask(g, c);
}

static const char *address_text(uint64_t a, char *text)
{
	sprintf(text, "0x%04x-%04x-%04x-%04x", (unsigned)(a >> 48), (unsigned)(a >> 32 & 0xffff), (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xffff));
	return text;
}

/* failed returns the error of an operation. */
static int failed(int op, uint64_t address, int code, const char *why)
{
	char text[32];
	return fail(code, "%s at %s: %s", operations[op].name, address_text(address, text), why);
}

static int bad_address(int op, uint64_t address)
{
	return failed(op, address, EFAULT, "no allocated page has the address, or it is not aligned to the operation's size");
}

int gsas_start(exanet_gsas *g, int op, uint64_t address, const uint64_t *args, bool wait)
{
	exanet *e = g->e;
	if (inherited(e))
		return refuse_child(e);
	if (!(address >> 48) || (operations[op].bytes && address % operations[op].bytes))
		return bad_address(op, address);
	pthread_mutex_lock(&g->lock);
	const unsigned all = (1 << THREAD_CHANNELS) - 1;
	while (g->used == all && g->started != all && wait)	/* else nothing would free one */
		pthread_cond_wait(&g->freed, &g->lock);
	if (g->used == all) {
		pthread_mutex_unlock(&g->lock);
		return fail(EBUSY, "the thread has %d operations in flight: finish one", THREAD_CHANNELS);
	}
	const int channel = __builtin_ctz(~g->used);
	struct call *c = &g->calls[channel];
	g->used |= 1u << channel;
	c->op = op;
	c->use = (c->use + 1) & 0xffffff;
	c->node = (address >> 48) - 1;
	c->n = request(c->words, op, address, args);
	const int number = (int)(c->use * THREAD_CHANNELS + channel);
	pthread_mutex_unlock(&g->lock);
	c->born = now();
	ask_new(g, c);
	return number;
}

/* result returns the result of an answer. */
static int result(const struct call *c)
{
	static const struct { int code; const char *why; } statuses[] = {
		[GSAS_PAGE] = { EIO, "the page cannot be brought in: pfd's log has the cause" },
		[GSAS_ROOM] = { ENOSPC, "no room: free pages, or have pfd's gsas-quota raised" },
		[GSAS_DENIED] = { EACCES, "the page belongs to another tree: an address is valid in the tree that has allocated it" },
		[GSAS_REQUEST] = { ENOTSUP, "the node has no such operation: use a pfd of this release" },
		[GSAS_BUSY] = { EBUSY, "the node has too many operations in flight: try again later" },
		[GSAS_GONE] = { EHOSTUNREACH, "the node's pages are gone" },
	};
	const size_t s = c->status;
	if (s == GSAS_DONE)
		return 0;
	if (s == GSAS_ADDRESS)
		return bad_address(c->op, c->words[1]);
	if (s < sizeof statuses / sizeof *statuses && statuses[s].code)
		return failed(c->op, c->words[1], statuses[s].code, statuses[s].why);
	return failed(c->op, c->words[1], EHOSTUNREACH, "the node's answer has a status that this library does not know");
}

/* await waits for the end of a call. */
static int await(exanet_gsas *g, struct call *c)
{
	const struct waited w = { g, c };
	for (int64_t pause = MS;;) {
		const int64_t left = c->asked + ASK_AGAIN - now();
		int status = sleep_on(g->e, g->port, left > 0 ? (int)((left + MS - 1) / MS) : 0, LOOK_ANSWER, answered, &w);
		if (!status && c->status == GSAS_BUSY && pause < PAUSE_MOST) {
			rest(&pause, PAUSE_MOST);
			ask_new(g, c);
			continue;
		}
		if (!status)
			return result(c);
		if (status == REFUSED_REQUEST)
			return failed(c->op, c->words[1], EFAULT, "the node takes no requests, or there is no such node");
		if (status != EXANET_ONGOING)
			return status;
		const int64_t limit = __atomic_load_n(&g->limit, __ATOMIC_RELAXED);
		if (limit && now() - c->born >= limit)
			return failed(c->op, c->words[1], ETIMEDOUT, "it has not ended within the thread's limit, and may have been done, or will be");
		if (now() - c->asked >= LONG_GAP)	/* the node may have forgotten that it is done */
			return failed(c->op, c->words[1], EHOSTUNREACH, "the process was stopped, and the operation may have been done");
		pthread_mutex_lock(&g->lock);
		if (c->waiting || unread(g, c))	/* pfd is stopped, or needs a processor */
			c->began = now();
		c->waiting = false;
		pthread_mutex_unlock(&g->lock);
		if (now() - c->began >= SILENCE)
			return failed(c->op, c->words[1], EHOSTUNREACH, "the node has not answered for 9 s, although the operation may have been done");
		ask(g, c);
	}
}

int gsas_finish(exanet_gsas *g, int number, uint64_t *values)
{
	const int channel = number & (THREAD_CHANNELS - 1);
	struct call *c = &g->calls[channel];
	const int error = await(g, c);
	if (!error && values)
		memcpy(values, c->values, 8 * operations[c->op].values);
	pthread_mutex_lock(&g->lock);
	c->open = false;
	g->used &= ~(1u << channel);
	pthread_cond_signal(&g->freed);
	pthread_mutex_unlock(&g->lock);
	return error;
}

int gsas_call(exanet_gsas *g, int op, uint64_t address, const uint64_t *args, uint64_t *values)
{
	const int number = gsas_start(g, op, address, args, true);
	return number < 0 ? number : gsas_finish(g, number, values);
}

/* The program's calls. */

/* checked ends the program if an operation's address is invalid (003 §1), unless the program handles errors. */
static int checked(int error)
{
	if ((error == -EFAULT || error == -EACCES) && !__atomic_load_n(&errors, __ATOMIC_SEQ_CST)) {
		fprintf(stderr, "exanet: invalid address: %s (exanet_gsas_errors(1) makes this an error)\n", exanet_error());
		abort();
	}
	return error;
}

static int perform(exanet_gsas *g, int op, uint64_t address, const uint64_t *args, uint64_t *values)
{
	UNCANCELLED;
	return checked(gsas_call(g, op, address, args, values));
}

int exanet_gsas_start(exanet_gsas *g, int op, uint64_t address, const uint64_t *args)
{
	UNCANCELLED;
	if (op < 0 || op >= OP_ALLOC || !operations[op].bytes)
		return fail(EINVAL, "there is no operation %#x", op);
	const int number = gsas_start(g, op, address, args, false);
	if (number < 0)
		return checked(number);
	pthread_mutex_lock(&g->lock);
	g->started |= 1u << (number & (THREAD_CHANNELS - 1));
	pthread_cond_broadcast(&g->freed);
	pthread_mutex_unlock(&g->lock);
	return number;
}

int exanet_gsas_finish(exanet_gsas *g, int number, uint64_t *values)
{
	UNCANCELLED;
	const int channel = number & (THREAD_CHANNELS - 1);
	if (inherited(g->e))
		return refuse_child(g->e);
	pthread_mutex_lock(&g->lock);
	const bool mine = number >= 0 && g->started >> channel & 1 && g->calls[channel].use == (uint32_t)number / THREAD_CHANNELS;
	if (mine)
		g->started &= ~(1u << channel);
	pthread_mutex_unlock(&g->lock);
	if (!mine)
		return fail(EINVAL, "operation %d: no exanet_gsas_start of this thread returned that number, or it has ended", number);
	return checked(gsas_finish(g, number, values));
}

int exanet_gsas_load64(exanet_gsas *g, uint64_t a, uint64_t *v) { return perform(g, EXANET_LOAD64, a, NULL, v); }
int exanet_gsas_load128(exanet_gsas *g, uint64_t a, uint64_t v[2]) { return perform(g, EXANET_LOAD128, a, NULL, v); }
int exanet_gsas_load256(exanet_gsas *g, uint64_t a, uint64_t v[4]) { return perform(g, EXANET_LOAD256, a, NULL, v); }
int exanet_gsas_store64(exanet_gsas *g, uint64_t a, uint64_t v) { return perform(g, EXANET_STORE64, a, &v, NULL); }
int exanet_gsas_store128(exanet_gsas *g, uint64_t a, const uint64_t v[2]) { return perform(g, EXANET_STORE128, a, v, NULL); }
int exanet_gsas_store256(exanet_gsas *g, uint64_t a, const uint64_t v[4]) { return perform(g, EXANET_STORE256, a, v, NULL); }
int exanet_gsas_fetch_add(exanet_gsas *g, uint64_t a, uint64_t v, uint64_t *old) { return perform(g, EXANET_FETCH_ADD, a, &v, old); }
int exanet_gsas_swap(exanet_gsas *g, uint64_t a, uint64_t v, uint64_t *old) { return perform(g, EXANET_SWAP, a, &v, old); }
int exanet_gsas_fetch_and(exanet_gsas *g, uint64_t a, uint64_t v, uint64_t *old) { return perform(g, EXANET_FETCH_AND, a, &v, old); }
int exanet_gsas_fetch_or(exanet_gsas *g, uint64_t a, uint64_t v, uint64_t *old) { return perform(g, EXANET_FETCH_OR, a, &v, old); }
int exanet_gsas_fetch_xor(exanet_gsas *g, uint64_t a, uint64_t v, uint64_t *old) { return perform(g, EXANET_FETCH_XOR, a, &v, old); }

int exanet_gsas_compare_swap(exanet_gsas *g, uint64_t a, uint64_t expected, uint64_t v, uint64_t *old)
{
	return perform(g, EXANET_COMPARE_SWAP, a, (const uint64_t[]){ expected, v }, old);
}

int exanet_gsas_compare_swap128(exanet_gsas *g, uint64_t a, const uint64_t expected[2], const uint64_t v[2], uint64_t old[2])
{
	return perform(g, EXANET_COMPARE_SWAP128, a, (const uint64_t[]){ expected[0], expected[1], v[0], v[1] }, old);
}

int exanet_gsas_compare_store256(exanet_gsas *g, uint64_t a, uint64_t expected, const uint64_t v[4], uint64_t old[4])
{
	return perform(g, EXANET_COMPARE_STORE256, a, (const uint64_t[]){ expected, v[0], v[1], v[2], v[3] }, old);
}

int exanet_gsas_alloc(exanet_gsas *g, uint32_t node, uint64_t pages, uint64_t hint, uint64_t *address)
{
	UNCANCELLED;
	*address = 0;
	if (node > 0xfffe)
		return fail(EFAULT, "alloc: node %" PRIu32 " has no partition: the last one is 65534", node);
	return gsas_call(g, OP_ALLOC, exanet_gsas_at(node, 0), (const uint64_t[]){ pages, hint }, address);
}

int exanet_gsas_free(exanet_gsas *g, uint64_t a) { return perform(g, OP_FREE, a, (const uint64_t[]){ 0 }, NULL); }

int exanet_gsas_alive(exanet_gsas *g, uint32_t thread)
{
	UNCANCELLED;
	uint64_t lives = 0;
	const uint32_t own = g->id & 0x3ffff, its = thread & 0x3ffff, node = thread > 0xffffff || its > 0xfffe ? own : its;
	const int error = gsas_call(g, OP_ALIVE, exanet_gsas_at(node, 0), (const uint64_t[]){ thread }, &lives);
	if (error == -EFAULT && node != own)	/* the thread's host is gone */
		return 0;
	return error ? error : lives != 0;
}

/* map_memory maps the tree's memory on this node, with the lock held. */
static int map_memory(exanet_gsas *g)
{
	struct stat st;
	if (g->map)
		return 0;
	if (fstat(g->memory, &st) || st.st_size < (off_t)REGION)	/* pfd has sealed it against shrinking */
		return fail(EPROTO, "pfd violates the protocol");
	void *p = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, g->memory, 0);
	if (p == MAP_FAILED)
		return fail(errno, "map the memory of a tree: %m");
	madvise(p, REGION, MADV_DONTFORK);	/* a child is in no tree */
	if (!(g->e->flags & EXANET_DUMP))
		madvise(p, REGION, MADV_DONTDUMP);
	g->map = p;
	return 0;
}

int exanet_gsas_map(exanet_gsas *g, uint64_t a, size_t size, void **memory)
{
	UNCANCELLED;
	const uint64_t at = a % REGION, directory = exanet_gsas_directory(g), in = a - directory;
	const bool here = (a & OFFSET) / REGION == g->region && size <= REGION - DIRECTORY_PAGES * EXANET_GSAS_PAGE &&
			  at <= REGION - DIRECTORY_PAGES * EXANET_GSAS_PAGE - size;
	*memory = NULL;
	if (inherited(g->e))
		return refuse_child(g->e);
	if (exanet_gsas_node(a) != (int)(g->id & 0x3ffff) || !(here || (in < EXANET_GSAS_PAGE && size <= EXANET_GSAS_PAGE - in)))
		return fail(EFAULT, "map %zu bytes at %#" PRIx64 ": they are not in the memory of this tree on node %d", size, a, (int)(g->id & 0x3ffff));
	pthread_mutex_lock(&g->lock);
	const int error = map_memory(g);
	pthread_mutex_unlock(&g->lock);
	if (!error)
		*memory = (char *)g->map + at;
	return error;
}
