/* Domains, and memory regions: the whole address space is accessible, so that a region is only a number. */
#include <stdlib.h>

#include "fi.h"

struct region {
	struct fid_mr fid;
	struct domain *domain;
};

static int region_close(struct fid *fid)
{
	struct region *r = element(fid, struct region, fid.fid);
	__atomic_fetch_sub(&r->domain->regions, 1, __ATOMIC_RELAXED);
	free(r);
	return 0;
}

static struct fi_ops region_ops = {
	.size = sizeof region_ops, .close = region_close, .bind = no_bind, .control = no_control, .ops_open = no_ops_open,
};

static int region_open(struct fid *fid, size_t n, uint64_t flags, struct fid_mr **out, void *context)
{
	struct domain *d = element(fid, struct domain, fid.fid);
	if (n > IOVS || flags & FI_RMA_EVENT)
		return -FI_EINVAL;
	struct region *r = malloc(sizeof *r);
	if (!r)
		return -FI_ENOMEM;
	/* Nothing but the counts changes: no lock is taken and no memory is touched. */
	*r = (struct region){
		.fid = { { FI_CLASS_MR, context, &region_ops }, .mem_desc = r, .key = __atomic_add_fetch(&d->attachment->key, 1, __ATOMIC_RELAXED) },
		.domain = d,
	};
	__atomic_fetch_add(&d->regions, 1, __ATOMIC_RELAXED);
	*out = &r->fid;
	return 0;
}

static int reg(struct fid *fid, const void *buf, size_t size, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
	(void)buf, (void)size, (void)access, (void)offset, (void)key;
	return region_open(fid, 1, flags, out, context);
}

static int regv(struct fid *fid, const struct iovec *iov, size_t n, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
	(void)iov, (void)access, (void)offset, (void)key;
	return region_open(fid, n, flags, out, context);
}

static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
	return attr->iface == FI_HMEM_SYSTEM ? region_open(fid, attr->iov_count, flags, out, attr->context) : -FI_ENOSYS;
}

static struct fi_ops_mr mr_ops = { .size = sizeof mr_ops, .reg = reg, .regv = regv, .regattr = regattr };

static int no_av(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out, void *context)
{
	(void)fid, (void)attr, (void)out, (void)context;
	return -FI_ENOSYS;
}

static int no_scalable(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context)
{
	(void)fid, (void)info, (void)out, (void)context;
	return -FI_ENOSYS;
}

static int no_poll(struct fid_domain *fid, struct fi_poll_attr *attr, struct fid_poll **out)
{
	(void)fid, (void)attr, (void)out;
	return -FI_ENOSYS;
}

static int no_stx(struct fid_domain *fid, struct fi_tx_attr *attr, struct fid_stx **out, void *context)
{
	(void)fid, (void)attr, (void)out, (void)context;
	return -FI_ENOSYS;
}

static int no_atomic(struct fid_domain *fid, enum fi_datatype type, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags)
{
	(void)fid, (void)type, (void)op, (void)attr, (void)flags;
	return -FI_EOPNOTSUPP;
}

static int no_collective(struct fid_domain *fid, enum fi_collective_op op, struct fi_collective_attr *attr, uint64_t flags)
{
	(void)fid, (void)op, (void)attr, (void)flags;
	return -FI_EOPNOTSUPP;
}

static int domain_close(struct fid *fid)
{
	struct domain *d = element(fid, struct domain, fid.fid);
	pthread_mutex_lock(&d->attachment->lock);
	const bool used = d->users || __atomic_load_n(&d->regions, __ATOMIC_RELAXED);
	if (!used)
		d->fabric->users--;
	pthread_mutex_unlock(&d->attachment->lock);
	if (used)
		return -FI_EBUSY;
	free(d);
	return 0;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops, .close = domain_close, .bind = no_bind, .control = no_control, .ops_open = no_ops_open,
};
static struct fi_ops_domain domain_ops = {
	.size = sizeof domain_ops, .av_open = no_av, .cq_open = cq_open, .endpoint = endpoint_open, .scalable_ep = no_scalable,
	.cntr_open = counter_open, .poll_open = no_poll, .stx_ctx = no_stx, .srx_ctx = shared_open, .query_atomic = no_atomic,
	.query_collective = no_collective,
};

int domain_open(struct fid_fabric *fid, struct fi_info *info, struct fid_domain **out, void *context)
{
	(void)info;
	struct fabric *f = element(fid, struct fabric, fid);
	struct domain *d = calloc(1, sizeof *d);
	if (!d)
		return -FI_ENOMEM;
	d->fid = (struct fid_domain){ { FI_CLASS_DOMAIN, context, &fid_ops }, &domain_ops, &mr_ops };
	d->fabric = f;
	d->attachment = f->attachment;
	pthread_mutex_lock(&d->attachment->lock);
	f->users++;
	pthread_mutex_unlock(&d->attachment->lock);
	*out = &d->fid;
	return 0;
}
