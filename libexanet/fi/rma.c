/* Reads and writes of a peer's memory: transfers of libexanet, of any memory of both processes. */
#include <string.h>
#include <time.h>

#include "fi.h"

enum { PAUSE = 50000 };	/* ns */
#define PATIENCE INT64_C(2000000000)	/* ns: an abort ends a transfer sooner if pfd answers */

/* piece returns the next part of an operation's memory, which is contiguous here and at the peer. */
static struct exanet_transfer piece(const struct op *op)
{
	size_t at = op->started, far = op->started;
	unsigned i = 0, j = 0;
	while (at >= op->iov[i].iov_len)
		at -= op->iov[i++].iov_len;
	while (far >= op->rma[j].len)
		far -= op->rma[j++].len;
	const size_t here = op->iov[i].iov_len - at, there = op->rma[j].len - far;
	return (struct exanet_transfer){
		.local = (char *)op->iov[i].iov_base + at, .flags = EXANET_NOWAIT, .size = (uint32_t)(here < there ? here : there),
		.remote = op->endpoint->peer, .offset = op->rma[j].addr + far,
	};
}

/* fly starts transfers of an operation until all are started, and reports whether it started one. */
static bool fly(struct op *op)
{
	struct attachment *a = op->endpoint->domain->attachment;
	bool did = false;
	for (unsigned i = 0; i < PIECES && op->started < op->length && !op->error; i++) {
		if (op->transfers[i] >= 0)
			continue;
		const struct exanet_transfer t = piece(op);
		const int n = op->kind == READING ? exanet_read(a->exanet, &t) : exanet_write(a->exanet, &t);
		if (n == -EBUSY)
			break;
		did = true;
		if (n < 0) {
			op->error = n == -EINVAL ? FI_EFAULT : errno_of(a, n);
			op->status = -n;
			break;
		}
		op->transfers[i] = n;
		op->started += t.size;
		op->flying++;
	}
	return did;
}

/* land ends the transfers of an operation that have finished, and reports whether one has. */
static bool land(struct op *op)
{
	struct attachment *a = op->endpoint->domain->attachment;
	bool did = false;
	for (unsigned i = 0; i < PIECES && op->flying; i++) {
		if (op->transfers[i] < 0)
			continue;
		const int status = exanet_poll(a->exanet, op->transfers[i]);
		if (status == EXANET_ONGOING)
			continue;
		did = true;
		op->transfers[i] = -1;
		op->flying--;
		if (status && !op->error) {
			op->error = errno_of_status(a, status);
			op->status = status;
		}
	}
	return did;
}

bool rma_progress(struct attachment *a)
{
	bool did = false;
	for (struct link *l = a->transfers.next, *next; l != &a->transfers; l = next) {
		next = l->next;
		struct op *op = element(l, struct op, link);
		did |= land(op) | fly(op);
		if (op->flying || (op->started < op->length && !op->error))
			continue;
		list_remove(l);
		struct endpoint *p = op->endpoint;
		const bool data = op->remote_data && !op->error && p->state == CONNECTED;
		const uint64_t value = op->data;
		op->data = 0;	/* it is the peer's */
		op_complete(op);
		if (data)
			message_written(p, value);
	}
	return did;
}

void rma_abort(struct endpoint *p, int error)
{
	struct attachment *a = p->domain->attachment;
	for (struct link *l = a->transfers.next; l != &a->transfers; l = l->next) {
		struct op *op = element(l, struct op, link);
		if (op->endpoint != p)
			continue;
		if (!op->error)
			op->error = error;
		for (unsigned i = 0; i < PIECES; i++)
			if (op->transfers[i] >= 0)
				exanet_abort(a->exanet, op->transfers[i]);
	}
}

/* mine returns an operation of an endpoint, NULL: none is left. */
static struct op *mine(struct endpoint *p)
{
	struct link *head = &p->domain->attachment->transfers;
	for (struct link *l = head->next; l != head; l = l->next)
		if (element(l, struct op, link)->endpoint == p)
			return element(l, struct op, link);
	return NULL;
}

void rma_finish(struct endpoint *p)
{
	struct attachment *a = p->domain->attachment;
	const struct timespec pause = { .tv_nsec = PAUSE };
	struct op *op;
	for (int64_t end = clock_now() + PATIENCE; mine(p) && clock_now() < end;)
		if (!rma_progress(a))
			nanosleep(&pause, NULL);
	while ((op = mine(p))) {	/* the transfer keeps its number until the attachment ends */
		list_remove(&op->link);
		op_complete(op);
	}
}

static ssize_t start(struct endpoint *p, enum kind kind, const struct iovec *iov, size_t n, const struct fi_rma_iov *rma, size_t nrma,
	uint64_t flags, bool data, uint64_t value, void *context)
{
	struct attachment *a = p->domain->attachment;
	ssize_t result = 0;
	size_t there = 0;
	if (n > IOVS || nrma > RMA_IOVS)
		return -FI_EINVAL;
	const size_t length = iov_size(iov, n);
	for (size_t i = 0; i < nrma; i++)
		there += rma[i].len;
	if (length != there)
		return -FI_EINVAL;
	if (length > MESSAGE_MOST || (flags & FI_INJECT && length > INJECT))
		return -FI_EMSGSIZE;
	struct op *op = NULL;
	pthread_mutex_lock(&a->lock);
	if (data && p->nsilent >= OPERATIONS)
		result = -FI_EAGAIN;
	else
		op = op_begin(p, kind, flags, context, &result);
	if (!op)
		goto out;
	op->flags = FI_RMA | (kind == READING ? FI_READ : FI_WRITE);
	op->remote_data = data;
	op->data = value;
	op->length = length;
	op->niov = (unsigned)n;
	op->nrma = (unsigned)nrma;
	memcpy(op->iov, iov, n * sizeof *iov);
	memcpy(op->rma, rma, nrma * sizeof *rma);
	op->started = op->flying = 0;
	for (unsigned i = 0; i < PIECES; i++)
		op->transfers[i] = -1;
	bool begun = !length;
	/* The device reads the memory of a write later. */
	if (length && flags & FI_INJECT && !op_copy(op, length))
		result = -FI_ENOMEM;
	else if (length)
		begun = fly(op);
	if (!result && !begun)
		result = -FI_EAGAIN;
	if (result) {
		p->nsends--;
		op->endpoint = NULL;
		op_free(a, op);
	} else {
		list_append(&a->transfers, &op->link);
	}
out:
	pthread_mutex_unlock(&a->lock);
	return result;
}

#define endpoint_of(ep) element(ep, struct endpoint, fid)

static ssize_t one(struct fid_ep *ep, enum kind kind, const void *buf, size_t size, uint64_t address, uint64_t key, uint64_t flags, bool data, uint64_t value, void *context)
{
	const struct iovec iov = { (void *)buf, size };
	const struct fi_rma_iov rma = { address, size, key };
	return start(endpoint_of(ep), kind, &iov, 1, &rma, 1, flags, data, value, context);
}

static ssize_t read_(struct fid_ep *ep, void *buf, size_t size, void *desc, fi_addr_t from, uint64_t address, uint64_t key, void *context)
{
	(void)desc, (void)from;
	return one(ep, READING, buf, size, address, key, endpoint_of(ep)->send_flags & ~FI_INJECT, false, 0, context);
}

static ssize_t readv_(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t from, uint64_t address, uint64_t key, void *context)
{
	(void)desc, (void)from;
	const struct fi_rma_iov rma = { address, iov_size(iov, n), key };
	return start(endpoint_of(ep), READING, iov, n, &rma, 1, endpoint_of(ep)->send_flags & ~FI_INJECT, false, 0, context);
}

static ssize_t readmsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags)
{
	return start(endpoint_of(ep), READING, m->msg_iov, m->iov_count, m->rma_iov, m->rma_iov_count, flags & ~FI_INJECT, false, 0, m->context);
}

static ssize_t write_(struct fid_ep *ep, const void *buf, size_t size, void *desc, fi_addr_t to, uint64_t address, uint64_t key, void *context)
{
	(void)desc, (void)to;
	return one(ep, WRITING, buf, size, address, key, endpoint_of(ep)->send_flags, false, 0, context);
}

static ssize_t writev_(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, uint64_t address, uint64_t key, void *context)
{
	(void)desc, (void)to;
	const struct fi_rma_iov rma = { address, iov_size(iov, n), key };
	return start(endpoint_of(ep), WRITING, iov, n, &rma, 1, endpoint_of(ep)->send_flags, false, 0, context);
}

static ssize_t writemsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags)
{
	return start(endpoint_of(ep), WRITING, m->msg_iov, m->iov_count, m->rma_iov, m->rma_iov_count, flags, flags & FI_REMOTE_CQ_DATA, m->data, m->context);
}

static ssize_t inject(struct fid_ep *ep, const void *buf, size_t size, fi_addr_t to, uint64_t address, uint64_t key)
{
	(void)to;
	return one(ep, WRITING, buf, size, address, key, FI_INJECT | QUIET, false, 0, NULL);
}

static ssize_t writedata(struct fid_ep *ep, const void *buf, size_t size, void *desc, uint64_t data, fi_addr_t to, uint64_t address, uint64_t key, void *context)
{
	(void)desc, (void)to;
	return one(ep, WRITING, buf, size, address, key, endpoint_of(ep)->send_flags, true, data, context);
}

static ssize_t injectdata(struct fid_ep *ep, const void *buf, size_t size, uint64_t data, fi_addr_t to, uint64_t address, uint64_t key)
{
	(void)to;
	return one(ep, WRITING, buf, size, address, key, FI_INJECT | QUIET, true, data, NULL);
}

struct fi_ops_rma rma_ops = {
	.size = sizeof rma_ops,
	.read = read_, .readv = readv_, .readmsg = readmsg, .write = write_, .writev = writev_, .writemsg = writemsg,
	.inject = inject, .writedata = writedata, .injectdata = injectdata,
};
