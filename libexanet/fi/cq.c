/* Completion queues and counters. A completion is the operation itself, so that none is ever lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fi.h"

#define cq_of(fid_cq) element(fid_cq, struct cq, fid)

void cq_add(struct cq *cq, struct op *op)
{
	list_append(&cq->completed, &op->link);
	cq->count++;
	waiter_signal(&cq->waiter);
}

/* first returns the first completion, NULL: there is none. */
static struct op *first(struct cq *cq)
{
	return list_empty(&cq->completed) ? NULL : element(cq->completed.next, struct op, link);
}

static void drop(struct cq *cq, struct op *op)
{
	list_remove(&op->link);
	op_free(cq->domain->attachment, op);
	if (!--cq->count)
		waiter_clear(&cq->waiter);
}

static size_t bytes(const struct op *op)
{
	return op->kind == RECEIVING ? op->done : op->kind == REMOTE || op->error ? 0 : op->length;
}

/* copy writes a completion in the format of the queue, and returns its size. */
static size_t copy(const struct cq *cq, const struct op *op, void *to)
{
	const struct fi_cq_tagged_entry e = {
		.op_context = op->context, .flags = op->flags, .len = bytes(op), .data = op->data,
		.buf = op->kind == RECEIVING && op->niov ? op->iov[0].iov_base : NULL,
	};
	const size_t size = cq->format == FI_CQ_FORMAT_CONTEXT ? sizeof(struct fi_cq_entry) :
		cq->format == FI_CQ_FORMAT_MSG ? sizeof(struct fi_cq_msg_entry) :
		cq->format == FI_CQ_FORMAT_DATA ? sizeof(struct fi_cq_data_entry) : sizeof e;
	memcpy(to, &e, size);	/* each format is a beginning of the next one */
	return size;
}

/* take moves completions to the program: their number, -FI_EAGAIN, or -FI_EAVAIL: an error comes first. */
static ssize_t take(struct cq *cq, void *to, size_t count, fi_addr_t *from)
{
	size_t n = 0;
	struct op *op;
	char *at = to;
	for (; n < count && (op = first(cq)) && !op->error; n++) {
		at += copy(cq, op, at);
		if (from)
			from[n] = FI_ADDR_NOTAVAIL;
		drop(cq, op);
	}
	return n ? (ssize_t)n : (op = first(cq)) && op->error ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t readfrom(struct fid_cq *fid, void *to, size_t count, fi_addr_t *from)
{
	struct cq *cq = cq_of(fid);
	struct attachment *a = cq->domain->attachment;
	pthread_mutex_lock(&a->lock);
	progress_data(a);
	const ssize_t n = take(cq, to, count, from);
	if (n != -FI_EAGAIN)
		a->polled = 0;	/* the program has something to do, although it may call once more before that */
	pthread_mutex_unlock(&a->lock);
	if (n == -FI_EAGAIN)
		progress_offer(a);
	return n;
}

static ssize_t read_(struct fid_cq *fid, void *to, size_t count) { return readfrom(fid, to, count, NULL); }

struct taking {
	struct cq *cq;
	void *to;
	size_t count;
	fi_addr_t *from;
};

static ssize_t take_waiting(void *arg)
{
	struct taking *t = arg;
	const ssize_t n = t->count ? take(t->cq, t->to, t->count, t->from) : t->cq->count ? 0 : -FI_EAGAIN;
	if (n != -FI_EAGAIN || !t->cq->woken)
		return n;
	t->cq->woken = false;
	waiter_clear(&t->cq->waiter);
	return -FI_ECANCELED;
}

static ssize_t sreadfrom(struct fid_cq *fid, void *to, size_t count, fi_addr_t *from, const void *condition, int timeout)
{
	(void)condition;	/* fi_cq(3): an optimization */
	struct cq *cq = cq_of(fid);
	struct taking t = { cq, to, count, from };
	if (cq->waiter.object == FI_WAIT_NONE)
		return -FI_ENOSYS;
	const ssize_t n = wait_for(cq->domain->attachment, &cq->waiter, timeout, take_waiting, &t);
	return n == -FI_ECANCELED ? -FI_EAGAIN : n;
}

static ssize_t sread(struct fid_cq *fid, void *to, size_t count, const void *condition, int timeout)
{
	return sreadfrom(fid, to, count, NULL, condition, timeout);
}

static int signal_(struct fid_cq *fid)
{
	struct cq *cq = cq_of(fid);
	pthread_mutex_lock(&cq->domain->attachment->lock);
	cq->woken = true;
	waiter_signal(&cq->waiter);
	pthread_mutex_unlock(&cq->domain->attachment->lock);
	return 0;
}

static ssize_t readerr(struct fid_cq *fid, struct fi_cq_err_entry *to, uint64_t flags)
{
	(void)flags;
	struct cq *cq = cq_of(fid);
	ssize_t n = -FI_EAGAIN;
	pthread_mutex_lock(&cq->domain->attachment->lock);
	struct op *op = first(cq);
	if (op && op->error) {
		to->op_context = op->context;
		to->flags = op->flags;
		to->len = bytes(op);
		to->buf = op->kind == RECEIVING && op->niov ? op->iov[0].iov_base : NULL;
		to->data = op->data;
		to->tag = 0;
		to->olen = op->error == FI_ETRUNC ? op->length - op->room : 0;
		to->err = op->error;
		to->prov_errno = op->status ? op->status : op->error;
		to->err_data_size = 0;
		drop(cq, op);
		n = 1;
	}
	pthread_mutex_unlock(&cq->domain->attachment->lock);
	return n;
}

static const char *strerror_(struct fid_cq *fid, int code, const void *data, char *to, size_t size)
{
	(void)fid, (void)data;
	/* Statuses of transfers are below the errors that other operations have here. */
	const char *text = code > 0 && code <= 11 ? exanet_status(code) : fi_strerror(code < 0 ? -code : code);
	if (to && size)
		snprintf(to, size, "%s", text);
	return text;
}

static int cq_close(struct fid *fid)
{
	struct cq *cq = element(fid, struct cq, fid.fid);
	struct attachment *a = cq->domain->attachment;
	pthread_mutex_lock(&a->lock);
	if (cq->users) {
		pthread_mutex_unlock(&a->lock);
		return -FI_EBUSY;
	}
	for (struct op *op; (op = first(cq));)
		drop(cq, op);
	cq->domain->users--;
	pthread_mutex_unlock(&a->lock);
	waiter_close(&cq->waiter);
	free(cq);
	return 0;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	return waiter_control(&element(fid, struct cq, fid.fid)->waiter, command, arg);
}

static struct fi_ops cq_fid_ops = {
	.size = sizeof cq_fid_ops, .close = cq_close, .bind = no_bind, .control = cq_control, .ops_open = no_ops_open,
};
static struct fi_ops_cq cq_ops = {
	.size = sizeof cq_ops, .read = read_, .readfrom = readfrom, .readerr = readerr, .sread = sread, .sreadfrom = sreadfrom,
	.signal = signal_, .strerror = strerror_,
};

int cq_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
	struct domain *d = element(fid, struct domain, fid);
	const struct fi_cq_attr none = { 0 };
	if (!attr)
		attr = (struct fi_cq_attr *)&none;
	if (attr->format > FI_CQ_FORMAT_TAGGED)
		return -FI_EINVAL;
	struct cq *cq = calloc(1, sizeof *cq);
	if (!cq)
		return -FI_ENOMEM;
	const int error = waiter_open(&cq->waiter, attr->wait_obj, d->attachment);
	if (error) {
		free(cq);
		return error;
	}
	cq->fid = (struct fid_cq){ { FI_CLASS_CQ, context, &cq_fid_ops }, &cq_ops };
	cq->domain = d;
	cq->format = attr->format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : attr->format;
	cq->size = attr->size > OPERATIONS ? attr->size : OPERATIONS;
	list_init(&cq->completed);
	pthread_mutex_lock(&d->attachment->lock);
	d->users++;
	pthread_mutex_unlock(&d->attachment->lock);
	*out = &cq->fid;
	return 0;
}

#define counter_of(fid_cntr) element(fid_cntr, struct counter, fid)

void counter_add(struct counter *c, uint64_t done, uint64_t failed)
{
	c->value += done;
	c->errors += failed;
	waiter_signal(&c->waiter);
}

/* counter_read returns a field of a counter after progress. */
static uint64_t counter_read(struct fid_cntr *fid, const uint64_t *field)
{
	struct attachment *a = counter_of(fid)->domain->attachment;
	pthread_mutex_lock(&a->lock);
	progress_data(a);
	const uint64_t value = *field;
	pthread_mutex_unlock(&a->lock);
	return value;
}

static uint64_t value(struct fid_cntr *fid) { return counter_read(fid, &counter_of(fid)->value); }
static uint64_t errors(struct fid_cntr *fid) { return counter_read(fid, &counter_of(fid)->errors); }

/* change adds to a field of a counter, or with set sets it. */
static int change(struct fid_cntr *fid, uint64_t *field, uint64_t value, bool set)
{
	struct attachment *a = counter_of(fid)->domain->attachment;
	pthread_mutex_lock(&a->lock);
	*field = set ? value : *field + value;
	waiter_signal(&counter_of(fid)->waiter);
	pthread_mutex_unlock(&a->lock);
	return 0;
}

static int add(struct fid_cntr *fid, uint64_t n) { return change(fid, &counter_of(fid)->value, n, false); }
static int set(struct fid_cntr *fid, uint64_t n) { return change(fid, &counter_of(fid)->value, n, true); }
static int adderr(struct fid_cntr *fid, uint64_t n) { return change(fid, &counter_of(fid)->errors, n, false); }
static int seterr(struct fid_cntr *fid, uint64_t n) { return change(fid, &counter_of(fid)->errors, n, true); }

struct reaching {
	struct counter *counter;
	uint64_t threshold, errors;
};

static ssize_t reached(void *arg)
{
	const struct reaching *r = arg;
	struct counter *c = r->counter;
	waiter_clear(&c->waiter);	/* a change after this wakes the thread */
	return c->value >= r->threshold ? 0 : c->errors != r->errors ? -FI_EAVAIL : -FI_EAGAIN;
}

static int wait_(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
	struct counter *c = counter_of(fid);
	if (c->waiter.object == FI_WAIT_NONE)
		return -FI_ENOSYS;
	pthread_mutex_lock(&c->domain->attachment->lock);
	struct reaching r = { c, threshold, c->errors };
	pthread_mutex_unlock(&c->domain->attachment->lock);
	const ssize_t n = wait_for(c->domain->attachment, &c->waiter, timeout, reached, &r);
	return n == -FI_EAGAIN ? -FI_ETIMEDOUT : (int)n;
}

static int counter_close(struct fid *fid)
{
	struct counter *c = element(fid, struct counter, fid.fid);
	struct attachment *a = c->domain->attachment;
	pthread_mutex_lock(&a->lock);
	const bool used = c->users;
	if (!used)
		c->domain->users--;
	pthread_mutex_unlock(&a->lock);
	if (used)
		return -FI_EBUSY;
	waiter_close(&c->waiter);
	free(c);
	return 0;
}

static int counter_control(struct fid *fid, int command, void *arg)
{
	return waiter_control(&element(fid, struct counter, fid.fid)->waiter, command, arg);
}

static struct fi_ops counter_fid_ops = {
	.size = sizeof counter_fid_ops, .close = counter_close, .bind = no_bind, .control = counter_control, .ops_open = no_ops_open,
};
static struct fi_ops_cntr counter_ops = {
	.size = sizeof counter_ops, .read = value, .readerr = errors, .add = add, .set = set, .wait = wait_, .adderr = adderr, .seterr = seterr,
};

int counter_open(struct fid_domain *fid, struct fi_cntr_attr *attr, struct fid_cntr **out, void *context)
{
	struct domain *d = element(fid, struct domain, fid);
	struct counter *c = calloc(1, sizeof *c);
	if (!c)
		return -FI_ENOMEM;
	/* fi_cntr(3): FI_WAIT_NONE forbids fi_cntr_wait. */
	const int error = waiter_open(&c->waiter, attr ? attr->wait_obj : FI_WAIT_UNSPEC, d->attachment);
	if (error || (attr && attr->events != FI_CNTR_EVENTS_COMP)) {
		waiter_close(&c->waiter);
		free(c);
		return error ? error : -FI_EINVAL;
	}
	c->fid = (struct fid_cntr){ { FI_CLASS_CNTR, context, &counter_fid_ops }, &counter_ops };
	c->domain = d;
	pthread_mutex_lock(&d->attachment->lock);
	d->users++;
	pthread_mutex_unlock(&d->attachment->lock);
	*out = &c->fid;
	return 0;
}
