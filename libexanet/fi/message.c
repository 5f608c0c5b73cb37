/* Messages: frames in the stream of a connected endpoint, from the program's memory and into it. */
#include <stdlib.h>
#include <string.h>

#include "fi.h"

unsigned frame_header(unsigned char *h, enum frame kind, unsigned flags, size_t length, uint64_t data)
{
	h[0] = kind;
	h[1] = flags;
	h[2] = VERSION;
	h[3] = 0;
	for (int i = 0; i < 4; i++)
		h[4 + i] = length >> 8 * i;
	if (!(flags & FRAME_DATA))
		return HEADER;
	for (int i = 0; i < 8; i++)
		h[HEADER + i] = data >> 8 * i;
	return HEADER_DATA;
}

static size_t header_length(const unsigned char *h)
{
	return h[4] | (size_t)h[5] << 8 | (size_t)h[6] << 16 | (size_t)h[7] << 24;
}

static uint64_t header_data(const unsigned char *h)
{
	uint64_t data = 0;
	for (int i = 7; i >= 0; i--)
		data = data << 8 | h[HEADER + i];
	return data;
}

int64_t frame_length(const unsigned char *h, enum frame kind, size_t most)
{
	if (h[0] != kind || h[1] || h[2] != VERSION || h[3] || header_length(h) > most)
		return -1;
	return (int64_t)header_length(h);
}

/* pack writes bytes without those that are zero: for each 8 of them a mask of the others, then those. It returns
 * the size, 0: more than room. */
static unsigned pack(unsigned char *to, size_t room, const struct iovec *iov, unsigned n)
{
	unsigned size = 0, mask = 0, i = 0;
	for (; n; n--, iov++)
		for (size_t k = 0; k < iov->iov_len; k++, i++) {
			const unsigned char c = ((const unsigned char *)iov->iov_base)[k];
			if (size + (i % 8 == 0) + (c != 0) > room)
				return 0;
			if (i % 8 == 0)
				to[mask = size++] = 0;
			if (c) {
				to[mask] |= 1 << i % 8;
				to[size++] = c;
			}
		}
	return size;
}

/* unpack writes the packed bytes of a message into its buffer, and returns false if they cannot be. */
static bool unpack(const struct endpoint *p, const struct op *op)
{
	const unsigned char *from = p->packed, *end = from + p->header[3];
	unsigned char bytes[PACKED] = { 0 }, mask = 0;
	for (size_t i = 0; i < op->length; i++) {
		if (i % 8 == 0) {
			if (from == end)
				return false;
			mask = *from++;
		}
		if (mask >> i % 8 & 1) {
			if (from == end)
				return false;
			bytes[i] = *from++;
		}
	}
	if (op->length % 8 && mask >> op->length % 8)
		return false;
	for (size_t i = 0, at = 0; i < op->niov && at < op->length; at += op->iov[i++].iov_len)
		memcpy(op->iov[i].iov_base, bytes + at, op->iov[i].iov_len < op->length - at ? op->iov[i].iov_len : op->length - at);
	return from == end;
}

/* push sends what the stream takes of an operation, and reports whether that was all. If the connection ends
 * it returns false, and the operation has completed if it was in a list. */
static bool push(struct endpoint *p, struct op *op, int *error)
{
	const size_t body = op->packed ? 0 : op->length, size = op->header_size + body;
	while (op->done < size) {
		struct iovec iov[IOVS + 1];
		unsigned n = 0;
		if (op->done < op->header_size)
			iov[n++] = (struct iovec){ op->header + op->done, op->header_size - op->done };
		const size_t from = op->done < op->header_size ? 0 : op->done - op->header_size;
		n += iov_slice(op->iov, op->niov, from, body - from, iov + n);
		const ssize_t sent = exanet_stream_sendv(p->stream, iov, (int)n, 0);
		if (sent <= 0) {
			if (sent < 0 && sent != -EAGAIN)
				*error = errno_of(p->domain->attachment, (int)sent);
			return false;
		}
		op->done += sent;
	}
	return true;
}

/* pushed completes an operation that was sent, or keeps it until its FRAME_ACK. */
static void pushed(struct endpoint *p, struct op *op)
{
	if (op->acked)
		list_append(&p->unacked, &op->link);
	else
		op_complete(op);
}

/* start sends a new operation, or queues it. */
static void start(struct endpoint *p, struct op *op)
{
	int error = 0;
	if (list_empty(&p->sends) && push(p, op, &error)) {
		pushed(p, op);
		return;
	}
	list_append(&p->sends, &op->link);
	if (error)
		endpoint_end(p, error, true);
}

/* SILENT_MOST: frames of the provider itself that wait for the peer: acknowledgements of as many messages as an
 * endpoint has in flight, and those of writes, of which no more begin if OPERATIONS wait. */
enum { SILENT_MOST = 3 * OPERATIONS };

/* own sends a frame without bytes of the provider itself. If a peer that keeps to the protocol cannot have so many
 * to take, or without memory, the connection ends. */
static void own(struct endpoint *p, enum frame kind, unsigned flags, uint64_t data)
{
	struct op *op = p->nsilent < SILENT_MOST ? op_get(p->domain->attachment) : NULL;
	if (!op) {
		endpoint_end(p, FI_ENOMEM, true);
		return;
	}
	p->nsilent++;
	op->kind = SENDING;
	op->endpoint = p;
	op->silent = true;
	op->header_size = frame_header(op->header, kind, flags, 0, data);
	start(p, op);
}

void message_written(struct endpoint *p, uint64_t data) { own(p, FRAME_WRITTEN, FRAME_DATA, data); }

/* deliver completes a receive of which every byte has come. */
static void deliver(struct endpoint *p, struct op *op)
{
	const bool acked = p->header[1] & FRAME_ACKED;
	p->into = NULL;
	p->header_got = p->got = 0;
	op->flags = FI_RECV | FI_MSG;
	if (p->header[1] & FRAME_DATA) {
		op->flags |= FI_REMOTE_CQ_DATA;
		op->data = header_data(p->header);
	}
	op->done = op->length < op->room ? op->length : op->room;
	op->error = op->length > op->room ? FI_ETRUNC : 0;
	op_complete(op);
	if (acked)
		own(p, FRAME_ACK, 0, 0);
}

/* written reports the CQ data of a peer's write. */
static bool written(struct endpoint *p)
{
	struct op *op = op_get(p->domain->attachment);
	if (!op)
		return false;
	op->kind = REMOTE;
	op->endpoint = p;
	op->report = true;
	op->flags = FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA;
	op->data = header_data(p->header);
	op_complete(op);
	return true;
}

/* header_ended returns whether the header is complete, -1: it is none. */
static int header_ended(const struct endpoint *p)
{
	const unsigned char *h = p->header;
	if (p->header_got < HEADER)
		return 0;
	if (h[2] != VERSION || h[1] & ~(FRAME_DATA | FRAME_ACKED | FRAME_PACKED) || (h[1] & FRAME_PACKED ? !h[3] || h[3] > SHORT_FRAME || header_length(h) > PACKED : h[3]) || (h[0] != FRAME_MESSAGE && header_length(h)) ||
	    (h[0] != FRAME_MESSAGE && h[1] != (h[0] == FRAME_WRITTEN ? FRAME_DATA : 0)))
		return -1;
	return p->header_got == (h[1] & FRAME_DATA ? HEADER_DATA : HEADER);
}

/* header_handle handles a header: 0, or an error with which the connection ends, -FI_EAGAIN: no buffer is
 * posted, or the queue is full. */
static int header_handle(struct endpoint *p)
{
	struct op *op;
	switch (p->header[0]) {
	case FRAME_MESSAGE:
		if (list_empty(&p->receives->posted))
			return -FI_EAGAIN;
		op = element(p->receives->posted.next, struct op, link);
		list_remove(&op->link);
		p->receives->count--;
		op->endpoint = p;
		op->length = header_length(p->header);
		p->into = op;
		return 0;
	case FRAME_ACK:
		if (list_empty(&p->unacked))
			return FI_EIO;
		op = element(p->unacked.next, struct op, link);
		list_remove(&op->link);
		p->header_got = 0;
		op_complete(op);
		return 0;
	case FRAME_WRITTEN:
		if (p->cq[REMOTE] && p->cq[REMOTE]->count >= p->cq[REMOTE]->size)
			return -FI_EAGAIN;
		p->header_got = 0;
		return written(p) ? 0 : FI_ENOMEM;
	}
	return FI_EIO;
}

/* receive reads bytes of a header or of a message. It returns as exanet_stream_recv does. */
static ssize_t receive(struct endpoint *p)
{
	struct op *op = p->into;
	if (!op) {
		const size_t want = p->header_got >= HEADER ? HEADER_DATA : HEADER;
		const ssize_t n = exanet_stream_recv(p->stream, p->header + p->header_got, want - p->header_got, 0);
		if (n > 0)
			p->header_got += n;
		return n;
	}
	if (p->header[1] & FRAME_PACKED) {
		const ssize_t n = exanet_stream_recv(p->stream, p->packed + p->got, p->header[3] - p->got, 0);
		if (n > 0)
			p->got += n;
		return n;
	}
	char excess[4096];	/* bytes without room are read and dropped */
	struct iovec to = { excess, op->length - p->got < sizeof excess ? op->length - p->got : sizeof excess };
	if (p->got < op->room) {
		struct iovec iov[IOVS];
		iov_slice(op->iov, op->niov, p->got, op->length - p->got, iov);
		to = iov[0];
	}
	const ssize_t n = exanet_stream_recv(p->stream, to.iov_base, to.iov_len, 0);
	if (n > 0)
		p->got += n;
	return n;
}

/* pull receives frames while the endpoint is connected. */
static bool pull(struct endpoint *p)
{
	bool did = false;
	for (int i = 0; i < 256 && p->state == CONNECTED; i++) {	/* others have their turn */
		int error = 0;
		const bool packed = p->header[1] & FRAME_PACKED;
		const bool whole = p->into && p->got == (packed ? p->header[3] : p->into->length);
		if (whole && (!packed || unpack(p, p->into))) {
			deliver(p, p->into);
			did = true;
			continue;
		}
		const int ended = whole ? -1 : p->into ? 0 : header_ended(p);
		if (ended > 0) {
			if ((error = header_handle(p)) == -FI_EAGAIN)
				return did;
		} else if (ended < 0) {
			error = FI_EIO;
		} else {
			const ssize_t n = receive(p);
			if (n == -EAGAIN)
				return did;
			if (n == 0)
				error = p->into || p->header_got ? FI_ECONNRESET : FI_ESHUTDOWN;
			else if (n < 0)
				error = errno_of(p->domain->attachment, (int)n);
		}
		did = true;
		if (error) {
			if (error == FI_EIO)
				FI_WARN(&exanet_provider, FI_LOG_EP_DATA, "the peer at %#x port %u sends what is no frame of this provider: the connection is closed\n",
					ntohl(p->peer_address.sin_addr.s_addr), ntohs(p->peer_address.sin_port));
			endpoint_end(p, error, true);
		}
	}
	return did;
}

bool message_progress(struct endpoint *p)
{
	bool did = false;
	int error = 0;
	while (!list_empty(&p->sends)) {
		struct op *op = element(p->sends.next, struct op, link);
		const size_t before = op->done;
		const bool all = push(p, op, &error);
		did |= all || op->done != before;
		if (!all)
			break;
		list_remove(&op->link);
		pushed(p, op);
	}
	if (error) {
		/* What the peer had sent before it ended is received. */
		did |= pull(p);
		if (p->state == CONNECTED)
			endpoint_end(p, error, true);
		return true;
	}
	return pull(p) || did;
}

static ssize_t send_message(struct endpoint *p, const struct iovec *iov, size_t n, uint64_t flags, bool data, uint64_t value, void *context)
{
	struct attachment *a = p->domain->attachment;
	const bool inject = flags & FI_INJECT;
	ssize_t result = 0;
	if (n > IOVS)
		return -FI_EINVAL;
	const size_t length = iov_size(iov, n);
	if (length > MESSAGE_MOST || (inject && length > INJECT))
		return -FI_EMSGSIZE;
	pthread_mutex_lock(&a->lock);
	struct op *op = op_begin(p, SENDING, flags, context, &result);
	if (!op)
		goto out;
	op->acked = flags & (FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE);
	op->flags = FI_SEND | FI_MSG;
	op->length = length;
	op->niov = (unsigned)n;
	memcpy(op->iov, iov, n * sizeof *iov);
	op->header_size = frame_header(op->header, FRAME_MESSAGE, (data ? FRAME_DATA : 0) | (op->acked ? FRAME_ACKED : 0), length, value);
	if (length <= PACKED && op->header_size + length > SHORT_FRAME) {
		op->packed = pack(op->header + op->header_size, SHORT_FRAME - op->header_size, iov, (unsigned)n);
		op->header[1] |= op->packed ? FRAME_PACKED : 0;
		op->header[3] = op->packed;
		op->header_size += op->packed;
	}
	int error = 0;
	if (list_empty(&p->sends) && push(p, op, &error)) {
		pushed(p, op);
		goto out;
	}
	if (inject && length && !op->packed && !error)	/* the program may change its bytes */
		if (!op_copy(op, length))
			error = FI_ENOMEM;	/* the stream may have a part of the message */
	list_append(&p->sends, &op->link);
	if (error)
		endpoint_end(p, error, true);
out:
	pthread_mutex_unlock(&a->lock);
	return result;
}

#define endpoint_of(ep) element(ep, struct endpoint, fid)

static ssize_t send_(struct fid_ep *ep, const void *buf, size_t size, void *desc, fi_addr_t to, void *context)
{
	(void)desc, (void)to;
	return send_message(endpoint_of(ep), &(struct iovec){ (void *)buf, size }, 1, endpoint_of(ep)->send_flags, false, 0, context);
}

static ssize_t sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, void *context)
{
	(void)desc, (void)to;
	return send_message(endpoint_of(ep), iov, n, endpoint_of(ep)->send_flags, false, 0, context);
}

static ssize_t sendmsg_(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	return send_message(endpoint_of(ep), m->msg_iov, m->iov_count, flags, flags & FI_REMOTE_CQ_DATA, m->data, m->context);
}

static ssize_t senddata(struct fid_ep *ep, const void *buf, size_t size, void *desc, uint64_t data, fi_addr_t to, void *context)
{
	(void)desc, (void)to;
	return send_message(endpoint_of(ep), &(struct iovec){ (void *)buf, size }, 1, endpoint_of(ep)->send_flags, true, data, context);
}

static ssize_t inject(struct fid_ep *ep, const void *buf, size_t size, fi_addr_t to)
{
	(void)to;
	return send_message(endpoint_of(ep), &(struct iovec){ (void *)buf, size }, 1, FI_INJECT | QUIET, false, 0, NULL);
}

static ssize_t injectdata(struct fid_ep *ep, const void *buf, size_t size, uint64_t data, fi_addr_t to)
{
	(void)to;
	return send_message(endpoint_of(ep), &(struct iovec){ (void *)buf, size }, 1, FI_INJECT | QUIET, true, data, NULL);
}

/* post adds a buffer to a receive context, of an endpoint or of none. */
static ssize_t post(struct attachment *a, struct endpoint *p, struct receive_context *r, const struct iovec *iov, size_t n, bool report, void *context)
{
	if (n > IOVS)
		return -FI_EINVAL;
	ssize_t result = 0;
	struct op *op = NULL;
	pthread_mutex_lock(&a->lock);
	if (p && p->state == ENDED)
		result = -p->error;
	else if (p && p->state == OPENED)
		result = -FI_EOPBADSTATE;
	else if (r->count >= r->size)
		result = -FI_EAGAIN;
	else if (!(op = op_get(a)))
		result = -FI_ENOMEM;
	if (op) {
		op->kind = RECEIVING;
		op->endpoint = p;
		op->report = report;
		op->flags = FI_RECV | FI_MSG;
		op->context = context;
		op->niov = (unsigned)n;
		memcpy(op->iov, iov, n * sizeof *iov);
		op->room = iov_size(iov, n);
		if (!r->count++)
			a->events--;	/* a message may wait for it */
		list_append(&r->posted, &op->link);
	}
	pthread_mutex_unlock(&a->lock);
	return result;
}

static ssize_t post_own(struct fid_ep *ep, const struct iovec *iov, size_t n, uint64_t flags, void *context)
{
	struct endpoint *p = endpoint_of(ep);
	if (p->shared)
		return -FI_EOPNOTSUPP;	/* its buffers are posted to the shared context */
	return post(p->domain->attachment, p, &p->own, iov, n, op_reports(p, RECEIVING, flags), context);
}

static ssize_t recv_(struct fid_ep *ep, void *buf, size_t size, void *desc, fi_addr_t from, void *context)
{
	(void)desc, (void)from;
	return post_own(ep, &(struct iovec){ buf, size }, 1, endpoint_of(ep)->receive_flags, context);
}

static ssize_t recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t from, void *context)
{
	(void)desc, (void)from;
	return post_own(ep, iov, n, endpoint_of(ep)->receive_flags, context);
}

static ssize_t recvmsg_(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	return post_own(ep, m->msg_iov, m->iov_count, flags, m->context);
}

static ssize_t post_shared(struct fid_ep *ep, const struct iovec *iov, size_t n, void *context)
{
	struct shared_context *s = element(ep, struct shared_context, fid);
	return post(s->domain->attachment, NULL, &s->receives, iov, n, true, context);
}

static ssize_t shared_recv(struct fid_ep *ep, void *buf, size_t size, void *desc, fi_addr_t from, void *context)
{
	(void)desc, (void)from;
	return post_shared(ep, &(struct iovec){ buf, size }, 1, context);
}

static ssize_t shared_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t from, void *context)
{
	(void)desc, (void)from;
	return post_shared(ep, iov, n, context);
}

static ssize_t shared_recvmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	(void)flags;
	return post_shared(ep, m->msg_iov, m->iov_count, m->context);
}

/* A shared receive context sends nothing. */
static ssize_t no_send(struct fid_ep *ep, const void *buf, size_t size, void *desc, fi_addr_t to, void *context)
{
	(void)ep, (void)buf, (void)size, (void)desc, (void)to, (void)context;
	return -FI_ENOSYS;
}

static ssize_t no_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, void *context)
{
	(void)ep, (void)iov, (void)desc, (void)n, (void)to, (void)context;
	return -FI_ENOSYS;
}

static ssize_t no_sendmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	(void)ep, (void)m, (void)flags;
	return -FI_ENOSYS;
}

static ssize_t no_inject(struct fid_ep *ep, const void *buf, size_t size, fi_addr_t to)
{
	(void)ep, (void)buf, (void)size, (void)to;
	return -FI_ENOSYS;
}

static ssize_t no_senddata(struct fid_ep *ep, const void *buf, size_t size, void *desc, uint64_t data, fi_addr_t to, void *context)
{
	(void)data;
	return no_send(ep, buf, size, desc, to, context);
}

static ssize_t no_injectdata(struct fid_ep *ep, const void *buf, size_t size, uint64_t data, fi_addr_t to)
{
	(void)data;
	return no_inject(ep, buf, size, to);
}

struct fi_ops_msg message_ops = {
	.size = sizeof message_ops,
	.recv = recv_, .recvv = recvv, .recvmsg = recvmsg_,
	.send = send_, .sendv = sendv, .sendmsg = sendmsg_, .inject = inject, .senddata = senddata, .injectdata = injectdata,
};

struct fi_ops_msg shared_message_ops = {
	.size = sizeof shared_message_ops,
	.recv = shared_recv, .recvv = shared_recvv, .recvmsg = shared_recvmsg,
	.send = no_send, .sendv = no_sendv, .sendmsg = no_sendmsg, .inject = no_inject, .senddata = no_senddata, .injectdata = no_injectdata,
};
