/* Messages between processes (docs/attach.md 3). */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { KEPT = 1024 };	/* messages of a kind; as many refusals have room beyond them */
enum { NUMBER_BITS = 14, NUMBER_MASK = (1 << NUMBER_BITS) - 1 };	/* of a number in SEND; the kind's index is above */
enum { PATIENCE = 100, LOOK_MESSAGE = 10000000 };	/* ms; ns: pfd wakes whoever waits for a message */

#define WIRED (UINT64_C(0xffff) << 2)

/* kind_index returns the index of a message's kind, -1: it is reserved. */
static int kind_index(uint64_t word)
{
	const int kind = word >> 18 & 0x3f;
	return kind == 0 ? 0 : kind >= 12 && kind <= 14 ? kind - 11 : -1;
}

/* keep hands a message to its kind's handler, or puts it into the kind's queue if fewer than most are there,
 * under the lock. */
static void keep(exanet *e, int index, const struct exanet_message *m, unsigned most)
{
	struct kind *k = &e->kinds[index];
	if (k->handler) {
		k->handler(k->arg, m);
		return;
	}
	if (!k->queue)
		k->queue = malloc(2 * KEPT * sizeof *k->queue);
	if (!k->queue || k->count >= most) {
		e->dropped++;
		return;
	}
	k->queue[(k->head + k->count++) % (2 * KEPT)] = *m;
	store32(&e->kept, e->kept + 1);
}

static void refusal(exanet *e, int index, uint32_t number, uint32_t node)
{
	const struct exanet_message m = { .node = node, .number = number };
	keep(e, index, &m, 2 * KEPT);
}

bool keep_message(exanet *e, uint64_t source, const unsigned char *words)
{
	struct exanet_message m = { .node = source & 0x3fffff, .pdid = source >> 32, .interface = source >> 24 & 0x3f, .count = source >> 56 & 0xf };
	const uint64_t first = load64(words);
	if (!m.pdid) {
		if ((first & 3) != 1)
			return false;
		const int index = first >> 32 >> NUMBER_BITS & (KINDS - 1);
		const uint32_t last = load32(&e->kinds[index].last);
		uint32_t number = last - ((last - (uint32_t)(first >> 32)) & NUMBER_MASK);
		if (!number || number > INT32_MAX)	/* before 1 is INT32_MAX */
			number += INT32_MAX;
		refusal(e, index, number, m.node);
		return true;
	}
	if (m.count > EXANET_WORDS)
		m.count = EXANET_WORDS;
	for (int i = 0; i < m.count; i++)
		m.words[i] = load64(words + 8 * i);
	m.words[0] &= ~WIRED;
	const int index = kind_index(first);
	if (index < 0 || !m.count)
		e->dropped++;
	else
		keep(e, index, &m, KEPT);
	return true;
}

void forget_messages(exanet *e)
{
	for (int i = 0; i < KINDS; i++)
		free(e->kinds[i].queue);
}

int exanet_handle(exanet *e, int kind, exanet_handler *handler, void *arg)
{
	const int index = kind_index((uint64_t)kind << 18);
	if (kind > 63 || index <= 0)
		return fail(EINVAL, "messages of kind %d have no handler", kind);
	pthread_mutex_lock(&e->lock);
	e->kinds[index].handler = handler;
	e->kinds[index].arg = arg;
	pthread_mutex_unlock(&e->lock);
	return 0;
}

static int check_message(const exanet *e, const struct exanet_remote *to, const uint64_t *words, int n)
{
	const struct exanet_info *own = &e->info;
	if (inherited(e))
		return refuse_child(e);
	if (n < 1 || n > EXANET_WORDS)
		return fail(EINVAL, "a message of %d words: it has 1 to %d", n, EXANET_WORDS);
	if (words[0] & WIRED)
		return fail(EINVAL, "the first word is %#" PRIx64 ": its bits [17:2] are the node's and must be zero", words[0]);
	if (kind_index(words[0]) < 0)
		return fail(EINVAL, "the first word is %#" PRIx64 ": its bits [23:18] are a kind that is reserved", words[0]);
	if (!to->interface)
		return fail(EINVAL, "the remote does not name its process's interface: take the text of a process of this version");
	if (to->interface / SLOTS != MAILBOX_PROCESS / SLOTS)
		return fail(EINVAL, "interface %d is no process's: 16 to 31 are", to->interface);
	if (to->node > 0x3fffff)
		return fail(EINVAL, "node %#" PRIx32 " has more than 22 bits", to->node);
	if (to->node == own->node && to->interface == MAILBOX_PROCESS + own->slot && to->generation == own->generation)
		return fail(EINVAL, "a message to its own sender");
	return 0;
}

/* message_taken: pfd has read the packetizer channel of messages. */
static int message_taken(exanet *e, const void *none)
{
	(void)none;
	if (!load64(packetizer(e, SEND_MESSAGE) + PACKETIZER_SEND))
		return 0;
	if (over(e, LOOK_MESSAGE))
		return fail(ENOTCONN, "the attachment has ended: attach again");
	return EXANET_ONGOING;
}

/* settle_message reports the refusal of a message that pfd had not read when its exanet_send returned, once
 * pfd has read it. sending is held. */
static void settle_message(exanet *e)
{
	const struct exanet_message left = e->left;
	if (!left.number || load64(packetizer(e, SEND_MESSAGE) + PACKETIZER_SEND))
		return;
	store32(&e->left.number, 0);
	if (!refused(e, SEND_MESSAGE))
		return;
	pthread_mutex_lock(&e->lock);
	refusal(e, left.count, left.number, left.node);
	pthread_mutex_unlock(&e->lock);
}

static bool mail(exanet *e) { return load32(e->pages + MAIL_HEAD) != load32(e->pages + MAIL_TAIL); }

/* settle reports a late refusal, unless a message is being sent. */
static void settle(exanet *e)
{
	if (load32(&e->left.number) && !pthread_mutex_trylock(&e->sending)) {
		settle_message(e);
		pthread_mutex_unlock(&e->sending);
	}
}

void collect_messages(exanet *e)
{
	settle(e);
	if (mail(e)) {
		pthread_mutex_lock(&e->lock);
		take_mail(e, NULL);
		pthread_mutex_unlock(&e->lock);
	}
}

/* publish_message sends a message by the free packetizer channel and returns its number. sending is held. */
static uint32_t publish_message(exanet *e, const struct exanet_remote *to, const uint64_t *words, int n)
{
	settle_message(e);
	if (mail(e)) {	/* room for refusals */
		pthread_mutex_lock(&e->lock);
		take_mail(e, NULL);
		pthread_mutex_unlock(&e->lock);
	}
	const int index = kind_index(words[0]);
	const uint32_t number = load32(&e->kinds[index].last) % INT32_MAX + 1;
	store32(&e->kinds[index].last, number);
	publish(e, SEND_MESSAGE, to->node | (uint64_t)to->interface << 24 | (uint64_t)to->generation << 32, words, n,
		(uint32_t)index << NUMBER_BITS | (number & NUMBER_MASK));
	return number;
}

/* leave records a message that pfd has not read yet. sending is held. */
static void leave(exanet *e, const struct exanet_remote *to, const uint64_t *words, uint32_t number)
{
	e->left.node = to->node;
	e->left.count = kind_index(words[0]);
	store32(&e->left.number, number);
}

int post_message(exanet *e, const struct exanet_remote *to, const uint64_t *words, int n)
{
	int status = check_message(e, to, words, n);
	if (status)
		return status;
	if (pthread_mutex_trylock(&e->sending))
		return -EBUSY;
	if ((status = message_taken(e, NULL))) {
		if (status == EXANET_ONGOING)
			status = -EBUSY;
	} else if (load32(e->pages + STATE)) {
		status = fail(ENOTCONN, "the attachment has ended: attach again");
	} else {
		status = (int)publish_message(e, to, words, n);
		leave(e, to, words, status);
	}
	pthread_mutex_unlock(&e->sending);
	return status;
}

int exanet_send(exanet *e, const struct exanet_remote *to, const uint64_t *words, int n)
{
	UNCANCELLED;
	int status = check_message(e, to, words, n);
	if (status)
		return status;
	pthread_mutex_lock(&e->sending);
	status = sleep_until(e, PATIENCE, LOOK_MESSAGE, message_taken, NULL);
	if (status == EXANET_ONGOING)
		status = fail(EBUSY, "pfd has not read the message before this one");
	if (!status && (load32(e->pages + STATE) || gone(e)))
		status = fail(ENOTCONN, "the attachment has ended: attach again");
	if (status)
		goto out;
	const uint32_t number = publish_message(e, to, words, n);
	status = sleep_until(e, PATIENCE, LOOK_MESSAGE, message_taken, NULL);
	if (status == EXANET_ONGOING) {	/* it is sent when pfd goes on */
		leave(e, to, words, number);
		status = (int)number;
	} else if (!status) {
		status = !refused(e, SEND_MESSAGE) ? (int)number :
			 fail(EREMOTEIO, "message %" PRIu32 " to node %" PRIu32 " was refused: the receiver's mailbox is full, or it does not admit this domain, or it has ended", number, to->node);
	}
out:
	pthread_mutex_unlock(&e->sending);
	return status;
}

/* next_message takes the next message of the program; its lock is taken only if one may be there. */
static int next_message(exanet *e, const void *arg)
{
	struct exanet_message *m = *(struct exanet_message *const *)arg;
	struct kind *k = &e->kinds[0];
	const bool ended = over(e, LOOK_MESSAGE);
	int status = EXANET_ONGOING;
	settle(e);
	if (load32(&e->kept) || mail(e)) {
		pthread_mutex_lock(&e->lock);
		take_mail(e, NULL);
		if (k->count) {
			*m = k->queue[k->head];
			k->head = (k->head + 1) % (2 * KEPT);
			k->count--;
			store32(&e->kept, e->kept - 1);
			status = m->count ? m->count :
				 fail(EREMOTEIO, "message %" PRIu32 " was refused by node %" PRIu32 ": the receiver's mailbox is full, or it does not admit this domain, or it has ended", m->number, m->node);
		}
		pthread_mutex_unlock(&e->lock);
	}
	return status == EXANET_ONGOING && ended ? fail(ENOTCONN, "the attachment has ended: attach again") : status;
}

int exanet_receive(exanet *e, struct exanet_message *m, int timeout)
{
	if (inherited(e))
		return refuse_child(e);
	const int status = sleep_until(e, timeout, LOOK_MESSAGE, next_message, &m);
	return status == EXANET_ONGOING ? fail(ETIMEDOUT, "no message has arrived in time") : status;
}
