/* The program's calls of streams (package stream: conn, listen). */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "stream.h"

/* ns; ports; bytes above which a copy is made without the lock. Defined by this project. */
enum { MS = 1000000, CLOSE_TIME = 2000, FIRST_FREE = 49152, COPY_LOCKED = 16 << 10 };

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
		error = is ? fail(ENOTCONN, "%s", ended_text) : fail(EAGAIN, "accept on port %" PRIu32 ": no connection has arrived in time", l->l.port);
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
	const char *at = address;
	*out = NULL;
	if (inherited(e))
		return refuse_child(e);
	if (strncmp(address, "exanet:", 7) || !(at += 7) || !number(&at, 0x3fffff, '/', &v[0]) || !number(&at, UINT8_MAX, '/', &v[1]) || !number(&at, UINT32_MAX, 0, &v[2]) || v[1] / SLOTS != MAILBOX_PROCESS / SLOTS)
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
	return fail(x->end.error, "%s %s: %s%s%s", what, text, x->end.why, x->status ? ": " : "", x->status ? exanet_status(x->status) : "");
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
				error = fail_often(EAGAIN, "send: there was no room in time");
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
			wake_waiter(s, &x->w);
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
		error = fail_often(EAGAIN, "receive: nothing has arrived in time");
	for (uint64_t n; !error && got < size && (n = receiver_available(&e->r, &at)); got += n) {
		n = n < size - got ? n : size - got;
		if (n > COPY_LOCKED) {
			x->reading = true;
			pthread_mutex_unlock(&s->lock);
			memcpy((char *)to + got, at, n);
			pthread_mutex_lock(&s->lock);
			x->reading = false;
			wake_waiter(s, &x->w);
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
	wake_waiter(s, &x->w);
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
		if (!s->armed)	/* else nothing was written to it */
			drain_eventfd(s->fd_event);
		s->armed = true;
		error = exanet_arm(e, s->fd_ring);
	}
	pthread_mutex_unlock(&s->lock);
	return error;
}
