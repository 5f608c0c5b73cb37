/* Connections: each is a stream, whose first frame asks and whose second one answers (fi_cm(3)). */
#include <stdlib.h>
#include <string.h>

#include "fi.h"

#define endpoint_of(ep) element(ep, struct endpoint, fid)
#define listener_of(pep) element(pep, struct listener, fid)

/* peer_of returns the process at the other end, with its whole address space. */
static struct exanet_remote peer_of(exanet_stream *s)
{
	struct exanet_remote r = { 0 };
	exanet_stream_peer(s, &r);
	r.address = 0;
	r.length = UINT64_MAX;
	return r;
}

static void handshake_begin(struct handshake *h, enum frame kind, const void *data, size_t size)
{
	if (size > CM_DATA)
		size = CM_DATA;	/* fi_cm(3): silently */
	h->sent = h->got = 0;
	h->size = frame_header(h->out, kind, 0, size, 0) + size;
	if (size)
		memcpy(h->out + HEADER, data, size);
}

/* frame_read reads a frame of one of two kinds. It returns the length of its data, or -FI_EAGAIN, or why the
 * connection ends. */
static int frame_read(struct attachment *a, exanet_stream *s, unsigned char *in, size_t *got, enum frame one, enum frame other)
{
	for (;;) {
		size_t want = HEADER;
		if (*got >= HEADER) {
			const int64_t length = frame_length(in, in[0] == other ? other : one, CM_DATA);
			if (length < 0)
				return -FI_EIO;
			want += (size_t)length;
			if (*got == want)
				return (int)length;
		}
		const ssize_t n = exanet_stream_recv(s, in + *got, want - *got, 0);
		if (n <= 0)
			return n == -EAGAIN ? -FI_EAGAIN : n ? -errno_of(a, (int)n) : -FI_ECONNRESET;
		*got += (size_t)n;
	}
}

static bool connected(struct endpoint *p, const void *data, size_t size)
{
	list_remove(&p->link);
	list_append(&p->domain->attachment->connected, &p->link);
	p->domain->attachment->events--;	/* messages may have come with the answer */
	p->state = CONNECTED;
	p->peer = peer_of(p->stream);
	eq_event(p->eq, FI_CONNECTED, &p->fid.fid, NULL, 0, data, size);
	return true;
}

/* shake advances the handshake of an endpoint. */
static bool shake(struct endpoint *p)
{
	struct attachment *a = p->domain->attachment;
	struct handshake *h = &p->handshake;
	bool did = false;
	while (h->sent < h->size) {
		const ssize_t n = exanet_stream_send(p->stream, h->out + h->sent, h->size - h->sent, 0);
		if (n == 0 || n == -EAGAIN)
			return did;
		if (n < 0) {
			endpoint_end(p, errno_of(a, (int)n), true);
			return true;
		}
		h->sent += (size_t)n;
		did = true;
	}
	if (p->state == ACCEPTING)
		return connected(p, NULL, 0);
	const int n = frame_read(a, p->stream, h->in, &h->got, FRAME_ACCEPT, FRAME_REJECT);
	if (n == -FI_EAGAIN)
		return did;
	if (n < 0) {
		endpoint_end(p, -n, true);
	} else if (h->in[0] == FRAME_REJECT) {
		endpoint_end(p, FI_ECONNREFUSED, false);
		eq_event(p->eq, 0, &p->fid.fid, NULL, FI_ECONNREFUSED, h->in + HEADER, (size_t)n);
	} else {
		connected(p, h->in + HEADER, (size_t)n);
	}
	return true;
}

struct request *request_find(struct attachment *a, fid_t handle)
{
	for (struct link *l = a->requests.next; l != &a->requests; l = l->next)
		if (&element(l, struct request, link)->fid == handle)
			return element(l, struct request, link);
	return NULL;
}

void request_drop(struct attachment *a, struct request *r)
{
	list_remove(&r->link);
	a->nrequests--;
	eq_forget(r->listener->eq, &r->fid);
	if (r->stream)
		exanet_stream_close(r->stream);
	if (r->endpoint)
		r->endpoint->request = NULL;
	free(r);
}

/* ask raises FI_CONNREQ for a request that has come. */
static bool ask(struct attachment *a, struct request *r, size_t size)
{
	struct listener *l = r->listener;
	struct fi_info *info = fi_dupinfo(l->info);
	struct sockaddr_in *from = malloc(sizeof *from), *to = malloc(sizeof *to);
	if (!info || !from || !to) {
		free(from);
		free(to);
		fi_freeinfo(info);
		request_drop(a, r);
		return true;
	}
	free(info->src_addr);
	free(info->dest_addr);
	*to = l->address;
	*from = r->address;
	info->src_addr = to;
	info->dest_addr = from;
	info->src_addrlen = info->dest_addrlen = sizeof *to;
	info->handle = &r->fid;
	r->asked = true;
	eq_event(l->eq, FI_CONNREQ, &l->fid.fid, info, 0, r->in + HEADER, size);
	return true;
}

static void refuse(struct attachment *a, struct request *r, const char *why)
{
	FI_WARN(&exanet_provider, FI_LOG_EP_CTRL, "a connection from %#x interface %u is closed: %s\n", ntohl(r->address.sin_addr.s_addr),
		ntohs(r->address.sin_port) >> 8, why);
	request_drop(a, r);
}

/* read_request reads the first frame of a request. */
static bool read_request(struct attachment *a, struct request *r)
{
	const int n = frame_read(a, r->stream, r->in, &r->got, FRAME_CONNECT, FRAME_CONNECT);
	if (n >= 0)
		return ask(a, r, (size_t)n);
	if (n == -FI_EAGAIN)
		return false;
	refuse(a, r, n == -FI_EIO ? "it does not speak this provider's protocol" : fi_strerror(-n));
	return true;
}

/* silent returns the oldest connection without a request, NULL: there is none. */
static struct request *silent(struct attachment *a)
{
	for (struct link *l = a->requests.next; l != &a->requests; l = l->next)
		if (!element(l, struct request, link)->asked)
			return element(l, struct request, link);
	return NULL;
}

/* accept_one accepts a connection. If there are too many, it takes the place of one without a request. There is no
 * time limit for a request: it takes as long as pfd or the peer is stopped. */
static bool accept_one(struct attachment *a, struct listener *l)
{
	exanet_stream *s;
	struct request *r, *oldest = NULL;
	if ((a->nrequests >= BACKLOG && !(oldest = silent(a))) || exanet_accept(l->listener, &s, 0))
		return false;
	if (oldest)
		refuse(a, oldest, "it has sent no request, and there are too many");
	if (!(r = calloc(1, sizeof *r))) {
		exanet_stream_close(s);
		return false;
	}
	r->fid.fclass = FI_CLASS_CONNREQ;
	r->listener = l;
	r->stream = s;
	r->peer = peer_of(s);
	r->address = address_of(&r->peer, 0);
	list_append(&a->requests, &r->link);
	a->nrequests++;
	return true;
}

bool progress_control(struct attachment *a)
{
	bool did = false;
	struct link *l, *next;
	for (l = a->listeners.next; l != &a->listeners; l = l->next)
		while (accept_one(a, element(l, struct listener, link)))
			did = true;
	for (l = a->requests.next; l != &a->requests; l = next) {
		next = l->next;
		struct request *r = element(l, struct request, link);
		did |= !r->asked && read_request(a, r);
	}
	for (l = a->opening.next; l != &a->opening; l = next) {
		next = l->next;
		did |= shake(element(l, struct endpoint, link));
	}
	return did;
}

static int connect_(struct fid_ep *ep, const void *address, const void *data, size_t size)
{
	struct endpoint *p = endpoint_of(ep);
	struct attachment *a = p->domain->attachment;
	char text[64];
	struct sockaddr_in to;
	int error = address_check(address, sizeof to, &to);
	if (error || (error = address_text(&to, text, sizeof text)))
		return error;
	pthread_mutex_lock(&a->lock);
	if (p->state != ENABLED || p->request) {
		error = -FI_EOPBADSTATE;
	} else if ((error = exanet_connect(a->exanet, text, &p->stream, 0))) {
		FI_WARN(&exanet_provider, FI_LOG_EP_CTRL, "connect to %s: %s\n", text, exanet_error());
		error = -errno_of(a, error);
		p->stream = NULL;
	} else {
		p->peer_address = to;
		handshake_begin(&p->handshake, FRAME_CONNECT, data, size);
		p->state = CONNECTING;
		list_append(&a->opening, &p->link);
		shake(p);
	}
	pthread_mutex_unlock(&a->lock);
	return error;
}

static int accept_(struct fid_ep *ep, const void *data, size_t size)
{
	struct endpoint *p = endpoint_of(ep);
	struct attachment *a = p->domain->attachment;
	int error = 0;
	pthread_mutex_lock(&a->lock);
	struct request *r = p->request;
	if (p->state != ENABLED || !r) {
		error = -FI_EOPBADSTATE;
	} else {
		p->stream = r->stream;
		p->peer_address = r->address;
		r->stream = NULL;
		request_drop(a, r);
		handshake_begin(&p->handshake, FRAME_ACCEPT, data, size);
		p->state = ACCEPTING;
		list_append(&a->opening, &p->link);
		shake(p);
	}
	pthread_mutex_unlock(&a->lock);
	return error;
}

static int shutdown_(struct fid_ep *ep, uint64_t flags)
{
	struct endpoint *p = endpoint_of(ep);
	struct attachment *a = p->domain->attachment;
	int error = 0;
	if (flags)
		return -FI_EINVAL;
	pthread_mutex_lock(&a->lock);
	if (p->state < CONNECTING)
		error = -FI_EOPBADSTATE;
	else
		endpoint_end(p, FI_ESHUTDOWN, false);
	pthread_mutex_unlock(&a->lock);
	return error;
}

static int getname_(fid_t fid, void *to, size_t *size)
{
	return address_copy(fid->fclass == FI_CLASS_PEP ? &element(fid, struct listener, fid.fid)->address : &element(fid, struct endpoint, fid.fid)->address, to, size);
}

static int getpeer_(struct fid_ep *ep, void *to, size_t *size)
{
	const struct endpoint *p = endpoint_of(ep);
	return p->state < CONNECTED ? -FI_ENOTCONN : address_copy(&p->peer_address, to, size);
}

static int setname_(fid_t fid, void *address, size_t size)
{
	struct sockaddr_in a;
	const int error = address_check(address, size, &a);
	if (error)
		return error;
	if (fid->fclass != FI_CLASS_PEP)
		return -FI_EOPNOTSUPP;	/* an endpoint that dials has no port */
	struct listener *l = element(fid, struct listener, fid.fid);
	if (l->listener)
		return -FI_EOPBADSTATE;
	if (a.sin_addr.s_addr != l->fabric->attachment->address.sin_addr.s_addr)
		return -FI_EADDRNOTAVAIL;
	l->address = a;
	return 0;
}

/* fi_listen uses the endpoint of the address, or the first that is free. */
static int listen_(struct fid_pep *pep)
{
	struct listener *l = listener_of(pep);
	struct attachment *a = l->fabric->attachment;
	const unsigned wanted = address_endpoint(&l->address);
	int error = -EADDRINUSE;
	if (!l->eq)
		return -FI_ENOEQ;
	pthread_mutex_lock(&a->lock);
	if (l->listener) {
		error = -EALREADY;
		goto out;
	}
	for (unsigned port = wanted ? wanted : 1; port <= ENDPOINTS && error == -EADDRINUSE; port++) {
		if ((error = exanet_listen(a->exanet, port, &l->listener)) == 0) {
			l->address = a->address;
			l->address.sin_port = htons((uint16_t)(ntohs(a->address.sin_port) | port));
			list_append(&a->listeners, &l->link);
		}
		if (wanted)
			break;
	}
	if (error)
		FI_WARN(&exanet_provider, FI_LOG_EP_CTRL, "listen: %s\n", exanet_error());
out:
	pthread_mutex_unlock(&a->lock);
	return error ? -errno_of(a, error) : 0;
}

static int reject(struct fid_pep *pep, fid_t handle, const void *data, size_t size)
{
	struct attachment *a = listener_of(pep)->fabric->attachment;
	struct handshake h;
	ssize_t n = -EINVAL;
	handshake_begin(&h, FRAME_REJECT, data, size);
	pthread_mutex_lock(&a->lock);
	struct request *r = request_find(a, handle);
	if (r) {
		/* Nothing was sent before on this connection, so that it has room. */
		n = exanet_stream_send(r->stream, h.out, h.size, 0);
		request_drop(a, r);
	}
	pthread_mutex_unlock(&a->lock);
	return n < 0 ? -errno_of(a, (int)n) : 0;
}

static int no_listen(struct fid_pep *pep)
{
	(void)pep;
	return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *pep, fid_t handle, const void *data, size_t size)
{
	(void)pep, (void)handle, (void)data, (void)size;
	return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *address, const void *data, size_t size)
{
	(void)ep, (void)address, (void)data, (void)size;
	return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *data, size_t size)
{
	(void)ep, (void)data, (void)size;
	return -FI_ENOSYS;
}

static int no_getpeer(struct fid_ep *ep, void *to, size_t *size)
{
	(void)ep, (void)to, (void)size;
	return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
	(void)ep, (void)flags;
	return -FI_ENOSYS;
}

static int no_join(struct fid_ep *ep, const void *address, uint64_t flags, struct fid_mc **out, void *context)
{
	(void)ep, (void)address, (void)flags, (void)out, (void)context;
	return -FI_ENOSYS;
}

struct fi_ops_cm endpoint_cm_ops = {
	.size = sizeof endpoint_cm_ops, .setname = setname_, .getname = getname_, .getpeer = getpeer_, .connect = connect_, .listen = no_listen,
	.accept = accept_, .reject = no_reject, .shutdown = shutdown_, .join = no_join,
};

static struct fi_ops_cm listener_cm_ops = {
	.size = sizeof listener_cm_ops, .setname = setname_, .getname = getname_, .getpeer = no_getpeer, .connect = no_connect, .listen = listen_,
	.accept = no_accept, .reject = reject, .shutdown = no_shutdown, .join = no_join,
};

static int listener_close(struct fid *fid)
{
	struct listener *l = element(fid, struct listener, fid.fid);
	struct attachment *a = l->fabric->attachment;
	pthread_mutex_lock(&a->lock);
	for (struct link *at = a->requests.next, *next; at != &a->requests; at = next) {
		next = at->next;
		struct request *r = element(at, struct request, link);
		if (r->listener == l)
			request_drop(a, r);
	}
	list_remove(&l->link);
	if (l->listener)
		exanet_listener_close(l->listener);
	eq_forget(l->eq, fid);
	if (l->eq)
		l->eq->users--;
	l->fabric->users--;
	pthread_mutex_unlock(&a->lock);
	fi_freeinfo(l->info);
	free(l);
	return 0;
}

static int listener_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct listener *l = element(fid, struct listener, fid.fid);
	if (other->fclass != FI_CLASS_EQ || l->eq || flags)
		return -FI_EINVAL;
	pthread_mutex_lock(&l->fabric->attachment->lock);
	l->eq = element(other, struct eq, fid.fid);
	l->eq->users++;
	pthread_mutex_unlock(&l->fabric->attachment->lock);
	return 0;
}

static int listener_control(struct fid *fid, int command, void *arg)
{
	(void)fid, (void)arg;
	return command == FI_BACKLOG ? 0 : -FI_ENOSYS;	/* a process keeps BACKLOG requests */
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops, .close = listener_close, .bind = listener_bind, .control = listener_control, .ops_open = no_ops_open,
};
static struct fi_ops_ep listener_ops = {
	.size = sizeof listener_ops, .getopt = option_get, .setopt = option_set,
};

int listener_open(struct fid_fabric *fid, struct fi_info *info, struct fid_pep **out, void *context)
{
	struct fabric *f = element(fid, struct fabric, fid);
	struct listener *l = calloc(1, sizeof *l);
	if (!l || !(l->info = fi_dupinfo(info))) {
		free(l);
		return -FI_ENOMEM;
	}
	l->fid = (struct fid_pep){ { FI_CLASS_PEP, context, &fid_ops }, &listener_ops, &listener_cm_ops };
	l->fabric = f;
	l->address = f->attachment->address;
	if (info->src_addr && info->src_addrlen >= sizeof l->address)
		memcpy(&l->address, info->src_addr, sizeof l->address);
	list_init(&l->link);
	pthread_mutex_lock(&f->attachment->lock);
	f->users++;
	pthread_mutex_unlock(&f->attachment->lock);
	*out = &l->fid;
	return 0;
}
