/* The program's calls of streams, waiting, and the thread of the library (package stream: conn, listen, wait, pump). */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "stream.h"

/* ns; ports; bytes above which a copy is made without the lock. Defined by this project. */
#define HOUR INT64_C(3600000000000)
enum { MS = 1000000, REST = MS, CLOSE_TIME = 2000, FIRST_FREE = 49152, COPY_LOCKED = 16 << 10 };

static const char over[] = "the attachment has ended: attach again";

/* Waiting */

bool waiter_init(struct waiter *w)
{
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	const int error = pthread_cond_init(&w->cond, &a);
	pthread_condattr_destroy(&a);
	return !error;
}

static void wake(const struct waiter *w)
{
	if (w->parked)
		pthread_cond_broadcast((pthread_cond_t *)&w->cond);
}

static void ring_eventfd(int fd)
{
	const uint64_t one = 1;
	(void)!write(fd, &one, sizeof one);	/* fails if the counter is full: it is readable */
}

static void drain_eventfd(int fd)
{
	uint64_t n;
	(void)!read(fd, &n, sizeof n);
}

void wake_program(struct streams *s)
{
	if (!s->armed)
		return;
	s->armed = false;
	ring_eventfd(s->fd_event);
}

void out_changed(struct end *e)
{
	exanet_stream *x = (exanet_stream *)e;
	wake(&x->w);
	wake_program(x->s);
}

void out_arrived(struct listener *l)
{
	exanet_listener *x = (exanet_listener *)l;
	wake(&x->w);
	wake_program(x->s);
}

static bool mail_waits(const struct streams *s)
{
	return s->inbox[0].head != load32(&s->inbox[0].tail) || s->inbox[1].head != load32(&s->inbox[1].tail);
}

/* plan wakes the library's thread if it sleeps for longer than e may wait (NULL: no end changed), or does not wait
 * for arrivals and a thread does. */
static void plan(struct streams *s, const struct end *e)
{
	if (!s->planned)
		return;	/* it does not sleep, and looks before it does */
	if ((s->parked && !s->arrivals) || (e && end_deadline(e) < s->planned) || s->host.beat < s->planned || s->nstale || s->host.again || mail_waits(s)) {
		s->planned = 0;
		ring_eventfd(s->wake);
	}
}

/* What a thread waits for: a stream or a listener. */
struct wait {
	struct streams *s;
	struct waiter *w;
	exanet_stream *x;	/* NULL: a listener */
	bool (*ready)(const void *);
	const void *arg;
};

/* advance takes what has arrived for it. */
static bool advance(const struct wait *t)
{
	receive_messages(t->s);
	if (t->x && !t->x->over)
		host_poll(&t->s->host, now(), &t->x->end);
	return t->ready(t->arg);
}

/* until waits until ready returns true; false: the timeout has passed before. The lock is held before and after.
 * One thread of the process may spin; the others leave the work to the library's thread. */
static bool until(const struct wait *t, int timeout)
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
	t->w->parked++;
	s->parked++;
	plan(s, NULL);
	for (int error = 0; !(is = t->ready(t->arg)) && !error;)
		error = timeout < 0 ? pthread_cond_wait(&t->w->cond, &s->lock) : pthread_cond_timedwait(&t->w->cond, &s->lock, &until);
	t->w->parked--;
	s->parked--;
	return is;
}

/* The thread */

static void end_all(struct streams *s)
{
	s->error = ENOTCONN;
	host_gone(&s->host, NULL, over);
	host_step(&s->host, now());
	for (struct listener *l = s->host.listeners; l; l = l->next)
		wake(&((exanet_listener *)l)->w);
	wake_program(s);
}

/* run moves the connections on until the attachment ends. While the program's threads do all the work, a wake-up
 * for each arrival would only take a processor from them. */
static void *run(void *arg)
{
	struct streams *s = arg;
	bool ended = false;
	pthread_mutex_lock(&s->lock);
	while (!s->stop && !ended) {
		s->arrivals = s->parked || !s->arrivals;
		if (s->arrivals)
			ended = exanet_arm(s->e, s->ring) != 0;
		receive_messages(s);
		int64_t next = host_step(&s->host, now());
		const bool stale = s->nstale;
		discard(s);
		const int64_t at = now(), most = s->arrivals ? HOUR : REST;
		if (mail_waits(s) || stale || (s->parked && !s->arrivals) || ended)
			next = at;
		s->planned = next = next < at ? at : next > at + most ? at + most : next;
		const struct timespec pause = { (next - at) / 1000000000, (next - at) % 1000000000 };
		struct pollfd p[] = { { s->wake, POLLIN, 0 }, { s->arrivals ? s->ring : -1, POLLIN, 0 } };
		pthread_mutex_unlock(&s->lock);
		ppoll(p, 2, &pause, NULL);
		pthread_mutex_lock(&s->lock);
		s->planned = 0;
		if (p[0].revents)
			drain_eventfd(s->wake);
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
	if ((s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
		error = fail(errno, "the thread of streams: %m");
		exanet_ring_close(e, s->ring);
		return error;
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
	exanet_ring_close(e, s->ring);
	close(s->wake);
	return error;
}

/* streams_of returns the streams of an attachment with their lock held, and makes them if there are none. NULL:
 * *error says why. */
static struct streams *streams_of(exanet *e, int *error)
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
	*error = fail(ENOTCONN, over);
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
	const int fds[] = { s->wake, s->fd, s->fd_event };	/* rings are the attachment's */
	for (int i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(s);
}

/* Listeners */

static int address_text(char *text, size_t size, const struct peer *p, uint32_t port)
{
	const int n = snprintf(text, size, "exanet:%" PRIu32 "/%u/%" PRIu32, p->node, p->interface, port);
	return n >= 0 && (size_t)n < size ? 0 : fail(ENOSPC, "an address has %d bytes", n + 1);
}

int exanet_listen(exanet *e, uint32_t port, exanet_listener **out)
{
	UNCANCELLED;
	int error = 0;
	*out = NULL;
	struct streams *s = streams_of(e, &error);
	if (!s)
		return error;
	exanet_listener *l = calloc(1, sizeof *l);
	if (!l || !waiter_init(&l->w)) {
		free(l);
		l = NULL;
		error = fail(ENOMEM, "no memory");
		goto out;
	}
	if (!port)
		for (port = FIRST_FREE; host_listener(&s->host, port);)
			port++;
	if (host_listener(&s->host, port)) {
		error = fail(EADDRINUSE, "listen: another listener has port %" PRIu32, port);
		free(l);
		goto out;
	}
	l->s = s;
	l->l.port = port;
	l->l.next = s->host.listeners;
	s->host.listeners = &l->l;
	*out = l;
out:
	pthread_mutex_unlock(&s->lock);
	return error;
}

int exanet_listener_address(const exanet_listener *l, char *text, size_t size)
{
	return inherited(l->s->e) ? refuse_child(l->s->e) : address_text(text, size, &l->s->host.own, l->l.port);
}

static bool acceptable(const void *arg)
{
	const exanet_listener *l = arg;
	return l->l.first || l->s->error;
}

static struct end *dequeue(struct listener *l)
{
	struct end *e = l->first;
	if (!e)
		return NULL;
	if (!(l->first = e->queued))
		l->last = NULL;
	l->waiting--;
	return e;
}

int exanet_accept(exanet_listener *l, exanet_stream **out, int timeout)
{
	UNCANCELLED;
	struct streams *s = l->s;
	int error = 0;
	*out = NULL;
	if (inherited(s->e))
		return refuse_child(s->e);
	pthread_mutex_lock(&s->lock);
	const bool is = until(&(struct wait){ s, &l->w, NULL, acceptable, l }, timeout);
	*out = (exanet_stream *)dequeue(&l->l);
	if (!*out)
		error = is ? fail(ENOTCONN, over) : fail(EAGAIN, "accept on port %" PRIu32 ": no connection has arrived in time", l->l.port);
	plan(s, NULL);
	pthread_mutex_unlock(&s->lock);
	return error;
}

int exanet_listener_close(exanet_listener *l)
{
	UNCANCELLED;
	struct streams *s = l->s;
	if (inherited(s->e))
		return refuse_child(s->e);
	pthread_mutex_lock(&s->lock);
	struct listener **at = &s->host.listeners;
	while (*at != &l->l)
		at = &(*at)->next;
	*at = l->l.next;
	for (struct end *e; (e = dequeue(&l->l));) {
		end_fail(e, ECONNRESET, "the listener has closed");
		end_close(e, now());
		s->host.again = true;
	}
	plan(s, NULL);
	pthread_mutex_unlock(&s->lock);
	pthread_cond_destroy(&l->w.cond);
	free(l);
	return 0;
}

/* Connections */

/* number parses a decimal number up to most, and the character after it. */
static bool number(const char **s, uint64_t most, char after, uint64_t *v)
{
	const char *from = *s;
	for (*v = 0; **s >= '0' && **s <= '9' && *v <= most; (*s)++)
		*v = 10 * *v + (uint64_t)(**s - '0');
	return *s > from && *v <= most && *(*s)++ == after;
}

static bool open_or_failed(const void *arg)
{
	const exanet_stream *x = arg;
	return x->end.error || !end_dials(&x->end);
}

/* give_up closes a stream that the program has no handle of. */
static void give_up(exanet_stream *x)
{
	end_close(&x->end, now());
	host_poll(&x->s->host, now(), &x->end);
}

int exanet_connect(exanet *e, const char *address, exanet_stream **out, int timeout)
{
	UNCANCELLED;
	uint64_t v[3] = { 0 };
	int error = 0;
	const char *at = address + 7;
	*out = NULL;
	if (inherited(e))
		return refuse_child(e);
	if (strncmp(address, "exanet:", 7) || !number(&at, 0x3fffff, '/', &v[0]) || !number(&at, UINT8_MAX, '/', &v[1]) || !number(&at, UINT32_MAX, 0, &v[2]) || v[1] / SLOTS != MAILBOX_PROCESS / SLOTS)
		return fail(EINVAL, "\"%.80s\" is not of the form exanet:NODE/INTERFACE/PORT, with an interface from 16 to 31", address);
	struct streams *s = streams_of(e, &error);
	if (!s)
		return error;
	exanet_stream *x = (exanet_stream *)host_dial(&s->host, now(), v[0], v[1], v[2]);
	if (!x) {
		error = s->nplaces || s->used < ENDS ? -ENOMEM : -ENOBUFS;
		goto out;
	}
	x->held = true;
	const bool is = until(&(struct wait){ s, &x->w, x, open_or_failed, x }, timeout);
	x->held = false;
	if (x->end.error) {
		error = fail(x->end.error, "connect to %s: %s", address, x->end.why);
		give_up(x);
	} else if (!is && timeout) {
		error = fail(ETIMEDOUT, "connect to %s: no answer within %d ms", address, timeout);
		give_up(x);
	} else {
		*out = x;
	}
	plan(s, *out ? &(*out)->end : NULL);
out:
	pthread_mutex_unlock(&s->lock);
	return error;
}

/* failed returns why a stream can do no more. */
static int failed(const exanet_stream *x, const char *what)
{
	char text[64];
	address_text(text, sizeof text, &x->end.peer, x->end.accepted ? x->end.peer_id : x->end.port);
	return fail(x->end.error, "%s %s: %s", what, text, x->end.why);
}

static bool writable(const void *arg)
{
	const exanet_stream *x = arg;
	const struct sender *s = &x->end.s;
	return !x->writing && (x->end.error || s->stopped || s->fin || sender_room(s, END_RING));
}

/* gather copies n bytes from offset of the places. */
static void gather(unsigned char *to, const struct iovec *v, size_t offset, size_t n)
{
	for (; n; v++) {
		if (offset >= v->iov_len) {
			offset -= v->iov_len;
			continue;
		}
		const size_t k = v->iov_len - offset < n ? v->iov_len - offset : n;
		memcpy(to, (const char *)v->iov_base + offset, k);
		to += k;
		n -= k;
		offset = 0;
	}
}

ssize_t exanet_stream_sendv(exanet_stream *x, const struct iovec *v, int n, int timeout)
{
	UNCANCELLED;
	struct streams *s = x->s;
	struct end *e = &x->end;
	const int64_t end = timeout > 0 ? now() + (int64_t)timeout * MS : 0;
	size_t total = 0, sent = 0;
	ssize_t error = 0;
	if (inherited(s->e))
		return refuse_child(s->e);
	for (int i = 0; i < n; i++) {
		if (v[i].iov_len > (size_t)SSIZE_MAX - total)
			return fail(EINVAL, "more than %zd bytes", (ssize_t)SSIZE_MAX);
		total += v[i].iov_len;
	}
	pthread_mutex_lock(&s->lock);
	for (;;) {
		if (e->error)
			error = failed(x, "send to");
		else if (e->s.fin)
			error = fail(EPIPE, "send: exanet_stream_shutdown was called");
		else if (e->s.stopped)
			error = fail(EPIPE, "send: the peer has closed the connection");
		if (error || sent == total)
			break;
		const size_t k = x->writing ? 0 : sender_room(&e->s, total - sent);
		if (!k) {
			const int64_t left = timeout > 0 ? (end - now() + MS - 1) / MS : timeout;
			if (!until(&(struct wait){ s, &x->w, x, writable, x }, left < 0 && timeout > 0 ? 0 : (int)left)) {
				error = fail(EAGAIN, "send: there was no room in time");
				break;
			}
			continue;
		}
		unsigned char *to = e->copy + e->s.sent % e->copy_size;
		if (k > COPY_LOCKED) {
			x->writing = true;
			pthread_mutex_unlock(&s->lock);
			gather(to, v, sent, k);
			pthread_mutex_lock(&s->lock);
			x->writing = false;
			wake(&x->w);
			if (e->error || e->s.fin || e->s.stopped)
				continue;
		} else {
			gather(to, v, sent, k);
		}
		end_send(e, now(), k);
		sent += k;
	}
	plan(s, e);
	pthread_mutex_unlock(&s->lock);
	return sent ? (ssize_t)sent : error;
}

ssize_t exanet_stream_send(exanet_stream *x, const void *bytes, size_t size, int timeout)
{
	return exanet_stream_sendv(x, &(struct iovec){ (void *)bytes, size }, 1, timeout);
}

static bool readable(const void *arg)
{
	const exanet_stream *x = arg;
	const struct receiver *r = &x->end.r;
	return !x->reading && (r->taken != r->read || r->fin || x->end.error || x->end.peer_shut);
}

ssize_t exanet_stream_recv(exanet_stream *x, void *to, size_t size, int timeout)
{
	UNCANCELLED;
	struct streams *s = x->s;
	struct end *e = &x->end;
	const unsigned char *at;
	size_t got = 0;
	ssize_t error = 0;
	if (inherited(s->e))
		return refuse_child(s->e);
	if (!size)
		return 0;
	pthread_mutex_lock(&s->lock);
	if (!until(&(struct wait){ s, &x->w, x, readable, x }, timeout))
		error = fail(EAGAIN, "receive: nothing has arrived in time");
	for (uint64_t n; !error && got < size && (n = receiver_available(&e->r, &at)); got += n) {
		n = n < size - got ? n : size - got;
		if (n > COPY_LOCKED) {
			x->reading = true;
			pthread_mutex_unlock(&s->lock);
			memcpy((char *)to + got, at, n);
			pthread_mutex_lock(&s->lock);
			x->reading = false;
			wake(&x->w);
		} else {
			memcpy((char *)to + got, at, n);
		}
		end_consume(e, now(), n);
	}
	if (!got && !error && !e->r.fin && e->error)
		error = failed(x, "receive from");
	plan(s, e);
	pthread_mutex_unlock(&s->lock);
	return got ? (ssize_t)got : error;
}

int exanet_stream_shutdown(exanet_stream *x)
{
	UNCANCELLED;
	struct streams *s = x->s;
	int error = 0;
	if (inherited(s->e))
		return refuse_child(s->e);
	pthread_mutex_lock(&s->lock);
	if (x->end.error)
		error = failed(x, "shut down the stream to");
	else if (end_dials(&x->end))
		error = fail(EAGAIN, "shut down: the connection is not open yet");
	else
		end_of_stream(&x->end, now());
	wake(&x->w);
	plan(s, &x->end);
	pthread_mutex_unlock(&s->lock);
	return error;
}

static bool flushed(const void *arg)
{
	const exanet_stream *x = arg;
	return x->over || end_flushed(&x->end);
}

int exanet_stream_close(exanet_stream *x)
{
	UNCANCELLED;
	struct streams *s = x->s;
	if (inherited(s->e))
		return refuse_child(s->e);
	pthread_mutex_lock(&s->lock);
	x->held = true;
	end_close(&x->end, now());
	const bool is = until(&(struct wait){ s, &x->w, x, flushed, x }, CLOSE_TIME);
	if (!x->over)
		host_poll(&s->host, now(), &x->end);
	plan(s, x->over ? NULL : &x->end);
	x->held = false;
	if (x->over)
		free_stream(x);
	pthread_mutex_unlock(&s->lock);
	return is ? 0 : fail(ETIMEDOUT, "close: the peer has not taken all bytes within %d s", CLOSE_TIME / 1000);
}

int exanet_stream_peer(const exanet_stream *x, struct exanet_remote *r)
{
	struct streams *s = x->s;
	const struct peer *p = &x->end.peer;
	int error = 0;
	*r = (struct exanet_remote){ 0 };
	if (inherited(s->e))
		return refuse_child(s->e);
	pthread_mutex_lock(&s->lock);
	if (end_dials(&x->end))
		error = x->end.error ? failed(x, "the peer of the stream to") : fail(EAGAIN, "the peer: the connection is not open yet");
	else
		*r = (struct exanet_remote){ .node = p->node, .generation = p->generation, .pdid = p->pdid, .interface = p->interface };
	pthread_mutex_unlock(&s->lock);
	return error;
}

/* The descriptor */

int exanet_stream_fd(exanet *e)
{
	UNCANCELLED;
	int error = 0;
	struct streams *s = streams_of(e, &error);
	if (!s)
		return error;
	if (s->fd < 0 && !(error = exanet_ring(e, NULL, 0, &s->fd_ring))) {
		s->fd_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		s->fd = epoll_create1(EPOLL_CLOEXEC);
		struct epoll_event on = { .events = EPOLLIN };
		if (s->fd_event < 0 || s->fd < 0 || epoll_ctl(s->fd, EPOLL_CTL_ADD, s->fd_event, &on) || epoll_ctl(s->fd, EPOLL_CTL_ADD, s->fd_ring, &on)) {
			error = fail(errno, "the descriptor of streams: %m");
			if (s->fd >= 0)
				close(s->fd);
			if (s->fd_event >= 0)
				close(s->fd_event);
			exanet_ring_close(e, s->fd_ring);
			s->fd = s->fd_event = s->fd_ring = -1;
		}
	}
	const int fd = s->fd;
	pthread_mutex_unlock(&s->lock);
	return error ? error : fd;
}

int exanet_stream_arm(exanet *e)
{
	UNCANCELLED;
	int error = 0;
	struct streams *s = streams_of(e, &error);
	if (!s)
		return error;
	if (s->fd < 0) {
		error = fail(EINVAL, "call exanet_stream_fd first");
	} else {
		drain_eventfd(s->fd_event);
		s->armed = true;
		error = exanet_arm(e, s->fd_ring);
	}
	pthread_mutex_unlock(&s->lock);
	return error;
}
