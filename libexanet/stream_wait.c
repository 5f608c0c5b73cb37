/* Waiting, and the thread of the library (package stream: wait, pump). */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "stream.h"

/* ns. Defined by this project: the thread's longest sleep, and the least time between two arrivals that wake it
 * while no thread of the program sleeps. */
#define HOUR INT64_C(3600000000000)
enum { MS = 1000000, REST = MS };

const char ended_text[] = "the attachment has ended: attach again";

bool waiter_init(struct waiter *w)
{
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	const int error = pthread_cond_init(&w->cond, &a);
	pthread_condattr_destroy(&a);
	return !error;
}

static void ring_eventfd(int fd)
{
	const uint64_t one = 1;
	(void)!write(fd, &one, sizeof one);	/* fails if the counter is full: it is readable */
}

void drain_eventfd(int fd)
{
	uint64_t n;
	(void)!read(fd, &n, sizeof n);
}

void wake_waiter(const struct streams *s, struct waiter *w)
{
	if (w->parked)
		pthread_cond_broadcast(&w->cond);
	if (s->watcher == w)
		ring_eventfd(s->watch);
}

void wake_program(struct streams *s)
{
	tell_waiters(s->e);
	if (!s->armed)
		return;
	s->armed = false;
	ring_eventfd(s->fd_event);
}

void out_changed(struct end *e)
{
	exanet_stream *x = (exanet_stream *)e;
	wake_waiter(x->s, &x->w);
	wake_program(x->s);
}

void out_arrived(struct listener *l)
{
	exanet_listener *x = (exanet_listener *)l;
	wake_waiter(x->s, &x->w);
	wake_program(x->s);
}

static bool mail_waits(const struct streams *s)
{
	return s->inbox[0].head != load32(&s->inbox[0].tail) || s->inbox[1].head != load32(&s->inbox[1].tail);
}

void plan(struct streams *s, const struct end *e)
{
	if (!s->planned)
		return;	/* it does not sleep, and looks before it does */
	if ((s->parked && !s->arrivals && !s->watcher) || (e && end_deadline(e) < s->planned) || s->host.beat < s->planned || s->host.due < s->planned || s->nstale || s->host.again || mail_waits(s)) {
		s->planned = 0;
		ring_eventfd(s->wake);
	}
}

/* advance takes what has arrived for it. */
static bool advance(const struct wait *t)
{
	receive_messages(t->s);
	if (t->x && !t->x->over)
		host_poll(&t->s->host, now(), &t->x->end);
	return t->ready(t->arg);
}

/* sleep_for sleeps without the lock until something can be read from a descriptor, or from the ring of the mailbox
 * unless that is -1, or for ns. */
static void sleep_for(struct streams *s, int fd, int ring, int64_t ns)
{
	const struct timespec pause = { ns / 1000000000, ns % 1000000000 };
	struct pollfd p[] = { { fd, POLLIN, 0 }, { ring, POLLIN, 0 } };
	pthread_mutex_unlock(&s->lock);
	ppoll(p, 2, &pause, NULL);
	pthread_mutex_lock(&s->lock);
	if (p[0].revents)
		drain_eventfd(fd);
}

/* watch sleeps for arrivals in the place of the library's thread, which saves a switch to that. A thread of the
 * program does so while it is the only one that sleeps. It returns 0, ETIMEDOUT, or ENOTCONN: the attachment has ended, which the library's thread
 * has to notice, too. */
static int watch(const struct wait *t, int64_t end)
{
	struct streams *s = t->s;
	if (exanet_arm(s->e, s->ring))
		return ENOTCONN;
	receive_messages(s);
	const int64_t next = host_step(&s->host, now()), at = now(), until = next < end ? next : end;
	if (t->ready(t->arg) || mail_waits(s))
		return 0;
	if (at >= end)
		return ETIMEDOUT;
	s->watcher = t->w;
	s->watches++;
	plan(s, NULL);
	sleep_for(s, s->watch, s->ring, until > at + HOUR ? HOUR : until > at ? until - at : 0);
	s->watcher = NULL;
	return 0;
}

bool until(const struct wait *t, int timeout)
{
	struct streams *s = t->s;
	bool is = advance(t);
	if (is || !timeout)
		return is;
	const int64_t began = now(), end = timeout < 0 ? INT64_MAX : began + (int64_t)timeout * MS;
	if (!s->spinning) {
		s->spinning = true;
		for (int64_t at = began; at - began < SPIN && at < end && !is; is = advance(t)) {
			pthread_mutex_unlock(&s->lock);
			const bool goes_on = offer(s->e, began, at);
			pthread_mutex_lock(&s->lock);
			if (!goes_on)
				break;
			at = now();
		}
		s->spinning = false;
	}
	if (is)
		return true;
	const struct timespec until = { end / 1000000000, end % 1000000000 };
	s->parked++;
	for (int error = 0; !(is = t->ready(t->arg)) && !error;) {
		if (s->parked == 1 && !s->watcher && !(error = watch(t, end)))
			continue;
		if (error == ETIMEDOUT)
			break;
		t->w->parked++;
		plan(s, t->x && !t->x->over ? &t->x->end : NULL);
		error = timeout < 0 ? pthread_cond_wait(&t->w->cond, &s->lock) : pthread_cond_timedwait(&t->w->cond, &s->lock, &until);
		t->w->parked--;
	}
	s->parked--;
	if (!s->watcher && !s->arrivals && s->planned && (s->parked || s->planned > now() + REST)) {	/* the library's thread has left the work to this one */
		s->planned = 0;
		ring_eventfd(s->wake);
	}
	return is;
}

/* The thread */

static void end_all(struct streams *s)
{
	s->error = ENOTCONN;
	host_gone(&s->host, NULL, ended_text);
	host_step(&s->host, now());
	for (struct listener *l = s->host.listeners; l; l = l->next)
		wake_waiter(s, &((exanet_listener *)l)->w);
	wake_program(s);
}

/* run moves the connections on until the attachment ends. While the program's threads do the work, a wake-up for each
 * arrival would only take a processor from them. */
static void *run(void *arg)
{
	struct streams *s = arg;
	bool ended = false;
	unsigned watches = 0;
	pthread_mutex_lock(&s->lock);
	while (!s->stop && !ended) {
		const bool idle = s->watcher && s->watches == watches;	/* a thread of the program sleeps for long */
		watches = s->watches;
		s->arrivals = !s->watcher && (s->parked || !s->arrivals);
		if (s->arrivals)
			ended = exanet_arm(s->e, s->ring) != 0;
		receive_messages(s);
		int64_t next = host_step(&s->host, now());
		const bool stale = s->nstale;
		discard(s);
		const int64_t at = now(), most = s->arrivals || (idle && s->watcher) ? HOUR : REST;
		if (mail_waits(s) || stale || (s->parked && !s->arrivals && !s->watcher) || ended)
			next = at;
		s->planned = next = next < at ? at : next > at + most ? at + most : next;
		sleep_for(s, s->wake, s->arrivals ? s->ring : -1, next - at);
		s->planned = 0;
	}
	if (ended)
		end_all(s);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int start_streams(exanet *e, struct streams *s)
{
	sigset_t all, old;
	int error;
	if ((error = exanet_ring(e, NULL, 0, &s->ring)))
		return error;
	s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->watch = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->wake < 0 || s->watch < 0) {
		error = fail(errno, "the thread of streams: %m");
		goto out;
	}
	exanet_handle(e, KIND_STREAM, deliver, &s->inbox[0]);
	exanet_handle(e, KIND_CONNECTION, deliver, &s->inbox[1]);
	sigfillset(&all);	/* the program's threads handle its signals */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = start_thread(&s->thread, run, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!error) {
		s->runs = true;
		return 0;
	}
	errno = error;
	error = fail(errno, "the thread of streams: %m%s", errno == EAGAIN ? ": out of processes or of memory (ulimit -u, -v, -d; pids.max)" : "");
	exanet_handle(e, KIND_STREAM, NULL, NULL);
	exanet_handle(e, KIND_CONNECTION, NULL, NULL);
out:
	exanet_ring_close(e, s->ring);
	if (s->wake >= 0)
		close(s->wake);
	if (s->watch >= 0)
		close(s->watch);
	return error;
}

struct streams *streams_of(exanet *e, int *error)
{
	struct streams *s;
	if (inherited(e)) {
		*error = refuse_child(e);
		return NULL;
	}
	pthread_mutex_lock(&e->streaming);
	s = e->streams;
	if (!s && !(s = calloc(1, sizeof *s))) {
		*error = fail(ENOMEM, "no memory");
	} else if (!e->streams) {
		pthread_mutex_init(&s->lock, NULL);
		s->e = e;
		s->fd = s->fd_event = s->fd_ring = -1;
		s->host.own = (struct peer){ e->info.node, e->info.generation, e->info.pdid, MAILBOX_PROCESS + e->info.slot };
		if ((*error = start_streams(e, s))) {
			pthread_mutex_destroy(&s->lock);
			free(s);
			s = NULL;
		}
		e->streams = s;
	}
	pthread_mutex_unlock(&e->streaming);
	if (!s)
		return NULL;
	pthread_mutex_lock(&s->lock);
	if (!s->error)
		return s;
	pthread_mutex_unlock(&s->lock);
	*error = fail(ENOTCONN, "%s", ended_text);
	return NULL;
}

bool end_streams(exanet *e)
{
	struct streams *s = e->streams;
	if (!s || !s->runs)
		return true;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	ring_eventfd(s->wake);
	pthread_mutex_unlock(&s->lock);
	if (joined(s->thread, now() + INT64_C(2000000000)))
		return true;
	pthread_detach(s->thread);
	return false;
}

void free_stream(exanet_stream *x)
{
	pthread_cond_destroy(&x->w.cond);
	free(x->end.r.early);
	free(x);
}

void free_streams(exanet *e)
{
	struct streams *s = e->streams;
	if (!s)
		return;
	for (unsigned i = 0; i < s->host.used; i++)
		if (s->host.ends[i])
			free_stream((exanet_stream *)s->host.ends[i]);
	for (struct listener *l = s->host.listeners, *next; l; l = next) {
		next = l->next;
		free(l);
	}
	for (struct life *l = s->host.lives, *next; l; l = next) {
		next = l->next;
		free(l);
	}
	free_memory(s);
	const int fds[] = { s->wake, s->watch, s->fd, s->fd_event };	/* rings are the attachment's */
	for (int i = 0; i < 4; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(s);
}
