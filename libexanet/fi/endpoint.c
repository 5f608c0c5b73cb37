/* Endpoints and shared receive contexts: opening, binding, closing. */
#include <stdlib.h>

#include "fi.h"

int option_set(fid_t fid, int level, int name, const void *value, size_t size)
{
	(void)fid, (void)level, (void)name, (void)value, (void)size;
	return -FI_ENOPROTOOPT;
}

int option_get(fid_t fid, int level, int name, void *value, size_t *size)
{
	(void)fid;
	if (level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE)
		return -FI_ENOPROTOOPT;
	const bool fits = *size >= sizeof(size_t);
	*size = sizeof(size_t);
	if (fits)
		*(size_t *)value = CM_DATA;
	return fits ? 0 : -FI_ETOOSMALL;
}

/* fail_all completes the operations of a list. */
static void fail_all(struct link *head, int error)
{
	while (!list_empty(head)) {
		struct op *op = element(head->next, struct op, link);
		list_remove(&op->link);
		op_fail(op, error);
	}
}

void endpoint_end(struct endpoint *p, int error, bool raise)
{
	const enum state before = p->state;
	if (before == ENDED)
		return;
	p->state = ENDED;
	p->error = error;
	list_remove(&p->link);
	if (p->stream)
		exanet_stream_close(p->stream);
	p->stream = NULL;
	if (p->into)
		op_fail(p->into, error);
	p->into = NULL;
	fail_all(&p->unacked, error);
	fail_all(&p->sends, error);
	p->own.count = 0;
	fail_all(&p->own.posted, before != CONNECTED || error == FI_ESHUTDOWN ? FI_ECANCELED : error);	/* else something may be lost */
	rma_abort(p, error);
	if (!raise)
		return;
	if (before == CONNECTED)
		eq_event(p->eq, FI_SHUTDOWN, &p->fid.fid, NULL, 0, NULL, 0);
	else
		eq_event(p->eq, 0, &p->fid.fid, NULL, error == FI_ESHUTDOWN ? FI_ECONNREFUSED : error, NULL, 0);
}

static void unuse(struct endpoint *p)
{
	for (int i = 0; i < KINDS; i++) {
		if (p->cq[i])
			p->cq[i]->users--;
		if (p->counters[i])
			p->counters[i]->users--;
	}
	if (p->eq)
		p->eq->users--;
	if (p->shared)
		p->shared->users--;
	p->domain->users--;
}

static int endpoint_close(struct fid *fid)
{
	struct endpoint *p = element(fid, struct endpoint, fid.fid);
	struct attachment *a = p->domain->attachment;
	pthread_mutex_lock(&a->lock);
	endpoint_end(p, FI_ECANCELED, false);
	rma_finish(p);
	if (p->request)
		request_drop(a, p->request);
	eq_forget(p->eq, fid);
	unuse(p);
	pthread_mutex_unlock(&a->lock);
	free(p);
	return 0;
}

static int bind_cq(struct endpoint *p, struct cq *cq, uint64_t flags)
{
	static const uint64_t directions[KINDS] = { FI_TRANSMIT, FI_RECV, FI_TRANSMIT, FI_TRANSMIT, FI_RECV };
	if (cq->domain != p->domain || !(flags & (FI_TRANSMIT | FI_RECV)) || flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION))
		return -FI_EINVAL;
	for (int i = 0; i < KINDS; i++) {
		if (!(flags & directions[i]))
			continue;
		if (p->cq[i])
			return -FI_EINVAL;
		p->cq[i] = cq;
		p->selective[i] = flags & FI_SELECTIVE_COMPLETION;
		cq->users++;
	}
	return 0;
}

static int bind_counter(struct endpoint *p, struct counter *c, uint64_t flags)
{
	/* A process does not see transfers of its memory but those with CQ data. */
	static const uint64_t directions[KINDS] = { FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_WRITE };
	if (c->domain != p->domain)
		return -FI_EINVAL;
	for (int i = 0; i < KINDS; i++) {
		if (!(flags & directions[i]))
			continue;
		if (p->counters[i])
			return -FI_EINVAL;
		p->counters[i] = c;
		c->users++;
	}
	return 0;
}

static int bind_shared(struct endpoint *p, struct shared_context *s)
{
	if (s->domain != p->domain || p->shared)
		return -FI_EINVAL;
	p->shared = s;
	p->receives = &s->receives;
	s->users++;
	return 0;
}

static int endpoint_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct endpoint *p = element(fid, struct endpoint, fid.fid);
	struct attachment *a = p->domain->attachment;
	int result = -FI_EINVAL;
	pthread_mutex_lock(&a->lock);
	if (p->state != OPENED)
		result = -FI_EOPBADSTATE;
	else if (other->fclass == FI_CLASS_EQ && !p->eq) {
		p->eq = element(other, struct eq, fid.fid);
		p->eq->users++;
		result = 0;
	} else if (other->fclass == FI_CLASS_CQ)
		result = bind_cq(p, element(other, struct cq, fid.fid), flags);
	else if (other->fclass == FI_CLASS_CNTR)
		result = bind_counter(p, element(other, struct counter, fid.fid), flags);
	else if (other->fclass == FI_CLASS_SRX_CTX)
		result = bind_shared(p, element(other, struct shared_context, fid.fid));
	pthread_mutex_unlock(&a->lock);
	return result;
}

static int endpoint_control(struct fid *fid, int command, void *arg)
{
	(void)arg;
	struct endpoint *p = element(fid, struct endpoint, fid.fid);
	struct attachment *a = p->domain->attachment;
	int result = 0;
	if (command != FI_ENABLE)
		return -FI_ENOSYS;
	pthread_mutex_lock(&a->lock);
	if (p->state != OPENED)
		result = -FI_EOPBADSTATE;
	else if (!p->eq)
		result = -FI_ENOEQ;
	else if ((!p->cq[SENDING] && !p->counters[SENDING]) || (!p->cq[RECEIVING] && !p->counters[RECEIVING]))
		result = -FI_ENOCQ;
	else
		p->state = ENABLED;
	pthread_mutex_unlock(&a->lock);
	return result;
}

static ssize_t endpoint_cancel(fid_t fid, void *context)
{
	struct endpoint *p = element(fid, struct endpoint, fid.fid);
	struct attachment *a = p->domain->attachment;
	pthread_mutex_lock(&a->lock);
	if (op_cancel(&p->own.posted, context))
		p->own.count--;
	pthread_mutex_unlock(&a->lock);
	return 0;
}

static int no_context(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **out, void *context)
{
	(void)ep, (void)index, (void)attr, (void)out, (void)context;
	return -FI_ENOSYS;
}

static int no_receive_context(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **out, void *context)
{
	(void)ep, (void)index, (void)attr, (void)out, (void)context;
	return -FI_ENOSYS;
}

static ssize_t no_size(struct fid_ep *ep)
{
	(void)ep;
	return -FI_ENOSYS;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops, .close = endpoint_close, .bind = endpoint_bind, .control = endpoint_control, .ops_open = no_ops_open,
};
static struct fi_ops_ep endpoint_ops = {
	.size = sizeof endpoint_ops, .cancel = endpoint_cancel, .getopt = option_get, .setopt = option_set,
	.tx_ctx = no_context, .rx_ctx = no_receive_context, .rx_size_left = no_size, .tx_size_left = no_size,
};

int endpoint_open(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context)
{
	struct domain *d = element(fid, struct domain, fid);
	if (info->ep_attr && info->ep_attr->type != FI_EP_MSG)
		return -FI_EINVAL;
	struct endpoint *p = calloc(1, sizeof *p);
	if (!p)
		return -FI_ENOMEM;
	p->fid = (struct fid_ep){
		.fid = { FI_CLASS_EP, context, &fid_ops }, .ops = &endpoint_ops, .cm = &endpoint_cm_ops, .msg = &message_ops, .rma = &rma_ops,
	};
	p->domain = d;
	p->address = d->attachment->address;
	p->send_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
	p->receive_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
	p->sends_size = info->tx_attr && info->tx_attr->size && info->tx_attr->size < OPERATIONS ? info->tx_attr->size : OPERATIONS;
	p->own.size = info->rx_attr && info->rx_attr->size ? info->rx_attr->size : OPERATIONS;
	p->receives = &p->own;
	list_init(&p->link);
	list_init(&p->sends);
	list_init(&p->unacked);
	list_init(&p->own.posted);
	pthread_mutex_lock(&d->attachment->lock);
	struct request *r = info->handle ? request_find(d->attachment, info->handle) : NULL;
	const bool right = !info->handle || (r && !r->endpoint);
	if (right)
		d->users++;
	if (right && r) {
		p->request = r;
		r->endpoint = p;
	}
	pthread_mutex_unlock(&d->attachment->lock);
	if (!right) {
		free(p);
		return -FI_EINVAL;
	}
	*out = &p->fid;
	return 0;
}

static int shared_close(struct fid *fid)
{
	struct shared_context *s = element(fid, struct shared_context, fid.fid);
	struct attachment *a = s->domain->attachment;
	pthread_mutex_lock(&a->lock);
	const bool used = s->users;
	if (!used) {
		while (!list_empty(&s->receives.posted)) {	/* they belong to no queue */
			struct op *op = element(s->receives.posted.next, struct op, link);
			list_remove(&op->link);
			op_free(a, op);
		}
		s->domain->users--;
	}
	pthread_mutex_unlock(&a->lock);
	if (used)
		return -FI_EBUSY;
	free(s);
	return 0;
}

/* A posted buffer of a shared context has no queue in which its cancellation could be read. */
static ssize_t shared_cancel(fid_t fid, void *context)
{
	(void)fid, (void)context;
	return -FI_ENOSYS;
}

static struct fi_ops shared_fid_ops = {
	.size = sizeof shared_fid_ops, .close = shared_close, .bind = no_bind, .control = no_control, .ops_open = no_ops_open,
};
static struct fi_ops_ep shared_ops = {
	.size = sizeof shared_ops, .cancel = shared_cancel, .getopt = option_get, .setopt = option_set,
	.tx_ctx = no_context, .rx_ctx = no_receive_context, .rx_size_left = no_size, .tx_size_left = no_size,
};

int shared_open(struct fid_domain *fid, struct fi_rx_attr *attr, struct fid_ep **out, void *context)
{
	struct domain *d = element(fid, struct domain, fid);
	struct shared_context *s = calloc(1, sizeof *s);
	if (!s)
		return -FI_ENOMEM;
	s->fid = (struct fid_ep){ .fid = { FI_CLASS_SRX_CTX, context, &shared_fid_ops }, .ops = &shared_ops, .msg = &shared_message_ops };
	s->domain = d;
	s->receives.size = attr && attr->size ? attr->size : SHARED;
	list_init(&s->receives.posted);
	pthread_mutex_lock(&d->attachment->lock);
	d->users++;
	pthread_mutex_unlock(&d->attachment->lock);
	*out = &s->fid;
	return 0;
}
