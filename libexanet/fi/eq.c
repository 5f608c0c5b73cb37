/* Event queues: the life of connections. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fi.h"

struct event {
	struct link link;
	uint32_t event;
	fid_t fid;
	struct fi_info *info;
	int error;
	bool written;			/* by fi_eq_write: data is the whole entry */
	size_t size;
	unsigned char data[];
};

#define eq_of(fid_eq) element(fid_eq, struct eq, fid)

static void add(struct eq *eq, struct event *e)
{
	list_append(&eq->events, &e->link);
	waiter_signal(&eq->waiter);
}

static struct event *make(const void *data, size_t size)
{
	struct event *e = calloc(1, sizeof *e + size);
	if (e && size)
		memcpy(e->data, data, size);
	if (e)
		e->size = size;
	return e;
}

void eq_event(struct eq *eq, uint32_t event, fid_t fid, struct fi_info *info, int error, const void *data, size_t size)
{
	struct event *e = eq ? make(data, size) : NULL;
	if (!e) {
		fi_freeinfo(info);
		return;
	}
	e->event = event;
	e->fid = fid;
	e->info = info;
	e->error = error;
	add(eq, e);
}

static void drop(struct eq *eq, struct event *e)
{
	list_remove(&e->link);
	if (list_empty(&eq->events))
		waiter_clear(&eq->waiter);
	free(e);
}

void eq_forget(struct eq *eq, fid_t fid)
{
	if (!eq)
		return;
	for (struct link *l = eq->events.next, *next; l != &eq->events; l = next) {
		next = l->next;
		struct event *e = element(l, struct event, link);
		if (e->written || (e->fid != fid && !(e->info && e->info->handle == fid)))
			continue;
		fi_freeinfo(e->info);
		drop(eq, e);
	}
}

struct taking {
	struct eq *eq;
	uint32_t *event;
	void *to;
	size_t size;
	uint64_t flags;
};

static ssize_t take(void *arg)
{
	struct taking *t = arg;
	struct eq *eq = t->eq;
	if (list_empty(&eq->events))
		return -FI_EAGAIN;
	struct event *e = element(eq->events.next, struct event, link);
	if (e->error)
		return -FI_EAVAIL;
	const struct fi_eq_cm_entry entry = { .fid = e->fid, .info = e->info };
	const size_t head = e->written ? 0 : sizeof entry;
	if (t->size < head)
		return -FI_ETOOSMALL;
	size_t size = e->size;
	if (size > t->size - head)
		size = t->size - head;
	if (head)
		memcpy(t->to, &entry, head);
	memcpy((char *)t->to + head, e->data, size);
	*t->event = e->event;
	if (!(t->flags & FI_PEEK))
		drop(eq, e);
	return (ssize_t)(head + size);
}

static ssize_t read_(struct fid_eq *fid, uint32_t *event, void *to, size_t size, uint64_t flags)
{
	struct taking t = { eq_of(fid), event, to, size, flags };
	struct attachment *a = t.eq->fabric->attachment;
	pthread_mutex_lock(&a->lock);
	progress_control(a);
	progress_data(a);
	const ssize_t n = take(&t);
	pthread_mutex_unlock(&a->lock);
	return n;
}

static ssize_t sread(struct fid_eq *fid, uint32_t *event, void *to, size_t size, int timeout, uint64_t flags)
{
	struct taking t = { eq_of(fid), event, to, size, flags };
	if (t.eq->waiter.object == FI_WAIT_NONE)
		return -FI_ENOSYS;
	return wait_for(t.eq->fabric->attachment, &t.eq->waiter, timeout, take, &t);
}

static ssize_t readerr(struct fid_eq *fid, struct fi_eq_err_entry *to, uint64_t flags)
{
	struct eq *eq = eq_of(fid);
	struct attachment *a = eq->fabric->attachment;
	ssize_t n = -FI_EAGAIN;
	pthread_mutex_lock(&a->lock);
	struct event *e = list_empty(&eq->events) ? NULL : element(eq->events.next, struct event, link);
	if (e && e->error) {
		void *data = to->err_data;
		size_t size = e->size;
		if (!to->err_data_size || eq->fabric->fid.api_version < FI_VERSION(1, 5)) {
			memcpy(eq->error_data, e->data, e->size);
			data = eq->error_data;
		} else {
			if (size > to->err_data_size)
				size = to->err_data_size;
			memcpy(data, e->data, size);
		}
		*to = (struct fi_eq_err_entry){
			.fid = e->fid, .context = e->fid->context, .err = e->error, .prov_errno = e->error,
			.err_data = size ? data : NULL, .err_data_size = size,
		};
		n = sizeof *to;
		if (!(flags & FI_PEEK))
			drop(eq, e);
	}
	pthread_mutex_unlock(&a->lock);
	return n;
}

static ssize_t write_(struct fid_eq *fid, uint32_t event, const void *data, size_t size, uint64_t flags)
{
	struct eq *eq = eq_of(fid);
	struct attachment *a = eq->fabric->attachment;
	if (!eq->writable || flags)
		return -FI_EINVAL;
	struct event *e = make(data, size);
	if (!e)
		return -FI_ENOMEM;
	e->event = event;
	e->written = true;
	pthread_mutex_lock(&a->lock);
	add(eq, e);
	pthread_mutex_unlock(&a->lock);
	return (ssize_t)size;
}

static const char *strerror_(struct fid_eq *fid, int code, const void *data, char *to, size_t size)
{
	(void)fid, (void)data;
	const char *text = fi_strerror(code < 0 ? -code : code);
	if (to && size)
		snprintf(to, size, "%s", text);
	return text;
}

static int eq_close(struct fid *fid)
{
	struct eq *eq = element(fid, struct eq, fid.fid);
	struct attachment *a = eq->fabric->attachment;
	pthread_mutex_lock(&a->lock);
	if (eq->users) {
		pthread_mutex_unlock(&a->lock);
		return -FI_EBUSY;
	}
	while (!list_empty(&eq->events)) {
		struct event *e = element(eq->events.next, struct event, link);
		fi_freeinfo(e->info);
		drop(eq, e);
	}
	eq->fabric->users--;
	pthread_mutex_unlock(&a->lock);
	waiter_close(&eq->waiter);
	free(eq);
	return 0;
}

static int eq_control(struct fid *fid, int command, void *arg)
{
	return waiter_control(&element(fid, struct eq, fid.fid)->waiter, command, arg);
}

static struct fi_ops eq_fid_ops = {
	.size = sizeof eq_fid_ops, .close = eq_close, .bind = no_bind, .control = eq_control, .ops_open = no_ops_open,
};
static struct fi_ops_eq eq_ops = {
	.size = sizeof eq_ops, .read = read_, .readerr = readerr, .write = write_, .sread = sread, .strerror = strerror_,
};

int eq_open(struct fid_fabric *fid, struct fi_eq_attr *attr, struct fid_eq **out, void *context)
{
	struct fabric *f = element(fid, struct fabric, fid);
	struct eq *eq = calloc(1, sizeof *eq);
	if (!eq)
		return -FI_ENOMEM;
	const int error = waiter_open(&eq->waiter, attr ? attr->wait_obj : FI_WAIT_NONE, f->attachment);
	if (error) {
		free(eq);
		return error;
	}
	eq->fid = (struct fid_eq){ { FI_CLASS_EQ, context, &eq_fid_ops }, &eq_ops };
	eq->fabric = f;
	eq->writable = attr && attr->flags & FI_WRITE;
	list_init(&eq->events);
	pthread_mutex_lock(&f->attachment->lock);
	f->users++;
	pthread_mutex_unlock(&f->attachment->lock);
	*out = &eq->fid;
	return 0;
}
