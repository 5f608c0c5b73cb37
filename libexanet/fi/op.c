/* Operations and the pieces of memory that they use. */
#include <stdlib.h>
#include <string.h>

#include "fi.h"

size_t iov_size(const struct iovec *iov, size_t n)
{
	size_t size = 0;
	for (size_t i = 0; i < n; i++)
		size += iov[i].iov_len;
	return size;
}

unsigned iov_slice(const struct iovec *iov, unsigned n, size_t offset, size_t size, struct iovec *to)
{
	unsigned count = 0;
	for (unsigned i = 0; i < n && size; i++) {
		if (offset >= iov[i].iov_len) {
			offset -= iov[i].iov_len;
			continue;
		}
		const size_t left = iov[i].iov_len - offset, part = left < size ? left : size;
		to[count++] = (struct iovec){ (char *)iov[i].iov_base + offset, part };
		size -= part;
		offset = 0;
	}
	return count;
}

struct op *op_get(struct attachment *a)
{
	struct op *op;
	if (list_empty(&a->unused)) {
		if (!(op = malloc(sizeof *op)))
			return NULL;
		list_init(&op->link);
	} else {
		op = element(a->unused.next, struct op, link);
		list_remove(&op->link);
	}
	/* The arrays are written before they are read. */
	op->endpoint = NULL;
	op->report = op->quiet = op->silent = op->acked = op->remote_data = false;
	op->packed = 0;
	op->flags = op->data = 0;
	op->context = op->copy = NULL;
	op->length = op->done = op->room = 0;
	op->error = op->status = 0;
	op->niov = op->nrma = 0;
	return op;
}

void op_free(struct attachment *a, struct op *op)
{
	free(op->copy);
	op->copy = NULL;
	list_append(&a->unused, &op->link);
}

bool op_reports(const struct endpoint *p, enum kind kind, uint64_t flags)
{
	return !(flags & QUIET) && (!p->selective[kind] || flags & FI_COMPLETION);
}

struct op *op_begin(struct endpoint *p, enum kind kind, uint64_t flags, void *context, ssize_t *error)
{
	const struct cq *cq = p->cq[kind];
	struct op *op = NULL;
	if (p->state < CONNECTED)
		*error = p->state < CONNECTING ? -FI_EOPBADSTATE : -FI_ENOTCONN;
	else if (p->state == ENDED && flags & QUIET)
		*error = -p->error;
	else if (p->nsends >= p->sends_size || (cq && cq->count >= cq->size))
		*error = -FI_EAGAIN;
	else if (!(op = op_get(p->domain->attachment)))
		*error = -FI_ENOMEM;
	if (!op)
		return NULL;
	p->nsends++;
	op->kind = kind;
	op->endpoint = p;
	op->report = op_reports(p, kind, flags);
	op->quiet = flags & QUIET;
	op->context = context;
	if (p->state != ENDED)
		return op;
	/* ofi_rxm 1.17 does not expect an error from every call: it gets one in the queue. */
	op->flags = kind == SENDING ? FI_SEND | FI_MSG : FI_RMA | (kind == READING ? FI_READ : FI_WRITE);
	op_fail(op, p->error);
	return NULL;
}

bool op_copy(struct op *op, size_t size)
{
	if (!(op->copy = malloc(size)))
		return false;
	char *to = op->copy;
	for (unsigned i = 0; i < op->niov; to += op->iov[i++].iov_len)
		memcpy(to, op->iov[i].iov_base, op->iov[i].iov_len);
	op->niov = 1;
	op->iov[0] = (struct iovec){ op->copy, size };
	return true;
}

void op_complete(struct op *op)
{
	struct endpoint *p = op->endpoint;
	struct attachment *a = p->domain->attachment;
	struct cq *cq = p->cq[op->kind];
	if (op->silent)
		p->nsilent--;
	else if (op->kind != RECEIVING && op->kind != REMOTE)
		p->nsends--;
	if (!op->silent && p->counters[op->kind])
		counter_add(p->counters[op->kind], !op->error, !!op->error);
	op->endpoint = NULL;
	if (op->silent || !cq || !(op->report || (op->error && !op->quiet))) {
		op_free(a, op);
		return;
	}
	cq_add(cq, op);
}

void op_fail(struct op *op, int error)
{
	op->error = error;
	op_complete(op);
}

bool op_cancel(struct link *head, const void *context)
{
	for (struct link *l = head->next; l != head; l = l->next) {
		struct op *op = element(l, struct op, link);
		if (op->context != context || op->silent)
			continue;
		list_remove(l);
		op_fail(op, FI_ECANCELED);
		return true;
	}
	return false;
}
