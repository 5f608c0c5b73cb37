/* Transfers, waiting, and the faults that the process serves itself (docs/attach.md 3 to 6). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { MS = 1000000, OFFER = 2000, CROWDED_YIELD = 200000, CROWDED = 100 * MS, UNREAD = 5 * MS, PAUSE = 10000, PAUSE_MOST = 16 * MS, LOOK_WORD = 2 * MS, LOOK_TRANSFER = 10 * MS };	/* ns */

/* A transfer's number: the count of its place's uses, and the place (channels, then reads). */
enum { PLACE_BITS = 6, PLACES = 1 << PLACE_BITS, USES = 1 << 24 };

int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* kick announces to pfd that something was published (4). */
void kick(exanet *e)
{
	const uint64_t one = 1;
	__atomic_fetch_add((uint32_t *)(e->pages + KICK), 1, __ATOMIC_SEQ_CST);
	if (load32(e->pages + ASLEEP))
		while (write(e->eventfd, &one, sizeof one) < 0 && errno == EINTR)
			;	/* EAGAIN: the counter is full, so pfd wakes */
}

void rest(int64_t *pause, int64_t most)
{
	const struct timespec t = { 0, *pause };
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL);
	*pause += *pause / 4;
	if (*pause > most)
		*pause = most;
}

unsigned char *packetizer(exanet *e, int channel) { return e->pages + PACKETIZER + PACKETIZER_CHANNEL * channel; }

/* taken waits until pfd has read the message in a packetizer channel; false: the attachment has ended. It
 * spins for SPIN, then sleeps longer each time: pfd may be stopped, or may need this processor, which
 * sched_yield does not release if this thread is a real-time one or in another scheduling group. */
static bool taken(exanet *e, int channel)
{
	const unsigned char *c = packetizer(e, channel);
	for (int64_t began = now(); now() - began < SPIN;)
		if (!load64(c + PACKETIZER_SEND))
			return true;
	for (int64_t pause = PAUSE; load64(c + PACKETIZER_SEND); rest(&pause, PAUSE_MOST))
		if (gone(e))
			return false;
	return true;
}

void publish_in(unsigned char *port, int channel, uint64_t destination, const uint64_t *words, int n, uint32_t number)
{
	unsigned char *c = port + PACKETIZER_CHANNEL * channel;
	store64(c, destination);
	for (int i = 0; i < n; i++)
		store64(c + 8 + 8 * i, words[i]);
	store64(c + PACKETIZER_STATUS, 1);
	store64(c + PACKETIZER_SEND, n | (uint64_t)number << 16);
}

void publish(exanet *e, int channel, uint64_t destination, const uint64_t *words, int n, uint32_t number)
{
	publish_in(e->pages + PACKETIZER, channel, destination, words, n, number);
	kick(e);
}

bool refused(exanet *e, int channel) { return load64(packetizer(e, channel) + PACKETIZER_STATUS) != 0; }

/* send_words waits for a channel that one thread uses, writes words to it, and waits until pfd has read
 * them: 0, or -1: refused, or the attachment has ended. */
static int send_words(exanet *e, int channel, uint32_t node, int mailbox, const uint64_t *words, int n)
{
	if (!taken(e, channel))
		return -1;
	publish(e, channel, node | (uint64_t)mailbox << 24, words, n, 0);
	return taken(e, channel) && !refused(e, channel) ? 0 : -1;
}

bool gone(exanet *e)
{
	char c;
	if (load32(e->pages + STATE))
		return true;
	store64(&e->looked, now());
	return recv(e->socket, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

bool over(exanet *e, int64_t ns) { return load32(e->pages + STATE) || (now() - (int64_t)load64(&e->looked) > ns && gone(e)); }

bool wait_event(unsigned char *port, uint32_t was, int64_t ns)
{
	const struct timespec t = { ns / 1000000000, ns % 1000000000 };
	return !syscall(SYS_futex, port + (EVENT - PACKETIZER), FUTEX_WAIT, was, &t, NULL, 0) || errno != ETIMEDOUT;
}

void tell_waiters(exanet *e)
{
	__atomic_fetch_add((uint32_t *)(e->pages + EVENT), 1, __ATOMIC_SEQ_CST);
	if (load32(e->pages + WAITERS))
		syscall(SYS_futex, e->pages + EVENT, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void stamp(exanet *e, int channel, int which)
{
	if (load32(e->pages + WATCHED))
		store64(e->pages + STAMPS + 16 * channel + 8 * which, now() - e->time_offset);
}

/* announce announces a channel to pfd, by the doorbell word and by a message; one is enough (5). */
static bool announce(exanet *e, int channel)
{
	uint64_t none = 0;
	const uint64_t word = 3 | (uint64_t)e->info.pdid << 2 | (uint64_t)(64 * e->info.slot + channel) << 18;
	bool rung = __atomic_compare_exchange_n((uint64_t *)(e->pages + DOORBELL), &none, channel + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	if (rung)
		kick(e);
	return rung || send_words(e, SEND_DOORBELL, e->info.node, 1, &word, 1) == 0;
}

/* doorbell_free reports whether pfd has read the doorbell word, under the lock: then announce does not wait. It waits
 * as taken does, but not for long, and not soon after it did so in vain: pfd may be stopped. */
static bool doorbell_free(exanet *e)
{
	const int64_t began = now();
	int64_t pause = PAUSE;
	for (int64_t at = began; load64(e->pages + DOORBELL); at = now()) {
		if (at - began > UNREAD)
			e->unread = at + 10 * UNREAD;
		if (at < e->unread)
			return false;
		if (at - began > SPIN)
			rest(&pause, PAUSE_MOST);
	}
	return true;
}

static int check(const exanet *e, const struct exanet_transfer *t)
{
	const uint64_t limit = UINT64_C(1) << e->info.address_bits, local = (uintptr_t)t->local;
	if (inherited(e))
		return refuse_child(e);
	if (!t->size)
		return fail(EINVAL, "a transfer of 0 bytes: give at least 1");
	if (t->offset > t->remote.length || t->remote.length - t->offset < t->size)
		return fail(EINVAL, "%" PRIu32 " bytes at offset %" PRIu64 " of %" PRIu64 " exported bytes", t->size, t->offset, t->remote.length);
	if (local >= limit || t->size > limit - local)
		return fail(EINVAL, "the local address exceeds the node's %d address bits", e->info.address_bits);
	if (t->notify % 16)
		return fail(EINVAL, "the notification's address is not aligned to 16");
	return 0;
}

int exanet_write(exanet *e, const struct exanet_transfer *t)
{
	UNCANCELLED;
	int error = check(e, t), channel;
	if (error)
		return error;
	pthread_mutex_lock(&e->lock);
	if (over(e, MS)) {
		error = fail(ENOTCONN, "the attachment has ended: attach again");
		goto out;
	}
	if (t->flags & WRITE_SOON && !doorbell_free(e)) {
		error = fail(EBUSY, "pfd does not read the doorbell");
		goto out;
	}
	for (channel = 0; channel < CHANNELS; channel++) {
		uint32_t done = load32(e->pages + DESCRIPTOR * channel + DONE);
		if (!(e->busy >> channel & 1) && (done == DONE_NEVER || done == DONE_OK || done == DONE_FAILED))
			break;
	}
	if (channel == CHANNELS) {
		error = fail(EBUSY, "all %d channels have a transfer: wait for one", CHANNELS);
		goto out;
	}
	stamp(e, channel, 0);
	unsigned char *d = e->pages + DESCRIPTOR * channel;
	store64(d, (uintptr_t)t->local);
	store64(d + 8, t->remote.address + t->offset);
	store64(d + 16, t->notify);
	store64(d + 24, t->first);
	store64(d + 32, t->last);
	store32(d + 40, t->size);
	store64(d + ROUTE, t->remote.node | (uint64_t)t->remote.pdid << 32 | (uint64_t)(t->flags & EXANET_URGENT) << 62);
	store64(d + RESULT, (uint64_t)t->remote.generation << 32);
	store32(d + DONE, DONE_READY);	/* last */
	e->busy |= 1u << channel;
	e->use[channel]++;
	if (!announce(e, channel)) {
		store32(d + DONE, DONE_NEVER);
		e->busy &= ~(1u << channel);
		error = fail(ENOTCONN, "pfd does not read the doorbell: the attachment has ended");
		goto out;
	}
	error = (int)(e->use[channel] % USES << PLACE_BITS | channel);
out:
	pthread_mutex_unlock(&e->lock);
	return error;
}

/* asked records that a read's request was sent, under the lock (3, Read). */
static void asked(exanet *e, struct read *r)
{
	r->due = now() + r->pause;
	r->pause = r->pause * 2 > 320 * MS ? 320 * MS : r->pause * 2;
	e->asking = r;
	r->sent = false;
}

/* settle_asked records whether pfd refused the last request, if ask_soon sent it: its read's poll reports that. */
static void settle_asked(exanet *e)
{
	struct read *r = e->asking;
	if (!r || !r->sent || load64(packetizer(e, SEND_READ) + PACKETIZER_SEND))
		return;
	r->sent = false;
	if (refused(e, SEND_READ)) {
		r->words[0] = 0;
		r->words[1] = STATUS_ADDRESS;
	}
}

/* ask_soon waits until pfd has read the request before this one, but not this one. */
static int ask_soon(exanet *e, struct read *r)
{
	if (!taken(e, SEND_READ))
		return -1;
	settle_asked(e);
	asked(e, r);
	r->sent = true;
	publish(e, SEND_READ, r->node | 2 << 24, r->words, 7, 0);
	return 0;
}

static int ask(exanet *e, struct read *r)
{
	asked(e, r);
	return send_words(e, SEND_READ, r->node, 2, r->words, 7);
}

/* ask_again does not wait: if pfd has not read the last request, a later poll asks. It returns false if the
 * node refuses. */
static bool ask_again(exanet *e, struct read *r)
{
	if (load64(packetizer(e, SEND_READ) + PACKETIZER_SEND))
		return true;
	if (e->asking == r && refused(e, SEND_READ))
		return false;
	asked(e, r);
	publish(e, SEND_READ, r->node | 2 << 24, r->words, 7, 0);
	return true;
}

int exanet_read(exanet *e, const struct exanet_transfer *t)
{
	UNCANCELLED;
	int error = check(e, t), place;
	if (error)
		return error;
	if (t->notify)
		return fail(EINVAL, "a read has no notification: exanet_wait returns its end");
	pthread_mutex_lock(&e->lock);
	if (over(e, MS)) {
		error = fail(ENOTCONN, "the attachment has ended: attach again");
		goto out;
	}
	if ((error = make_words(e)))
		goto out;
	for (place = 0; place < READS && e->reads[place].open; place++)
		;
	if (place == READS) {
		error = fail(EBUSY, "%d reads are open: wait for one", READS);
		goto out;
	}
	struct read *r = &e->reads[place];
	r->use++;
	r->open = true;
	r->cancelled = r->sent = false;
	r->node = t->remote.node;
	r->tag = (r->use * READS | place) & 0x3fff;	/* tags repeat after 512 uses */
	r->last = ++e->last;
	r->pause = 20 * MS;
	uint64_t *word = e->words + 2 * place;
	store64(word + 1, 0);
	const uint64_t words[7] = {
		1 | (uint64_t)e->info.pdid << 2 | (uint64_t)r->tag << 18 | (uint64_t)t->size << 32,
		t->remote.address + t->offset, (uintptr_t)t->local, (uintptr_t)word, r->last, r->last,
		t->remote.pdid | (uint64_t)t->remote.generation << 32,
	};
	memcpy(r->words, words, sizeof words);
	error = (int)(r->use % USES << PLACE_BITS | CHANNELS | place);
	if (t->flags & EXANET_NOWAIT ? ask_soon(e, r) : ask(e, r)) {
		r->open = false;
		error = fail(EHOSTUNREACH, "the node refuses the read's request: no such node, or too many reads are open");
	}
out:
	pthread_mutex_unlock(&e->lock);
	return error;
}

/* take_mail empties the mailbox's ring, under the lock: of messages, whatever room they have, and of the
 * answers of targets' firmware. It accepts answers only from a source with PDID 0, which no process has. It
 * returns the status of mine, 0: none. */
int take_mail(exanet *e, struct read *mine)
{
	int status = 0;
	uint32_t head = load32(e->pages + MAIL_HEAD);
	while (head != load32(e->pages + MAIL_TAIL)) {
		unsigned char *m = e->pages + MAIL + MAIL_SIZE * (head % MAIL_SLOTS);
		uint64_t source = load64(m), word = load64(m + 8);
		const bool message = keep_message(e, source, m + 8);
		store32(e->pages + MAIL_HEAD, head + 1);
		if (load32(e->pages + MAIL_TAIL) - head++ >= MAIL_SLOTS)	/* after the store: pfd stores the tail, then loads the head */
			kick(e);
		uint16_t tag = word >> 2 & 0x3fff;
		struct read *r = &e->reads[tag % READS];
		if (message || (word & 3) || !r->open || r->tag != tag || r->node != (source & 0x3fffff))
			continue;
		int code = word >> 32 & 0xff;
		if (r->cancelled && code)
			code = STATUS_ABORTED;
		if (code == 0) {	/* refused: ask again, for a cancel, too: another request may have been accepted */
			r->due = now() + MS;
		} else if (r == mine) {
			status = code;
		} else {	/* kept until its read is polled */
			r->words[0] = 0;
			r->words[1] = code;
		}
	}
	return status;
}

static int poll_read(exanet *e, struct read *r)
{
	const bool ended = over(e, MS);	/* before the checks: what arrived before the end is reported */
	int status = take_mail(e, r);
	settle_asked(e);
	if (load64(e->words + 2 * (r - e->reads) + 1) == r->last) {
		r->open = false;
		return 0;
	}
	if (!status && !r->words[0])
		status = r->words[1];
	if (!status && ended)
		status = STATUS_GONE;
	if (!status && now() >= r->due && !ask_again(e, r))
		status = STATUS_ADDRESS;
	if (!status)
		return EXANET_ONGOING;
	r->open = false;
	return status;
}

static int poll_write(exanet *e, int channel)
{
	const unsigned char *d = e->pages + DESCRIPTOR * channel;
	uint32_t done = load32(d + DONE);
	const bool ended = done != DONE_OK && done != DONE_FAILED && over(e, MS);
	int status;
	if (ended)
		done = load32(d + DONE);	/* it may have arrived before the end */
	if (done == DONE_OK)
		status = 0;
	else if (done == DONE_FAILED)
		status = load64(d + RESULT) & 0xff;
	else if (ended)
		status = STATUS_GONE;
	else
		return EXANET_ONGOING;
	stamp(e, channel, 1);
	e->busy &= ~(1u << channel);
	return status;
}

/* begun reports whether a transfer had this number; after 2^24 uses of a place each had. */
static bool begun(exanet *e, int place, uint32_t use)
{
	uint32_t uses = place < CHANNELS ? e->use[place] : e->reads[place - CHANNELS].use;
	return uses >= USES || (use && use <= uses);
}

int exanet_poll(exanet *e, int transfer)
{
	int place = transfer & (PLACES - 1), status;
	uint32_t use = (uint32_t)transfer >> PLACE_BITS;
	if (inherited(e))
		return refuse_child(e);
	if (transfer >= 0 && place < CHANNELS && load32(e->pages + DESCRIPTOR * place + DONE) == 2 && !load32(e->pages + STATE) &&
	    now() - (int64_t)load64(&e->looked) < MS)
		return EXANET_ONGOING;	/* without the lock: the usual case */
	UNCANCELLED;
	pthread_mutex_lock(&e->lock);
	if (transfer < 0)
		status = fail(EINVAL, "%d is not a transfer's number", transfer);
	else if (place < CHANNELS && e->busy >> place & 1 && e->use[place] % USES == use)
		status = poll_write(e, place);
	else if (place >= CHANNELS && e->reads[place - CHANNELS].open && e->reads[place - CHANNELS].use % USES == use)
		status = poll_read(e, &e->reads[place - CHANNELS]);
	else
		status = fail(EINVAL, begun(e, place, use) ? "transfer %d has ended: its end was returned already" :
			      "transfer %d: no exanet_write or exanet_read of this attachment returned that number", transfer);
	pthread_mutex_unlock(&e->lock);
	return status;
}

bool offer(exanet *e, int64_t began, int64_t at)
{
	if (at - began < OFFER)
		return true;
	if ((int64_t)load64(&e->crowded) > at)
		return false;
	sched_yield();	/* pfd and the sender of a message may need this processor */
	if (now() - at <= CROWDED_YIELD)
		return true;
	store64(&e->crowded, now() + CROWDED);	/* others use it: sleeping takes less */
	return false;
}

int sleep_on(exanet *e, unsigned char *port, int timeout, int64_t most, int (*done)(exanet *, const void *), const void *arg)
{
	UNCANCELLED;
	const int64_t began = now(), end = timeout < 0 ? INT64_MAX : began + (int64_t)timeout * MS;
	int status;
	for (int64_t at; (status = done(e, arg)) == EXANET_ONGOING && (at = now()) - began < SPIN && at < end;)
		if (!offer(e, began, at))
			break;
	if (status != EXANET_ONGOING)
		return status;
	__atomic_fetch_add((uint32_t *)(port + (WAITERS - PACKETIZER)), 1, __ATOMIC_SEQ_CST);
	for (;;) {
		uint32_t was = load32(port + (EVENT - PACKETIZER));
		int64_t at, pause;
		if ((status = done(e, arg)) != EXANET_ONGOING || (at = now()) >= end)
			break;
		pause = (at - began) / 16;
		pause = pause < MS ? MS : pause > most ? most : pause;
		wait_event(port, was, end - at < pause ? end - at : pause);
	}
	__atomic_fetch_sub((uint32_t *)(port + (WAITERS - PACKETIZER)), 1, __ATOMIC_SEQ_CST);
	return status;
}

int sleep_until(exanet *e, int timeout, int64_t most, int (*done)(exanet *, const void *), const void *arg)
{
	return sleep_on(e, e->pages + PACKETIZER, timeout, most, done, arg);
}

uint32_t exanet_events(const exanet *e) { return inherited(e) ? 0 : load32(e->pages + EVENT); }

int exanet_events_wait(exanet *e, uint32_t seen, int64_t ns)
{
	UNCANCELLED;
	if (inherited(e))
		return refuse_child(e);
	__atomic_fetch_add((uint32_t *)(e->pages + WAITERS), 1, __ATOMIC_SEQ_CST);
	const bool came = wait_event(e->pages + PACKETIZER, seen, ns);
	__atomic_fetch_sub((uint32_t *)(e->pages + WAITERS), 1, __ATOMIC_SEQ_CST);
	return load32(e->pages + STATE) || (!came && gone(e)) ? fail(ENOTCONN, "the attachment has ended: attach again") : 0;
}

static int transfer_done(exanet *e, const void *transfer) { return exanet_poll(e, *(const int *)transfer); }

int exanet_wait(exanet *e, int transfer, int timeout) { return sleep_until(e, timeout, LOOK_TRANSFER, transfer_done, &transfer); }

struct awaited {
	const uint64_t *word;
	uint64_t value;
};

static int word_done(exanet *e, const void *arg)
{
	const struct awaited *a = arg;
	const bool ended = load64(a->word) != a->value && gone(e);
	if (load64(a->word) == a->value)	/* it may have arrived before the end */
		return 0;
	return ended ? fail(ENOTCONN, "the attachment has ended: attach again") : EXANET_ONGOING;
}

int exanet_wait_word(exanet *e, const uint64_t *word, uint64_t value, int timeout)
{
	const struct awaited a = { word, value };
	if (inherited(e))
		return refuse_child(e);
	int status = sleep_until(e, timeout, LOOK_WORD, word_done, &a);
	return status == EXANET_ONGOING ? fail(ETIMEDOUT, "the word has not arrived in time") : status;
}

int exanet_abort(exanet *e, int transfer)
{
	UNCANCELLED;
	int place = transfer & (PLACES - 1), result = 0;
	uint32_t use = (uint32_t)transfer >> PLACE_BITS;
	if (inherited(e))
		return refuse_child(e);
	pthread_mutex_lock(&e->lock);
	if (transfer >= 0 && place < CHANNELS && e->busy >> place & 1 && e->use[place] % USES == use) {
		__atomic_fetch_or((uint64_t *)(e->pages + DESCRIPTOR * place + ROUTE), UINT64_C(1) << 61, __ATOMIC_SEQ_CST);
		if (!announce(e, place))
			result = fail(ENOTCONN, "the attachment has ended");
	} else if (transfer >= 0 && place >= CHANNELS && e->reads[place - CHANNELS].open && e->reads[place - CHANNELS].use % USES == use) {
		struct read *r = &e->reads[place - CHANNELS];
		r->cancelled = true;
		r->words[0] &= UINT32_MAX;	/* a request of size 0 cancels */
		r->pause = 20 * MS;
		if (ask(e, r))
			result = fail(ENOTCONN, "the node refuses the request");
	}
	pthread_mutex_unlock(&e->lock);
	return result;
}

int exanet_prefetch(exanet *e, void *address, size_t size, int write)
{
	if (inherited(e))
		return refuse_child(e);
	if (size > UINTPTR_MAX - 4095 - (uintptr_t)address)
		return fail(EINVAL, "page in %zu bytes at %p: they pass the end of the address space", size, address);
	const uintptr_t first = (uintptr_t)address & ~(uintptr_t)4095, end = ((uintptr_t)address + size + 4095) & ~(uintptr_t)4095;
	if (madvise((void *)first, end - first, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
		return fail(errno, "page in %zu bytes at %p: %m", size, address);
	return 0;
}

void exanet_export(const exanet *e, const void *p, uint64_t length, struct exanet_remote *r)
{
	*r = (struct exanet_remote){ 0 };
	if (!inherited(e))
		*r = (struct exanet_remote){ e->info.node, e->info.generation, e->info.pdid, MAILBOX_PROCESS + e->info.slot, (uintptr_t)p, length };
}

int exanet_remote_text(const struct exanet_remote *r, char *text, size_t size)
{
	int n = snprintf(text, size, "exanet2:%06" PRIx32 ":%04x:%08" PRIx32 ":%016" PRIx64 ":%016" PRIx64, r->node, r->pdid, r->generation, r->address, r->length);
	if (r->interface && n >= 0)
		n += snprintf(text + ((size_t)n < size ? (size_t)n : size), (size_t)n < size ? size - n : 0, ":%02x", r->interface);
	return n >= 0 && (size_t)n < size ? 0 : fail(ENOSPC, "a remote's text has %d bytes", n + 1);
}

/* digits parses exactly n lower-case hexadecimal digits. */
static bool digits(const char **s, int n, uint64_t *v)
{
	*v = 0;
	for (; n; n--, (*s)++) {
		int c = **s;
		if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f'))
			return false;
		*v = *v << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
	}
	return true;
}

enum { REMOTE_TEXT = 7 + 7 + 5 + 9 + 17 + 17 };	/* without the interface */

int exanet_remote_parse(const char *text, struct exanet_remote *r)
{
	static const int sizes[] = { 6, 4, 8, 16, 16, 2 };
	const char *s = text + 7;
	uint64_t v[6] = { 0 };
	bool right = !strncmp(text, "exanet2", 7);
	for (int i = 0; right && i < 6 && (i < 5 || *s); i++)
		right = *s++ == ':' && digits(&s, sizes[i], &v[i]);
	if (!right || *s || v[0] > 0x3fffff || !v[4] || v[3] + v[4] - 1 < v[3] || (s - text > REMOTE_TEXT && v[5] / SLOTS != MAILBOX_PROCESS / SLOTS))
		return fail(EINVAL, "\"%.80s\" is not of the form exanet2:NODE:PDID:GENERATION:ADDRESS:LENGTH[:INTERFACE]", text);
	*r = (struct exanet_remote){ v[0], v[2], v[1], v[5], v[3], v[4] };
	return 0;
}

const char *exanet_status(int status)
{
	static const char *const texts[] = {
		"finished", "memory of the transfer does not answer: its pages are not paged in",
		"an address is not mapped, lies beyond the end of its file, may not be accessed, is not shared with the device (exanet_alloc, exanet_share), or cannot be reached, or no host has that node",
		"the target node has no receive context left", "packets arrive corrupted", "the target does not admit this domain, or not to this memory, or has ended; between hosts the group must be in the file groups of both pfds",
		"a reserved code", "the target's buffer is full", "a block made no progress within the retransmission limit",
		"aborted", "the attachment, its domain or the node is gone, or the node's host is drained", "the kernel does not page in memory of the transfer",
	};
	if (status == EXANET_ONGOING)
		return "not ended yet";
	return status >= 0 && (size_t)status < sizeof texts / sizeof texts[0] ? texts[status] : "unknown status";
}

/* served reports to pfd that a message was served, and the errno of its first page (6). */
static void served(exanet *e, uint32_t seq, int error)
{
	store32(e->pages + SERVED_ERRNO, error);
	store32(e->pages + SERVED, seq);
	syscall(SYS_futex, e->pages + SERVED, FUTEX_WAKE, 1, NULL, NULL, 0);
}

enum { HANGS = 100 * MS, NEAR = 256 };	/* after HANGS a page counts as one that hangs; NEAR pages of one mapping usually have the same server */

/* turn returns after how many ms a thread may take a message, 0: now. While another thread pages in and does
 * not hang yet, that one goes first. */
static int turn(struct server *s)
{
	exanet *e = s->e;
	int64_t left = 0;
	const int64_t at = now();
	pthread_mutex_lock(&e->serving);
	for (unsigned i = 0; i < e->nservers; i++) {
		const struct server *o = &e->servers[i];
		if (o != s && o->page && o->since + HANGS - at > left)
			left = o->since + HANGS - at;
	}
	pthread_mutex_unlock(&e->serving);
	return left > 0 ? left / MS + 1 : 0;
}

/* hangs reports whether a thread has slept in the page for long, or two have in pages from first to last. */
static bool hangs(const struct server *s, int64_t at, uint64_t page, uint64_t first, uint64_t last)
{
	int near = 0;
	for (unsigned i = 0; i < s->e->nservers; i++) {
		const struct server *o = &s->e->servers[i];
		if (o == s || !o->page || at - o->since <= HANGS)
			continue;
		near += first <= o->page && o->page <= last;
		if (o->page == page || near == 2)
			return true;
	}
	return false;
}

/* mapping narrows first and last to the mapping of a page, if the kernel reports it (Linux 6.11). */
static void mapping(uint64_t page, uint64_t *first, uint64_t *last)
{
	/* struct procmap_query and PROCMAP_QUERY of linux/fs.h; the installed header may be older */
	struct { uint64_t size, flags, addr, start, end, rest[8]; } q = { .size = sizeof q, .addr = page << 12 };
	const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && !ioctl(fd, _IOWR('f', 17, __typeof__(q)), &q)) {
		if (*first < q.start >> 12)
			*first = q.start >> 12;
		if (*last >= q.end >> 12)
			*last = (q.end >> 12) - 1;
	}
	if (fd >= 0)
		close(fd);
}

/* begin_page records the page in which a thread is about to sleep. It returns false if another sleeps there
 * and pfd has asked again, or two sleep near by in its mapping. If no thread is left idle it starts one; if
 * that fails, messages wait. */
static bool begin_page(struct server *s, uint64_t page)
{
	exanet *e = s->e;
	bool idle = false;
	const int64_t at = now();
	uint64_t first = page - NEAR, last = page + NEAR;
	pthread_mutex_lock(&e->serving);
	for (unsigned i = 0; i < e->nservers; i++)
		idle |= &e->servers[i] != s && !e->servers[i].page;
	bool sleeps = hangs(s, at, page, first, last);
	if (sleeps) {
		mapping(page, &first, &last);
		sleeps = hangs(s, at, page, first, last);
	}
	if (!sleeps) {
		s->page = page;
		s->since = at;
		if (!idle && e->nservers)	/* 0: the attachment ends */
			start_server(e);
	}
	pthread_mutex_unlock(&e->serving);
	return !sleeps;
}

/* serve handles one fault message: it pages in, and answers. */
static void serve(struct server *s, const char *t, uint32_t seq)
{
	exanet *e = s->e;
	uint64_t node, transaction, sequence, index, page, pdid, write, pages = 1;
	bool wide = t[0] == '2' && t[1] == ':';
	if (wide)
		t += 2;
	if (!digits(&t, 6, &node) || !digits(&t, 4, &transaction) || !digits(&t, 4, &sequence) || (wide && !digits(&t, 1, &index)) ||
	    !digits(&t, wide ? 12 : 8, &page) || !digits(&t, 4, &pdid) || !digits(&t, 1, &write) || (wide && !digits(&t, 4, &pages)))
		return;
	if (!begin_page(s, page))
		return;
	int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	char *first = (char *)(uintptr_t)(page << 12);
	int error = madvise(first, 4096, advice) ? errno : 0;	/* only the first page decides */
	if (!error && pages > 1)
		madvise(first + 4096, (pages - 1) * 4096, advice);
	if (!pdid) {	/* pfd asks for the retransmission itself */
		pthread_mutex_lock(&e->serving);
		if (now() - s->since < HANGS)	/* else pfd waits for the answer to a later fault */
			served(e, seq, error);
		s->page = 0;
		pthread_mutex_unlock(&e->serving);
		return;
	}
	const uint64_t rapf = 2 | pdid << 2 | transaction << 18 | (sequence & 0xfff) << 32 | pdid << 44 | (sequence >> 12) << 60 | (uint64_t)!!error << 62;
	pthread_mutex_lock(&e->serving);
	s->page = 0;
	if (taken(e, SEND_FAULT))
		publish(e, SEND_FAULT, node | 1 << 24, &rapf, 1, 0);	/* a refused one is repeated by the retransmission limit */
	pthread_mutex_unlock(&e->serving);
}

static void *serve_faults(void *arg)
{
	struct server *s = arg;
	exanet *e = s->e;
	for (;;) {
		char text[256];
		union { char b[CMSG_SPACE(sizeof(struct ucred))]; struct cmsghdr align; } control;
		struct sockaddr_nl from;
		struct nlmsghdr h;
		struct iovec iov[2] = { { &h, sizeof h }, { text, sizeof text - 1 } };
		struct msghdr msg = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = iov, .msg_iovlen = 2,
				      .msg_control = control.b, .msg_controllen = sizeof control.b };
		struct epoll_event events[2];
		for (int k = epoll_wait(s->epoll, events, 2, -1); k > 0; k--)
			if (events[k - 1].data.fd == e->stop)
				return NULL;
		const int wait = turn(s);
		if (wait) {
			poll(&(struct pollfd){ .fd = e->stop, .events = POLLIN }, 1, wait);
			continue;
		}
		ssize_t n = recvmsg(e->netlink, &msg, MSG_DONTWAIT);
		if (n < (ssize_t)sizeof h)
			continue;
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		struct ucred cred = { 0 };
		if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS)
			memcpy(&cred, CMSG_DATA(c), sizeof cred);
		if (from.nl_pid != e->pfd_port || cred.pid != e->pfd_pid || cred.uid != e->pfd.uid || h.nlmsg_type < 0x10)
			continue;	/* not from pfd: dropped */
		text[n - sizeof h] = 0;
		serve(s, text, h.nlmsg_seq);
	}
}

enum { STACK = 64 << 10 };	/* a process that locks its memory (MCL_FUTURE) has whole stacks in memory */

/* add_variables adds the size of an object's thread-local variables, which are part of each stack. */
static int add_variables(struct dl_phdr_info *object, size_t size, void *sum)
{
	(void)size;
	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += object->dlpi_phdr[i].p_memsz + object->dlpi_phdr[i].p_align;
	return 0;
}

int start_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
	pthread_attr_t small;
	size_t size = STACK;
	dl_iterate_phdr(add_variables, &size);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, size);
	const int error = pthread_create(thread, &small, run, arg);
	pthread_attr_destroy(&small);
	/* EINVAL: the C library reserves more room for variables (GLIBC_TUNABLES). */
	return error == EINVAL ? pthread_create(thread, NULL, run, arg) : error;
}

int start_server(exanet *e)
{
	if (e->nservers == SERVERS)
		return EAGAIN;
	struct server *s = &e->servers[e->nservers];
	struct epoll_event fault = { .events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = e->netlink };	/* wakes one thread */
	struct epoll_event stop = { .events = EPOLLIN, .data.fd = e->stop };
	*s = (struct server){ .e = e, .epoll = epoll_create1(EPOLL_CLOEXEC) };
	if (s->epoll < 0)
		return errno;
	int error = epoll_ctl(s->epoll, EPOLL_CTL_ADD, e->netlink, &fault) || epoll_ctl(s->epoll, EPOLL_CTL_ADD, e->stop, &stop) ? errno : 0;
	if (!error)
		error = start_thread(&s->thread, serve_faults, s);
	if (error)
		close(s->epoll);
	else
		e->nservers++;
	return error;
}
