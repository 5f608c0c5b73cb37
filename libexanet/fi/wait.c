/* Progress, and waiting for it. Nothing is advanced but by the program's own calls (FI_PROGRESS_MANUAL). */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "fi.h"

/* ns: how long a thread spins, calls that are farther apart are no spinning, the sleep of one that spins, a
 * millisecond. LOOK: calls of which one looks for what another pfd may have written. Defined by this provider. */
enum { SPIN = 2000, APART = 10000, REST = 200000, MS = 1000000, LOOK = 1000 };

int64_t clock_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int errno_of(struct attachment *a, int result)
{
	switch (-result) {
	case ENOTCONN:	/* of an attachment that has ended */
		a->gone = true;
		return FI_ENODEV;
	case EPIPE: case ECONNRESET:
		return attachment_gone(a) ? FI_ENODEV : FI_ECONNRESET;
	case EBUSY:
		return FI_EAGAIN;
	}
	return -result;	/* libfabric's numbers of errors are those of Linux */
}

int errno_of_status(struct attachment *a, int status)
{
	switch (status) {
	case 0:
		return 0;
	case 2:
		return FI_EFAULT;
	case 9:
		return FI_ECANCELED;
	case 10:
		return a->gone ? FI_ENODEV : FI_ECONNRESET;
	case 5: case 8:
		return FI_ECONNRESET;	/* a process that ended admits nobody, and a node that is lost answers nothing */
	case 3: case 7: case 11:
		return FI_ENOMEM;
	}
	return status < 0 ? errno_of(a, status) : FI_EIO;
}

int waiter_open(struct waiter *w, enum fi_wait_obj object, struct attachment *a)
{
	*w = (struct waiter){ .object = object, .epoll = -1, .event = -1 };
	if (object == FI_WAIT_NONE)
		return 0;
	if (object != FI_WAIT_UNSPEC && object != FI_WAIT_FD && object != FI_WAIT_YIELD)
		return -FI_ENOSYS;
	const int fd = exanet_stream_fd(a->exanet);
	if (fd < 0)
		return -errno_of(a, fd);
	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct epoll_event in = { .events = EPOLLIN };
	if (w->epoll < 0 || w->event < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &in) || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->event, &in)) {
		const int error = -errno;
		waiter_close(w);
		return error;
	}
	return 0;
}

void waiter_close(struct waiter *w)
{
	if (w->epoll >= 0)
		close(w->epoll);
	if (w->event >= 0)
		close(w->event);
	w->epoll = w->event = -1;
}

void waiter_signal(struct waiter *w)
{
	const uint64_t one = 1;
	if (w->event < 0 || w->signalled)
		return;
	w->signalled = true;
	(void)!write(w->event, &one, sizeof one);	/* the counter is 0: it cannot fail */
}

void waiter_clear(struct waiter *w)
{
	uint64_t n;
	if (!w->signalled)
		return;
	w->signalled = false;
	(void)!read(w->event, &n, sizeof n);
}

int waiter_control(struct waiter *w, int command, void *arg)
{
	switch (command) {
	case FI_GETWAIT:
		if (w->object != FI_WAIT_FD)
			return -FI_ENODATA;
		*(int *)arg = w->epoll;
		return 0;
	case FI_GETWAITOBJ:
		*(enum fi_wait_obj *)arg = w->object;
		return 0;
	}
	return -FI_ENOSYS;
}

/* advance advances all messages and transfers. */
static bool advance(struct attachment *a)
{
	a->events = exanet_events(a->exanet);	/* before it looks */
	a->idle = 0;
	bool did = rma_progress(a);
	for (struct link *l = a->connected.next, *next; l != &a->connected; l = next) {
		next = l->next;
		did |= message_progress(element(l, struct endpoint, link));
	}
	return did;
}

bool progress_data(struct attachment *a)
{
	if (a->events == exanet_events(a->exanet) && ++a->idle < LOOK)
		return false;
	return advance(a);
}

/* rearm makes progress after which a sleep misses nothing, and reports whether it did anything. Locked. */
static bool rearm(struct attachment *a)
{
	const bool did = progress_control(a);
	return advance(a) || did;
}

void progress_offer(struct attachment *a)
{
	const int64_t at = clock_now();
	pthread_mutex_lock(&a->lock);
	if (at - a->polled > APART)
		a->spun = at;	/* the program does something else, too */
	a->polled = at;
	const bool sleeps = at - a->spun >= SPIN && !a->gone && !rearm(a);
	const uint32_t events = a->events;
	pthread_mutex_unlock(&a->lock);
	if (sleeps && exanet_events_wait(a->exanet, events, REST) == -ENOTCONN)
		a->gone = true;
}

/* arm makes the descriptor of a waiter readable when something comes after this. */
static void arm(struct attachment *a)
{
	if (!a->gone && exanet_stream_arm(a->exanet) == -ENOTCONN)
		a->gone = true;
}

/* ready reports whether an object has something to be read: 1, 0, or -FI_EINVAL. */
static int ready(struct fid *fid)
{
	switch (fid->fclass) {
	case FI_CLASS_CQ:
		return element(fid, struct cq, fid.fid)->count != 0;
	case FI_CLASS_EQ:
		return !list_empty(&element(fid, struct eq, fid.fid)->events);
	case FI_CLASS_CNTR: {
		struct counter *c = element(fid, struct counter, fid.fid);
		const bool changed = c->waiter.signalled;
		waiter_clear(&c->waiter);
		return changed;
	}
	}
	return -FI_EINVAL;
}


ssize_t wait_for(struct attachment *a, struct waiter *w, int timeout, ssize_t (*done)(void *), void *arg)
{
	const int64_t began = clock_now(), end = timeout < 0 ? INT64_MAX : began + (int64_t)timeout * MS;
	for (;;) {
		const int64_t at = clock_now();
		const bool sleeps = at - began >= SPIN && w->object != FI_WAIT_YIELD;
		pthread_mutex_lock(&a->lock);
		arm(a);
		rearm(a);
		ssize_t result = done(arg);
		if (result == -FI_EAGAIN && a->gone)
			result = -FI_ENODEV;
		pthread_mutex_unlock(&a->lock);
		if (result != -FI_EAGAIN || at >= end)
			return result;
		if (!sleeps) {
			sched_yield();
			continue;
		}
		const int64_t ms = end == INT64_MAX ? -1 : (end - at + MS - 1) / MS;
		if (poll(&(struct pollfd){ .fd = w->epoll, .events = POLLIN }, 1, (int)ms) < 0 && errno != EINTR)
			return -errno;
	}
}

int fabric_trywait(struct fid_fabric *fid, struct fid **fids, int count)
{
	struct attachment *a = element(fid, struct fabric, fid)->attachment;
	int result = 0;
	pthread_mutex_lock(&a->lock);
	arm(a);
	rearm(a);
	for (int i = 0; i < count && result >= 0; i++) {
		const int r = ready(fids[i]);
		result = r < 0 ? r : result | r;
	}
	pthread_mutex_unlock(&a->lock);
	return result > 0 ? -FI_EAGAIN : result;
}
