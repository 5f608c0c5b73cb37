/* The fabric: this process's attachment. */
#include <stdlib.h>
#include <string.h>

#include "fi.h"

int no_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)other, (void)flags;
	return -FI_ENOSYS;
}

int no_control(struct fid *fid, int command, void *arg)
{
	(void)fid, (void)command, (void)arg;
	return -FI_ENOSYS;
}

int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
	(void)fid, (void)name, (void)flags, (void)ops, (void)context;
	return -FI_ENOSYS;
}

static int no_wait(struct fid_fabric *fid, struct fi_wait_attr *attr, struct fid_wait **out)
{
	(void)fid, (void)attr, (void)out;
	return -FI_ENOSYS;
}

static int fabric_close(struct fid *fid)
{
	struct fabric *f = element(fid, struct fabric, fid.fid);
	pthread_mutex_lock(&f->attachment->lock);
	const bool used = f->users;
	pthread_mutex_unlock(&f->attachment->lock);
	if (used)
		return -FI_EBUSY;
	attachment_leave(f->attachment);
	free(f);
	return 0;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops, .close = fabric_close, .bind = no_bind, .control = no_control, .ops_open = no_ops_open,
};
static struct fi_ops_fabric fabric_ops = {
	.size = sizeof fabric_ops, .domain = domain_open, .passive_ep = listener_open, .eq_open = eq_open, .wait_open = no_wait,
	.trywait = fabric_trywait,
};

int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
	if (attr->name && strcmp(attr->name, exanet_provider.name))
		return -FI_ENODATA;
	struct fabric *f = calloc(1, sizeof *f);
	if (!f)
		return -FI_ENOMEM;
	if (!(f->attachment = attachment_use())) {
		free(f);
		return -FI_ENODEV;
	}
	f->fid = (struct fid_fabric){ { FI_CLASS_FABRIC, context, &fid_ops }, &fabric_ops, attr->api_version };
	*out = &f->fid;
	return 0;
}
