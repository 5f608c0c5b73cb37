/* Rings: descriptors to wait on (docs/attach.md 11). */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/socket.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* The rings of an attachment, under its lock. Ring i has the i-th word ARM. */
struct rings {
	uint32_t *arms;	/* shared with pfd */
	int own;	/* of exanet_fd; -1: none yet */
	struct ring { int fd; uint64_t address, bytes; } list[RINGS];	/* fd -1: none */
};

enum { TAKEN = -2 };	/* a ring that is being made or closed */

void ring_message(unsigned char *m, uint64_t address, uint64_t bytes, uint64_t arm)
{
	message(m, RING, RING_SIZE);
	put(m + 72, 8, address);
	put(m + 80, 8, bytes);
	put(m + 88, 8, arm);
}

/* make_rings allocates what rings need, under the lock. */
static int make_rings(exanet *e)
{
	struct rings *r;
	void *arms;
	int error;
	if (e->rings)
		return 0;
	if (!(r = malloc(sizeof *r)))
		return fail(ENOMEM, "no memory");
	if ((error = make_shared(e, RINGS * sizeof *r->arms, &arms))) {
		free(r);
		return error;
	}
	r->arms = arms;
	r->own = -1;
	for (int i = 0; i < RINGS; i++)
		r->list[i].fd = -1;
	e->rings = r;
	return 0;
}

void free_rings(exanet *e)
{
	if (!e->rings)
		return;
	for (int i = 0; i < RINGS; i++)
		if (e->rings->list[i].fd >= 0)
			close(e->rings->list[i].fd);
	unmap_shared(e, e->rings->arms, RINGS * sizeof *e->rings->arms);
	free(e->rings);
	e->rings = NULL;
}

/* drop_unused frees what rings need if there is none, under the lock. pfd has refused a ring: perhaps the words
 * ARM could not be shared when they were made, and the next ring tries again. */
static void drop_unused(exanet *e)
{
	for (int i = 0; i < RINGS; i++)
		if (e->rings->list[i].fd != -1)
			return;
	free_rings(e);
}

/* reserve returns a free ring, and for the mailbox its number in *bytes; or a negative errno. */
static int reserve(exanet *e, uint64_t address, uint64_t *bytes)
{
	struct ring *list = e->rings->list;
	unsigned mail = 0;
	int free_one = -1;
	for (int i = RINGS - 1; i >= 0; i--) {
		if (list[i].fd == -1)
			free_one = i;
		else if (!list[i].address)
			mail |= 1u << list[i].bytes;
	}
	if (free_one < 0)
		return fail(EBUSY, "the process has %d rings: close one", RINGS);
	if (!address && mail == (1u << MAIL_RINGS) - 1)
		return fail(EBUSY, "the mailbox has %d rings: close one", MAIL_RINGS);
	if (!address)
		*bytes = __builtin_ctz(~mail);
	list[free_one] = (struct ring){ TAKEN, address, *bytes };
	store32(&e->rings->arms[free_one], 0);	/* makes its page present */
	return free_one;
}

int exanet_ring(exanet *e, const void *words, size_t size, int *fd)
{
	UNCANCELLED;
	unsigned char m[RING_SIZE];
	const uint64_t address = (uintptr_t)words;
	uint64_t bytes = size;
	*fd = -1;
	if (inherited(e))
		return refuse_child(e);
	if (words ? (address | bytes) % 8 || !bytes : bytes)
		return fail(EINVAL, "a ring of %zu bytes at %p: give whole words of 8 bytes, or NULL and 0 for the mailbox", size, words);
	pthread_mutex_lock(&e->lock);
	int i = make_rings(e);
	if (!i)
		i = reserve(e, address, &bytes);
	pthread_mutex_unlock(&e->lock);
	if (i < 0)
		return i;
	ring_message(m, address, bytes, (uintptr_t)&e->rings->arms[i]);
	int got = -1;
	const int error = question(e, m, sizeof m, -1, -1, &got);
	if (error == -EMFILE)	/* pfd has the ring, and its descriptor is lost */
		bounds(e, UNRING, (void *)(uintptr_t)address, bytes, -1);
	pthread_mutex_lock(&e->lock);
	e->rings->list[i].fd = error ? -1 : got;
	if (error == -EINVAL)
		drop_unused(e);
	pthread_mutex_unlock(&e->lock);
	if (error)
		return error;
	store32(&e->rings->arms[i], 1);
	*fd = got;
	return 0;
}

/* find returns the ring of a descriptor, or a negative errno, with the lock held. */
static int find(const exanet *e, int fd)
{
	for (int i = 0; e->rings && i < RINGS; i++)
		if (fd >= 0 && e->rings->list[i].fd == fd)
			return i;
	return fail(EBADF, "descriptor %d is no ring of the attachment", fd);
}

int exanet_arm(exanet *e, int fd)
{
	char some[8];
	ssize_t n;
	if (inherited(e))
		return refuse_child(e);
	pthread_mutex_lock(&e->lock);
	const int i = find(e, fd);
	if (i >= 0) {
		while ((n = recv(fd, some, sizeof some, MSG_DONTWAIT)) > 0 || (n < 0 && errno == EINTR))
			;
		store32(&e->rings->arms[i], 1);
	}
	pthread_mutex_unlock(&e->lock);
	if (i < 0)
		return i;
	return n < 0 && errno == EAGAIN ? 0 : fail(ENOTCONN, "the attachment has ended: attach again");
}

int exanet_ring_close(exanet *e, int fd)
{
	UNCANCELLED;
	struct ring r = { 0 };
	if (inherited(e))
		return refuse_child(e);
	pthread_mutex_lock(&e->lock);
	const int i = find(e, fd);
	if (i >= 0) {
		r = e->rings->list[i];
		e->rings->list[i].fd = TAKEN;
		if (e->rings->own == fd)
			e->rings->own = -1;
	}
	pthread_mutex_unlock(&e->lock);
	if (i < 0)
		return i;
	int error = bounds(e, UNRING, (void *)(uintptr_t)r.address, r.bytes, -1);
	close(fd);
	pthread_mutex_lock(&e->lock);
	e->rings->list[i].fd = -1;
	pthread_mutex_unlock(&e->lock);
	return error == -ENOTCONN ? 0 : error;	/* all rings ended with the attachment */
}

int exanet_fd(exanet *e)
{
	int fd, error;
	if (inherited(e))
		return refuse_child(e);
	pthread_mutex_lock(&e->lock);
	fd = e->rings ? e->rings->own : -1;
	pthread_mutex_unlock(&e->lock);
	if (fd >= 0)
		return fd;
	if ((error = exanet_ring(e, NULL, 0, &fd)))
		return error;
	pthread_mutex_lock(&e->lock);
	const int first = e->rings->own;
	if (first < 0)
		e->rings->own = fd;
	pthread_mutex_unlock(&e->lock);
	if (first < 0)
		return fd;
	exanet_ring_close(e, fd);	/* another thread was faster */
	return first;
}
