/* Calls of libfabric on the provider exanet, each against its manual page: both ends of every connection are in
 * this process, which connects to itself. calls prints nothing and exits with 0 if all is right. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "exanet.h"
#include "exanet_stream.h"

enum { PATIENCE = 120000, BIG = 9 << 20, BACKLOG = 1024 };	/* ms; bytes, more than any ring; connections that a process keeps */

static void check(bool right, int line, const char *what, long got)
{
	if (right)
		return;
	fprintf(stderr, "calls.c:%d: %s: %ld\n", line, what, got);
	exit(1);
}
#define CHECK(x) check(x, __LINE__, #x, 0)
#define EQUAL(x, want) do { const long got_ = (long)(x); check(got_ == (long)(want), __LINE__, #x, got_); } while (0)

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_pep *pep;
static struct fi_info *info;

static struct fi_info *hints_new(void)
{
	struct fi_info *h = fi_allocinfo();
	h->fabric_attr->prov_name = strdup("exanet");
	h->ep_attr->type = FI_EP_MSG;
	return h;
}

static int get(struct fi_info *h)
{
	struct fi_info *i = NULL;
	const int error = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &i);
	if (!error)
		fi_freeinfo(i);
	return error;
}

/* REFUSED: hints with one field that the provider has not. */
#define REFUSED(field, value) do { struct fi_info *h_ = hints_new(); h_->field = value; EQUAL(get(h_), -FI_ENODATA); fi_freeinfo(h_); } while (0)
#define ADMITTED(field, value) do { struct fi_info *h_ = hints_new(); h_->field = value; EQUAL(get(h_), 0); fi_freeinfo(h_); } while (0)

static void test_info(void)
{
	struct fi_info *h = hints_new(), *i;
	EQUAL(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &info), 0);
	CHECK(!strcmp(info->fabric_attr->prov_name, "exanet") && !strcmp(info->domain_attr->name, "exanet") && !info->next);
	EQUAL(info->addr_format, FI_SOCKADDR_IN);
	EQUAL(info->tx_attr->inject_size, 256);
	EQUAL(info->domain_attr->mr_mode, FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
	const struct sockaddr_in *a = info->src_addr;
	CHECK(info->src_addrlen == sizeof *a && a->sin_family == AF_INET && ntohl(a->sin_addr.s_addr) >> 28 == 15);
	CHECK(ntohs(a->sin_port) >> 8 >= 16 && ntohs(a->sin_port) >> 8 <= 31 && !(ntohs(a->sin_port) & 255));
	EQUAL(fi_getinfo(FI_VERSION(1, 17), "240.0.0.1", "4097", 0, h, &i), 0);
	a = i->dest_addr;
	CHECK(i->dest_addrlen == sizeof *a && ntohl(a->sin_addr.s_addr) == 0xf0000001 && ntohs(a->sin_port) == 4097);
	fi_freeinfo(i);
	EQUAL(fi_getinfo(FI_VERSION(1, 17), "192.0.2.1", "1", 0, h, &i), -FI_ENODATA);
	EQUAL(fi_getinfo(FI_VERSION(1, 17), "240.0.0.1", "http", 0, h, &i), -FI_ENODATA);
	fi_freeinfo(h);
	REFUSED(ep_attr->type, FI_EP_DGRAM);
	REFUSED(caps, FI_MSG | FI_ATOMIC);
	REFUSED(caps, FI_TAGGED);
	REFUSED(addr_format, FI_SOCKADDR_IN6);
	REFUSED(domain_attr->data_progress, FI_PROGRESS_AUTO);
	REFUSED(domain_attr->cq_data_size, 16);
	REFUSED(domain_attr->mr_mode, FI_MR_SCALABLE);
	REFUSED(domain_attr->mr_mode, FI_MR_VIRT_ADDR);
	REFUSED(ep_attr->max_msg_size, (size_t)1 << 32);
	REFUSED(ep_attr->protocol, FI_PROTO_SOCK_TCP);
	REFUSED(tx_attr->inject_size, 257);
	REFUSED(tx_attr->msg_order, FI_ORDER_SAW);
	REFUSED(tx_attr->op_flags, FI_COMMIT_COMPLETE);
	REFUSED(rx_attr->iov_limit, 9);
	REFUSED(rx_attr->size, 1 << 20);
	REFUSED(fabric_attr->name, strdup("another"));
	REFUSED(domain_attr->name, strdup("another"));
	ADMITTED(caps, FI_MSG | FI_RMA | FI_REMOTE_READ | FI_LOCAL_COMM);
	ADMITTED(addr_format, FI_SOCKADDR);
	ADMITTED(domain_attr->mr_mode, FI_MR_BASIC);
	ADMITTED(domain_attr->mr_mode, FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
	ADMITTED(tx_attr->msg_order, FI_ORDER_SAS);
	ADMITTED(tx_attr->op_flags, FI_DELIVERY_COMPLETE);
	ADMITTED(ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT);
}

/* event waits for an event and returns its number; the entry and its data are in e. */
static struct {
	struct fi_eq_cm_entry entry;
	unsigned char data[128];
} e;

static uint32_t event(struct fid_eq *q)
{
	uint32_t event;
	memset(&e, 0, sizeof e);
	const ssize_t n = fi_eq_sread(q, &event, &e, sizeof e, PATIENCE, 0);
	check(n >= (ssize_t)sizeof e.entry, __LINE__, "fi_eq_sread", n);
	return event;
}

static int event_error(struct fid_eq *q, struct fi_eq_err_entry *err)
{
	uint32_t event;
	EQUAL(fi_eq_sread(q, &event, &e, sizeof e, PATIENCE, 0), -FI_EAVAIL);
	EQUAL(fi_eq_readerr(q, err, 0), sizeof *err);
	return err->err;
}

static void test_open(void)
{
	uint32_t number = 0;
	struct fi_eq_entry in = { .data = 7 }, out = { 0 };
	int fd = -1;
	EQUAL(fi_fabric(info->fabric_attr, &fabric, &fabric), 0);
	CHECK(fabric->fid.fclass == FI_CLASS_FABRIC && fabric->fid.context == &fabric);
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD, .flags = FI_WRITE };
	EQUAL(fi_eq_open(fabric, &attr, &eq, NULL), 0);
	EQUAL(fi_control(&eq->fid, FI_GETWAIT, &fd), 0);
	CHECK(fd >= 0);
	EQUAL(fi_eq_read(eq, &number, &out, sizeof out, 0), -FI_EAGAIN);
	EQUAL(fi_eq_sread(eq, &number, &out, sizeof out, 1, 0), -FI_EAGAIN);
	EQUAL(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
	EQUAL(poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, PATIENCE), 1);
	EQUAL(fi_eq_read(eq, &number, &out, sizeof out, FI_PEEK), sizeof out);
	EQUAL(fi_eq_read(eq, &number, &out, sizeof out, 0), sizeof out);
	CHECK(number == FI_NOTIFY && out.data == 7);
	EQUAL(fi_eq_read(eq, &number, &out, sizeof out, 0), -FI_EAGAIN);
	EQUAL(fi_domain(fabric, info, &domain, NULL), 0);
	EQUAL(fi_close(&fabric->fid), -FI_EBUSY);
	struct fi_cq_attr wrong = { .wait_obj = FI_WAIT_SET };
	struct fid_cq *cq;
	EQUAL(fi_cq_open(domain, &wrong, &cq, NULL), -FI_ENOSYS);
	struct fid_mr *one, *two;
	EQUAL(fi_mr_reg(domain, NULL, SIZE_MAX, FI_REMOTE_READ, 0, 0, 0, &one, NULL), 0);
	EQUAL(fi_mr_reg(domain, (void *)1, 1, FI_REMOTE_READ, 0, 0, 0, &two, NULL), 0);
	CHECK(fi_mr_key(one) != fi_mr_key(two));
	EQUAL(fi_close(&domain->fid), -FI_EBUSY);
	EQUAL(fi_close(&one->fid), 0);
	EQUAL(fi_close(&two->fid), 0);
	EQUAL(fi_passive_ep(fabric, info, &pep, NULL), 0);
	EQUAL(fi_listen(pep), -FI_ENOEQ);
	EQUAL(fi_pep_bind(pep, &eq->fid, 0), 0);
	EQUAL(fi_close(&eq->fid), -FI_EBUSY);
	EQUAL(fi_listen(pep), 0);
	size_t size = sizeof(size_t), value = 0;
	EQUAL(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &size), 0);
	EQUAL(value, 56);
}

/* A side of a connection. */
struct side {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_cntr *sent, *received;
};

static void side_open(struct side *s, struct fi_info *i, enum fi_wait_obj object, uint64_t flags, struct fid_ep *shared)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .wait_obj = object };
	EQUAL(fi_cq_open(domain, &attr, &s->cq, NULL), 0);
	EQUAL(fi_endpoint(domain, i, &s->ep, s), 0);
	EQUAL(fi_enable(s->ep), -FI_ENOEQ);
	EQUAL(fi_ep_bind(s->ep, &eq->fid, 0), 0);
	EQUAL(fi_enable(s->ep), -FI_ENOCQ);
	EQUAL(fi_ep_bind(s->ep, &s->cq->fid, FI_TRANSMIT | FI_RECV | flags), 0);
	EQUAL(fi_ep_bind(s->ep, &s->cq->fid, FI_RECV), -FI_EINVAL);
	EQUAL(fi_cntr_open(domain, &(struct fi_cntr_attr){ .wait_obj = FI_WAIT_UNSPEC }, &s->sent, NULL), 0);
	EQUAL(fi_cntr_open(domain, NULL, &s->received, NULL), 0);
	EQUAL(fi_ep_bind(s->ep, &s->sent->fid, FI_SEND | FI_WRITE | FI_READ), 0);
	EQUAL(fi_ep_bind(s->ep, &s->received->fid, FI_RECV), 0);
	if (shared)
		EQUAL(fi_ep_bind(s->ep, &shared->fid, 0), 0);
	EQUAL(fi_enable(s->ep), 0);
	EQUAL(fi_enable(s->ep), -FI_EOPBADSTATE);
}

static void side_close(struct side *s)
{
	EQUAL(fi_close(&s->cq->fid), -FI_EBUSY);
	EQUAL(fi_close(&s->ep->fid), 0);
	EQUAL(fi_close(&s->cq->fid), 0);
	EQUAL(fi_close(&s->sent->fid), 0);
	EQUAL(fi_close(&s->received->fid), 0);
}

static struct sockaddr_in listening(void)
{
	struct sockaddr_in a;
	size_t size = 3;
	EQUAL(fi_getname(&pep->fid, &a, &size), -FI_ETOOSMALL);
	EQUAL(size, sizeof a);
	EQUAL(fi_getname(&pep->fid, &a, &size), 0);
	CHECK(ntohs(a.sin_port) & 255);
	return a;
}

/* pair connects two sides, with data of the program both ways. */
static void pair(struct side *dialer, struct side *acceptor, enum fi_wait_obj object, uint64_t flags, struct fid_ep *shared)
{
	const struct sockaddr_in to = listening();
	unsigned char ask[64], answer[56];
	struct sockaddr_in peer;
	size_t size = sizeof peer;
	memset(ask, 0x5a, sizeof ask);
	memset(answer, 0xa5, sizeof answer);
	side_open(dialer, info, object, flags, NULL);
	EQUAL(fi_send(dialer->ep, ask, 1, NULL, 0, NULL), -FI_EOPBADSTATE);
	EQUAL(fi_getpeer(dialer->ep, &peer, &size), -FI_ENOTCONN);
	EQUAL(fi_accept(dialer->ep, NULL, 0), -FI_EOPBADSTATE);
	EQUAL(fi_connect(dialer->ep, &to, ask, sizeof ask), 0);	/* the end of the data is cut off */
	EQUAL(fi_connect(dialer->ep, &to, NULL, 0), -FI_EOPBADSTATE);
	EQUAL(event(eq), FI_CONNREQ);
	CHECK(e.entry.fid == &pep->fid && e.entry.info->handle && !memcmp(e.data, ask, 56) && !e.data[56]);
	struct fi_info *i = e.entry.info;
	const struct sockaddr_in *from = i->dest_addr;
	CHECK(from->sin_addr.s_addr == to.sin_addr.s_addr && ntohs(from->sin_port) >> 8 == ntohs(to.sin_port) >> 8);
	side_open(acceptor, i, object, flags, shared);
	fi_freeinfo(i);
	EQUAL(fi_connect(acceptor->ep, &to, NULL, 0), -FI_EOPBADSTATE);
	EQUAL(fi_accept(acceptor->ep, answer, sizeof answer), 0);
	for (int seen = 0, k = 0; k < 2; k++) {
		EQUAL(event(eq), FI_CONNECTED);
		const bool dialed = e.entry.fid == &dialer->ep->fid;
		CHECK(dialed || e.entry.fid == &acceptor->ep->fid);
		CHECK(!dialed || !memcmp(e.data, answer, sizeof answer));
		CHECK(!(seen & 1 << dialed));
		seen |= 1 << dialed;
	}
	size = sizeof peer;
	EQUAL(fi_getpeer(dialer->ep, &peer, &size), 0);
	CHECK(peer.sin_port == to.sin_port);
}

static void unpair(struct side *a, struct side *b)
{
	side_close(a);
	EQUAL(event(eq), FI_SHUTDOWN);
	CHECK(e.entry.fid == &b->ep->fid);
	side_close(b);
}

/* complete waits for a completion, of any of two sides because each needs the other's progress. */
static struct fi_cq_data_entry complete(struct side *s)
{
	struct fi_cq_data_entry c = { 0 };
	const ssize_t n = fi_cq_sread(s->cq, &c, 1, NULL, PATIENCE);
	check(n == 1, __LINE__, "fi_cq_sread", n);
	return c;
}

static struct fi_cq_err_entry complete_error(struct side *s)
{
	struct fi_cq_data_entry c;
	struct fi_cq_err_entry err = { 0 };
	EQUAL(fi_cq_sread(s->cq, &c, 1, NULL, PATIENCE), -FI_EAVAIL);
	EQUAL(fi_cq_readerr(s->cq, &err, 0), 1);
	return err;
}

static void is(struct fi_cq_data_entry c, void *context, uint64_t flags, int line)
{
	check(c.op_context == context, line, "context", 0);
	check(c.flags == flags, line, "flags", (long)c.flags);
}
#define IS(c, context, flags) is(c, context, flags, __LINE__)

static void fill(unsigned char *b, size_t n, unsigned seed)
{
	for (size_t k = 0; k < n; k++)
		b[k] = (unsigned char)(k * 31 + k / 251 + seed);
}

static void test_messages(void)
{
	struct side a, b;
	unsigned char from[512], to[512];
	struct fi_cq_data_entry c;
	pair(&a, &b, FI_WAIT_UNSPEC, 0, NULL);
	/* Each way to send, into a buffer that was posted before, or not. */
	for (int way = 0; way < 7; way++) {
		const size_t n = way == 6 ? 0 : 200;
		const bool early = way % 2;
		fill(from, sizeof from, way);
		memset(to, 0, sizeof to);
		const struct iovec out[3] = { { from, 1 }, { from + 1, 0 }, { from + 1, 199 } }, in[2] = { { to, 150 }, { to + 150, 300 } };
		struct fi_msg m = { .msg_iov = out, .iov_count = 3, .context = from, .data = 0x1122334455667788 };
		if (early)
			EQUAL(fi_recvv(b.ep, in, NULL, 2, 0, to), 0);
		switch (way) {
		case 0: case 6: EQUAL(fi_send(a.ep, from, n, NULL, 0, from), 0); break;
		case 1: EQUAL(fi_sendv(a.ep, out, NULL, 3, 0, from), 0); break;
		case 2: EQUAL(fi_sendmsg(a.ep, &m, FI_REMOTE_CQ_DATA), 0); break;
		case 3: EQUAL(fi_senddata(a.ep, from, n, NULL, m.data, 0, from), 0); break;
		case 4: EQUAL(fi_inject(a.ep, from, n, 0), 0); break;
		case 5: EQUAL(fi_injectdata(a.ep, from, n, m.data, 0), 0); break;
		}
		if (way != 4 && way != 5)
			IS(complete(&a), from, FI_SEND | FI_MSG);
		if (!early) {
			struct fi_msg r = { .msg_iov = in, .iov_count = 2, .context = to };
			EQUAL(fi_recvmsg(b.ep, &r, 0), 0);
		}
		const bool data = way == 2 || way == 3 || way == 5;
		IS(c = complete(&b), to, FI_RECV | FI_MSG | (data ? FI_REMOTE_CQ_DATA : 0));
		EQUAL(c.len, n);
		CHECK(!data || c.data == m.data);
		CHECK(c.buf == to && !memcmp(from, to, n));
	}
	EQUAL(fi_cntr_read(a.sent), 7);
	EQUAL(fi_cntr_read(b.received), 7);
	EQUAL(fi_cq_read(a.cq, &c, 1), -FI_EAGAIN);
	EQUAL(fi_cq_sread(a.cq, &c, 1, NULL, 1), -FI_EAGAIN);
	EQUAL(fi_inject(a.ep, from, 257, 0), -FI_EMSGSIZE);
	EQUAL(fi_sendv(a.ep, (struct iovec[9]){ { from, 1 } }, NULL, 9, 0, NULL), -FI_EINVAL);
	/* A message that is too long for its buffer, and one after it. */
	EQUAL(fi_recv(b.ep, to, 100, NULL, 0, to), 0);
	EQUAL(fi_recv(b.ep, to + 256, 100, NULL, 0, to + 256), 0);
	EQUAL(fi_send(a.ep, from, 256, NULL, 0, NULL), 0);
	EQUAL(fi_send(a.ep, from, 100, NULL, 0, NULL), 0);
	const struct fi_cq_err_entry err = complete_error(&b);
	CHECK(err.op_context == to && err.err == FI_ETRUNC && err.olen == 156 && err.len == 100 && !memcmp(to, from, 100));
	CHECK(fi_cq_strerror(b.cq, err.prov_errno, NULL, NULL, 0));
	EQUAL(fi_cntr_readerr(b.received), 1);
	IS(complete(&b), to + 256, FI_RECV | FI_MSG);
	CHECK(!memcmp(to + 256, from, 100));
	complete(&a);
	complete(&a);
	/* A buffer that is cancelled receives nothing. */
	EQUAL(fi_recv(b.ep, to, 8, NULL, 0, to), 0);
	EQUAL(fi_recv(b.ep, to + 8, 8, NULL, 0, to + 8), 0);
	EQUAL(fi_cancel(&b.ep->fid, to), 0);
	EQUAL(fi_cancel(&b.ep->fid, from), 0);	/* there is none */
	EQUAL(complete_error(&b).err, FI_ECANCELED);
	EQUAL(fi_inject(a.ep, from, 8, 0), 0);
	IS(complete(&b), to + 8, FI_RECV | FI_MSG);
	/* Delivery: not before the message is in a buffer. */
	struct iovec iov = { from, 9 };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .context = &m };
	for (int k = 0; k < 2; k++) {
		EQUAL(fi_sendmsg(a.ep, &m, k ? FI_TRANSMIT_COMPLETE : FI_DELIVERY_COMPLETE), 0);
		EQUAL(fi_cq_sread(a.cq, &c, 1, NULL, 5), -FI_EAGAIN);
		EQUAL(fi_recv(b.ep, to, 9, NULL, 0, to), 0);
		IS(complete(&b), to, FI_RECV | FI_MSG);
		IS(complete(&a), &m, FI_SEND | FI_MSG);
	}
	unpair(&a, &b);
}

/* Messages of which few bytes are not zero, of each size, into buffers of two pieces that may be too small. */
static void test_zeros(void)
{
	enum { MOST = 140 };
	struct side a, b;
	unsigned char from[MOST], to[MOST + 1], left[MOST];
	pair(&a, &b, FI_WAIT_UNSPEC, 0, NULL);
	for (size_t n = 0; n <= MOST; n++)
		for (int way = 0; way < 5; way++) {	/* one byte of 1, 2, 4, 16, or none */
			const size_t room = way == 3 ? n / 2 : n, gap = way == 4 ? n + 1 : 1u << (way == 3 ? 4 : way), first = room / 3;
			fill(from, n, 1);
			for (size_t k = 0; k < n; k++)
				from[k] = (k + 1) % gap ? 0 : from[k] | 1;
			memset(to, 0xee, sizeof to);
			const struct iovec in[2] = { { to, first }, { to + first, room - first } };
			EQUAL(fi_recvv(b.ep, in, NULL, 2, 0, to), 0);
			memcpy(left, from, n);
			if (way % 2)
				EQUAL(fi_senddata(a.ep, left, n, NULL, n, 0, from), 0);
			else
				EQUAL(fi_inject(a.ep, left, n, 0), 0);
			if (way % 2)
				complete(&a);
			if (room < n) {
				const struct fi_cq_err_entry err = complete_error(&b);
				CHECK(err.err == FI_ETRUNC && err.len == room && err.olen == n - room);
			} else {
				const struct fi_cq_data_entry c = complete(&b);
				CHECK(c.len == n && (way % 2 == 0 || c.data == n));
			}
			CHECK(!memcmp(from, to, room) && to[room] == 0xee);
		}
	unpair(&a, &b);
}

/* Messages that are larger than a ring advance by the calls of both ends; injected ones are copied. */
static void test_large(void)
{
	struct side a, b;
	unsigned char *from = calloc(BIG, 1), *to = calloc(BIG, 1), small[256], *into = calloc(2000, sizeof small);
	struct fi_cq_data_entry c;
	pair(&a, &b, FI_WAIT_UNSPEC, 0, NULL);
	fill(from, BIG, 1);
	EQUAL(fi_send(a.ep, from, BIG, NULL, 0, from), 0);
	EQUAL(fi_cq_read(a.cq, &c, 1), -FI_EAGAIN);
	int injected = 0;
	for (; injected < 2000; injected++) {
		memset(small, injected, sizeof small);
		const ssize_t n = fi_inject(a.ep, small, sizeof small, 0);
		if (n == -FI_EAGAIN)
			break;
		EQUAL(n, 0);
	}
	CHECK(injected > 100);
	memset(small, 0xee, sizeof small);
	EQUAL(fi_recv(b.ep, to, BIG, NULL, 0, to), 0);
	for (int k = 0; k < injected; k++)
		EQUAL(fi_recv(b.ep, into + k * sizeof small, sizeof small, NULL, 0, into + k * sizeof small), 0);
	IS(c = complete(&b), to, FI_RECV | FI_MSG);
	CHECK(c.len == BIG && !memcmp(from, to, BIG));
	IS(complete(&a), from, FI_SEND | FI_MSG);
	for (int k = 0; k < injected; k++) {
		IS(complete(&b), into + k * sizeof small, FI_RECV | FI_MSG);
		CHECK(into[k * sizeof small] == (unsigned char)k && into[k * sizeof small + 255] == (unsigned char)k);
	}
	/* An end that closes while the other sends. */
	EQUAL(fi_send(a.ep, from, BIG, NULL, 0, from), 0);
	EQUAL(fi_recv(a.ep, small, 1, NULL, 0, small), 0);
	side_close(&b);
	int errors = 0;
	for (int k = 0; k < 2; k++) {
		const struct fi_cq_err_entry err = complete_error(&a);
		errors |= err.op_context == from ? 1 : err.op_context == small ? 2 : 4;
	}
	EQUAL(errors, 3);
	EQUAL(event(eq), FI_SHUTDOWN);
	/* Afterwards every operation ends with an error: in the queue if it has a completion. */
	EQUAL(fi_send(a.ep, from, 1, NULL, 0, from), 0);
	EQUAL(fi_read(a.ep, from, 1, NULL, 0, (uintptr_t)to, 0, from), 0);
	for (int k = 0; k < 2; k++) {
		const struct fi_cq_err_entry err = complete_error(&a);
		CHECK(err.op_context == from && err.err && err.flags == (k ? FI_RMA | FI_READ : FI_SEND | FI_MSG));
	}
	CHECK(fi_inject(a.ep, from, 1, 0) < 0);
	CHECK(fi_recv(a.ep, from, 1, NULL, 0, NULL) < 0);
	EQUAL(fi_cq_read(a.cq, &c, 1), -FI_EAGAIN);
	side_close(&a);
	free(from);
	free(to);
	free(into);
}

static void test_selective(void)
{
	struct side a, b;
	unsigned char from[8] = "selected", to[8];
	struct fi_cq_data_entry c;
	pair(&a, &b, FI_WAIT_UNSPEC, FI_SELECTIVE_COMPLETION, NULL);
	struct iovec iov = { from, sizeof from }, in = { to, sizeof to };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .context = from }, r = { .msg_iov = &in, .iov_count = 1, .context = to };
	EQUAL(fi_recv(b.ep, to, sizeof to, NULL, 0, NULL), 0);
	EQUAL(fi_send(a.ep, from, sizeof from, NULL, 0, NULL), 0);
	EQUAL(fi_cntr_wait(b.received, 1, PATIENCE), 0);
	EQUAL(fi_cntr_wait(b.received, 2, 1), -FI_ETIMEDOUT);
	EQUAL(fi_cq_read(a.cq, &c, 1), -FI_EAGAIN);
	EQUAL(fi_cq_read(b.cq, &c, 1), -FI_EAGAIN);
	EQUAL(fi_recvmsg(b.ep, &r, FI_COMPLETION), 0);
	EQUAL(fi_sendmsg(a.ep, &m, FI_COMPLETION), 0);
	IS(complete(&a), from, FI_SEND | FI_MSG);
	IS(complete(&b), to, FI_RECV | FI_MSG);
	unpair(&a, &b);
}

static void test_rma(void)
{
	struct side a, b;
	const size_t n = 3 << 20;
	unsigned char *here = calloc(n, 1), *there = calloc(n, 1), small[64] = "small";
	struct fi_cq_data_entry c;
	pair(&a, &b, FI_WAIT_UNSPEC, 0, NULL);
	const uint64_t at = (uintptr_t)there;
	fill(here, n, 3);
	EQUAL(fi_write(a.ep, here, n, NULL, 0, at, 0, here), 0);
	IS(c = complete(&a), here, FI_RMA | FI_WRITE);
	CHECK(!memcmp(here, there, n));
	fill(there, n, 4);
	EQUAL(fi_read(a.ep, here, n, NULL, 0, at, 0, there), 0);
	IS(complete(&a), there, FI_RMA | FI_READ);
	CHECK(!memcmp(here, there, n));
	/* Pieces on both sides, which do not coincide. */
	struct iovec iov[3] = { { here, 100 }, { here + 5000, 1 }, { here + 9000, 7000 } };
	struct fi_rma_iov rma[2] = { { at + 17, 3000, 0 }, { at + 100000, 4101, 0 } };
	struct fi_msg_rma m = { .msg_iov = iov, .iov_count = 3, .rma_iov = rma, .rma_iov_count = 2, .context = &m };
	fill(there, n, 5);
	memset(here, 0, n);
	EQUAL(fi_readmsg(a.ep, &m, FI_COMPLETION), 0);
	IS(complete(&a), &m, FI_RMA | FI_READ);
	CHECK(!memcmp(here, there + 17, 100) && here[5000] == there[117] && !memcmp(here + 9000, there + 118, 2899) && !memcmp(here + 9000 + 2899, there + 100000, 4101));
	CHECK(!here[100] && !here[5001] && !here[16000]);
	fill(here, n, 6);
	EQUAL(fi_writev(a.ep, iov, NULL, 3, 0, at + 1, 0, &m), 0);
	IS(complete(&a), &m, FI_RMA | FI_WRITE);
	CHECK(!memcmp(there + 1, here, 100) && there[101] == here[5000] && !memcmp(there + 102, here + 9000, 7000));
	EQUAL(fi_writemsg(a.ep, &m, FI_REMOTE_CQ_DATA), 0);
	IS(complete(&a), &m, FI_RMA | FI_WRITE);
	IS(complete(&b), NULL, FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA);
	EQUAL(fi_writedata(a.ep, here, 8, NULL, 77, 0, at, 0, &m), 0);
	IS(complete(&a), &m, FI_RMA | FI_WRITE);
	IS(c = complete(&b), NULL, FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA);
	EQUAL(c.data, 77);
	/* Injected bytes may change at once. */
	const uint64_t before = fi_cntr_read(a.sent);
	EQUAL(fi_inject_write(a.ep, small, sizeof small, 0, at, 0), 0);
	memset(small, 0, sizeof small);
	EQUAL(fi_cntr_wait(a.sent, before + 1, PATIENCE), 0);
	CHECK(!memcmp(there, "small", 6));
	EQUAL(fi_cq_read(a.cq, &c, 1), -FI_EAGAIN);
	EQUAL(fi_write(a.ep, here, 0, NULL, 0, at, 0, here), 0);
	IS(complete(&a), here, FI_RMA | FI_WRITE);
	/* Many at once, until no place is left; each ends. */
	int posted = 0;
	for (; posted < 200 && !fi_write(a.ep, here + posted, 1, NULL, 0, at + posted, 0, here + posted); posted++)
		;
	CHECK(posted >= 16);
	for (int k = 0; k < posted; k++)
		EQUAL(complete(&a).flags, FI_RMA | FI_WRITE);
	CHECK(!memcmp(here, there, posted));
	/* Memory that is not there fails the operation, and no other. */
	void *hole = mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(hole, 1 << 16);
	EQUAL(fi_write(a.ep, hole, 4096, NULL, 0, at, 0, hole), 0);
	struct fi_cq_err_entry err = complete_error(&a);
	CHECK(err.op_context == hole && err.err == FI_EFAULT && err.prov_errno == 2);
	CHECK(strstr(fi_cq_strerror(a.cq, err.prov_errno, NULL, NULL, 0), "not mapped"));
	EQUAL(fi_read(a.ep, here, 4096, NULL, 0, (uintptr_t)hole, 0, hole), 0);
	CHECK(complete_error(&a).err == FI_EFAULT);
	EQUAL(fi_read(a.ep, here, 8, NULL, 0, at, 0, here), 0);
	IS(complete(&a), here, FI_RMA | FI_READ);
	/* Memory that was never touched. */
	unsigned char *absent = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EQUAL(fi_read(a.ep, absent, 1 << 20, NULL, 0, at, 0, absent), 0);
	IS(complete(&a), absent, FI_RMA | FI_READ);
	CHECK(!memcmp(absent, there, 1 << 20));
	munmap(absent, 1 << 20);
	unpair(&a, &b);
	free(here);
	free(there);
}

static void test_shared(void)
{
	struct side a, b, c, d;
	struct fid_ep *shared;
	unsigned char to[4][16], from[16] = "to shared ones";
	EQUAL(fi_srx_context(domain, &(struct fi_rx_attr){ .size = 4 }, &shared, NULL), 0);
	for (int k = 0; k < 4; k++)
		EQUAL(fi_recv(shared, to[k], sizeof to[k], NULL, 0, to[k]), 0);
	EQUAL(fi_recv(shared, to[0], 1, NULL, 0, NULL), -FI_EAGAIN);
	pair(&a, &b, FI_WAIT_UNSPEC, 0, shared);
	pair(&c, &d, FI_WAIT_UNSPEC, 0, shared);
	EQUAL(fi_recv(b.ep, to[0], 1, NULL, 0, NULL), -FI_EOPNOTSUPP);
	EQUAL(fi_close(&shared->fid), -FI_EBUSY);
	EQUAL(fi_inject(a.ep, from, sizeof from, 0), 0);
	IS(complete(&b), to[0], FI_RECV | FI_MSG);
	EQUAL(fi_inject(c.ep, from, sizeof from, 0), 0);
	IS(complete(&d), to[1], FI_RECV | FI_MSG);
	CHECK(!memcmp(to[0], from, sizeof from) && !memcmp(to[1], from, sizeof from));
	unpair(&a, &b);
	unpair(&c, &d);
	EQUAL(fi_close(&shared->fid), 0);
}

static void test_rejected(void)
{
	struct side a;
	struct sockaddr_in to = listening();
	struct fi_eq_err_entry err = { 0 };
	side_open(&a, info, FI_WAIT_NONE, 0, NULL);
	EQUAL(fi_connect(a.ep, &to, "hello", 5), 0);
	EQUAL(event(eq), FI_CONNREQ);
	CHECK(!memcmp(e.data, "hello", 6));
	EQUAL(fi_reject(pep, e.entry.info->handle, "no", 2), 0);
	fi_freeinfo(e.entry.info);
	EQUAL(event_error(eq, &err), FI_ECONNREFUSED);
	CHECK(err.fid == &a.ep->fid && err.context == &a && err.err_data_size == 2 && !memcmp(err.err_data, "no", 2));
	side_close(&a);
	/* A request has one endpoint, and ends with it. */
	struct side b;
	struct fid_ep *other;
	side_open(&a, info, FI_WAIT_NONE, 0, NULL);
	EQUAL(fi_connect(a.ep, &to, NULL, 0), 0);
	EQUAL(event(eq), FI_CONNREQ);
	struct fi_info *i = e.entry.info;
	side_open(&b, i, FI_WAIT_NONE, 0, NULL);
	EQUAL(fi_endpoint(domain, i, &other, NULL), -FI_EINVAL);
	side_close(&b);
	EQUAL(fi_reject(pep, i->handle, NULL, 0), -FI_EINVAL);
	EQUAL(fi_endpoint(domain, i, &other, NULL), -FI_EINVAL);
	fi_freeinfo(i);
	CHECK(event_error(eq, &err) && err.fid == &a.ep->fid);
	side_close(&a);
	/* Nobody listens on the port; another kind of address. */
	side_open(&a, info, FI_WAIT_NONE, 0, NULL);
	to.sin_port = htons(ntohs(to.sin_port) | 255);
	EQUAL(fi_connect(a.ep, &to, NULL, 0), 0);
	err.err_data_size = 0;
	EQUAL(event_error(eq, &err), FI_ECONNREFUSED);
	CHECK(err.fid == &a.ep->fid);
	side_close(&a);
	side_open(&a, info, FI_WAIT_NONE, 0, NULL);
	to.sin_addr.s_addr = htonl(0x7f000001);
	EQUAL(fi_connect(a.ep, &to, NULL, 0), -FI_EADDRNOTAVAIL);
	side_close(&a);
}

/* Requests that cross: each end of a process accepts the other's. */
static void test_crossed(void)
{
	struct side a[2], b[2];
	const struct sockaddr_in to = listening();
	int connected = 0;
	for (int k = 0; k < 2; k++) {
		side_open(&a[k], info, FI_WAIT_NONE, 0, NULL);
		EQUAL(fi_connect(a[k].ep, &to, &k, sizeof k), 0);
	}
	for (int asked = 0; connected < 4;) {
		if (event(eq) == FI_CONNECTED) {
			connected++;
			continue;
		}
		struct fi_info *i = e.entry.info;
		side_open(&b[asked], i, FI_WAIT_NONE, 0, NULL);
		EQUAL(fi_accept(b[asked++].ep, NULL, 0), 0);
		fi_freeinfo(i);
	}
	for (int k = 0; k < 2; k++) {
		side_close(&a[k]);
		side_close(&b[k]);
	}
	uint32_t number;
	EQUAL(fi_eq_read(eq, &number, &e, sizeof e, 0), -FI_EAGAIN);	/* a closed endpoint has no events */
}

/* A thread that sleeps for a completion is woken by a message, and by fi_cq_signal. */
static void *sleeper(void *arg)
{
	struct side *s = arg;
	struct fi_cq_data_entry c;
	EQUAL(fi_cq_sread(s->cq, &c, 1, NULL, -1), 1);
	EQUAL(fi_cq_sread(s->cq, &c, 1, NULL, -1), -FI_EAGAIN);
	return NULL;
}

static void test_waiting(void)
{
	struct side a, b;
	unsigned char to[16];
	struct fi_cq_data_entry c;
	pthread_t t;
	int fd;
	pair(&a, &b, FI_WAIT_FD, 0, NULL);
	EQUAL(fi_recv(b.ep, to, sizeof to, NULL, 0, to), 0);
	pthread_create(&t, NULL, sleeper, &b);
	usleep(50000);	/* it sleeps by then, or not: both must be right */
	EQUAL(fi_inject(a.ep, "wake up", 8, 0), 0);
	while (fi_cntr_read(b.received) != 1)
		;
	EQUAL(fi_cq_signal(b.cq), 0);
	pthread_join(t, NULL);
	/* The descriptor. */
	EQUAL(fi_recv(b.ep, to, sizeof to, NULL, 0, to), 0);
	EQUAL(fi_control(&b.cq->fid, FI_GETWAIT, &fd), 0);
	struct fid *fids[] = { &b.cq->fid };
	EQUAL(fi_trywait(fabric, fids, 1), 0);
	EQUAL(fi_inject(a.ep, "wake up", 8, 0), 0);
	for (;;) {
		EQUAL(poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, PATIENCE), 1);
		if (fi_trywait(fabric, fids, 1) == -FI_EAGAIN)
			break;
	}
	EQUAL(fi_cq_read(b.cq, &c, 1), 1);
	IS(c, to, FI_RECV | FI_MSG);
	unpair(&a, &b);
}

static void test_shutdown(void)
{
	struct side a, b;
	unsigned char to[16];
	pair(&a, &b, FI_WAIT_UNSPEC, 0, NULL);
	EQUAL(fi_recv(b.ep, to, sizeof to, NULL, 0, to), 0);
	EQUAL(fi_recv(b.ep, to, sizeof to, NULL, 0, to + 1), 0);
	EQUAL(fi_inject(a.ep, "the last", 9, 0), 0);
	EQUAL(fi_shutdown(a.ep, 1), -FI_EINVAL);
	EQUAL(fi_shutdown(a.ep, 0), 0);
	IS(complete(&b), to, FI_RECV | FI_MSG);
	CHECK(!memcmp(to, "the last", 9));
	const struct fi_cq_err_entry err = complete_error(&b);
	CHECK(err.op_context == to + 1 && err.err == FI_ECANCELED);
	EQUAL(event(eq), FI_SHUTDOWN);
	CHECK(e.entry.fid == &b.ep->fid && e.entry.fid->context == &b);
	EQUAL(fi_inject(a.ep, to, 1, 0), -FI_ESHUTDOWN);
	side_close(&a);
	side_close(&b);
}

static void text_of_listener(char *text, size_t size)
{
	const struct sockaddr_in to = listening();
	snprintf(text, size, "exanet:%u/%u/%u", ntohl(to.sin_addr.s_addr) & 0xfffffff, ntohs(to.sin_port) >> 8, ntohs(to.sin_port) & 255);
}

/* Connections of a program that is no libfabric's: one that sends garbage is closed, one that sends nothing stays. */
static void test_strangers(const char *socket, exanet **x, exanet_stream **silent)
{
	const struct exanet_options o = { .socket = socket, .group = getenv("FI_EXANET_GROUP"), .flags = EXANET_ACCEPT_GROUP };
	char text[64], byte;
	exanet_stream *s;
	uint32_t number;
	EQUAL(exanet_attach(x, &o), 0);
	text_of_listener(text, sizeof text);
	EQUAL(exanet_connect(*x, text, silent, PATIENCE), 0);
	for (int k = 0; k < 3; k++) {
		static const unsigned char garbage[3][16] = { { 'G', 'E', 'T' }, { 4, 0, 1, 0, 57 }, { 4, 0, 2, 0, 1 } };
		ssize_t n;
		EQUAL(exanet_connect(*x, text, &s, PATIENCE), 0);
		EQUAL(exanet_stream_send(s, garbage[k], 16, PATIENCE), 16);
		while ((n = exanet_stream_recv(s, &byte, 1, 1)) == -EAGAIN)
			EQUAL(fi_eq_read(eq, &number, &e, sizeof e, 0), -FI_EAGAIN);
		CHECK(n <= 0);
		exanet_stream_close(s);
	}
}

/* hostile connects a program that is no libfabric's with a side, of which it has the request accepted. */
static exanet_stream *hostile(exanet *x, struct side *b)
{
	static const unsigned char request[8] = { 4, 0, 1 };
	char text[64];
	exanet_stream *s;
	text_of_listener(text, sizeof text);
	EQUAL(exanet_connect(x, text, &s, PATIENCE), 0);
	EQUAL(exanet_stream_send(s, request, sizeof request, PATIENCE), sizeof request);
	EQUAL(event(eq), FI_CONNREQ);
	side_open(b, e.entry.info, FI_WAIT_NONE, 0, NULL);
	fi_freeinfo(e.entry.info);
	EQUAL(fi_accept(b->ep, NULL, 0), 0);
	EQUAL(event(eq), FI_CONNECTED);
	return s;
}

/* A peer that sends CQ data of writes which nobody reads is not read any more: 1,024 wait. */
static void test_flood(exanet *x)
{
	static const unsigned char written[16] = { 3, 1, 1, 0, 0, 0, 0, 0, 7 };
	enum { IDLE = 1000, MOST = 4 << 20 };	/* calls in which nothing moves; bytes: more than a ring */
	struct side b;
	struct fi_cq_data_entry got;
	uint32_t number;
	exanet_stream *s = hostile(x, &b);
	long sent = 0, read = 0;
	ssize_t n;
	for (int idle = 0; idle < IDLE && sent < MOST;) {
		n = exanet_stream_send(s, written + sent % sizeof written, sizeof written - sent % sizeof written, 0);
		CHECK(n >= 0 || n == -EAGAIN);
		sent += n > 0 ? n : 0;
		idle = n > 0 ? 0 : idle + 1;
		EQUAL(fi_eq_read(eq, &number, &e, sizeof e, 0), -FI_EAGAIN);
	}
	CHECK(sent < MOST);
	while (read < sent / (long)sizeof written)
		if ((n = fi_cq_read(b.cq, &got, 1)) == 1)
			read++, CHECK(got.flags & FI_REMOTE_WRITE && got.data == 7);
		else
			EQUAL(n, -FI_EAGAIN);
	side_close(&b);
	exanet_stream_close(s);
}

/* A program whose peer does not read the CQ data of its writes is asked to wait, and none is lost. */
static void test_unread_writes(void)
{
	enum { IDLE = 1000, MOST = 8192 };
	static uint64_t from, to;
	struct side a, b;
	struct fi_cq_data_entry got;
	long written = 0, read = 0;
	ssize_t n;
	pair(&a, &b, FI_WAIT_NONE, 0, NULL);
	for (int idle = 0; idle < IDLE && written < MOST;) {
		n = fi_writedata(a.ep, &from, sizeof from, NULL, (uint64_t)written, 0, (uint64_t)(uintptr_t)&to, 0, NULL);
		CHECK(n == 0 || n == -FI_EAGAIN);
		written += !n;
		idle = n ? idle + 1 : 0;
		fi_cq_read(a.cq, &got, 1);
	}
	CHECK(written < MOST);
	while (read < written) {
		fi_cq_read(a.cq, &got, 1);
		if ((n = fi_cq_read(b.cq, &got, 1)) == 1)
			read += !!(got.flags & FI_REMOTE_WRITE);
		else
			EQUAL(n, -FI_EAGAIN);
	}
	unpair(&a, &b);
}

/* A peer that asks for more acknowledgements than an endpoint has operations, and reads none, is reset. */
static void test_unread(exanet *x)
{
	static const unsigned char message[8] = { 1, 2, 1 };
	enum { MOST = 4096 };
	struct side b;
	struct fi_cq_data_entry got;
	uint32_t number;
	exanet_stream *s = hostile(x, &b);
	int sent = 0;
	ssize_t n = -FI_EAGAIN;
	for (; sent < MOST && n == -FI_EAGAIN; n = fi_eq_read(eq, &number, &e, sizeof e, 0)) {
		fi_recv(b.ep, NULL, 0, NULL, 0, NULL);
		sent += exanet_stream_send(s, message, sizeof message, 0) > 0;	/* all or nothing: the ring has room for it */
		fi_cq_read(b.cq, &got, 1);
	}
	CHECK(n > 0 && number == FI_SHUTDOWN && e.entry.fid == &b.ep->fid);
	side_close(&b);
	exanet_stream_close(s);
}

/* Reads that do not wait until pfd has read the request: the end tells of a refusal, and only of its own. */
static void test_nowait(exanet *x)
{
	static char from[64], to[64];
	int n[8];
	struct exanet_transfer t = { .local = to, .size = sizeof to, .flags = EXANET_NOWAIT };
	exanet_export(x, from, sizeof from, &t.remote);
	const uint32_t own = t.remote.node;
	for (int k = 0; k < 8; k++) {
		t.remote.node = k % 3 ? own : 77;
		CHECK((n[k] = exanet_read(x, &t)) >= 0);
	}
	for (int k = 7; k >= 0; k--)
		EQUAL(exanet_wait(x, n[k], PATIENCE), k % 3 ? 0 : 2);
	t.remote.node = 77;
	t.flags = 0;
	EQUAL(exanet_read(x, &t), -EHOSTUNREACH);
	t.remote.node = own;
	EQUAL(exanet_wait(x, exanet_read(x, &t), PATIENCE), 0);
}

/* A peer that is no libfabric's sends packed messages that cannot be: the connection ends, and the posted buffer's
 * operation with it. The last one can be. */
static void test_unpacked(exanet *x)
{
	static const unsigned char bad[][16] = {
		{ 1, 4, 1, 0, 8 },				/* no packed bytes */
		{ 1, 4, 1, 49, 8 },				/* too many */
		{ 1, 0, 1, 2, 8, 0, 0, 0, 1, 9 },		/* no flag */
		{ 1, 4, 1, 2, 129, 0, 0, 0, 1, 9 },		/* too long a message */
		{ 1, 4, 1, 2, 9, 0, 0, 0, 1, 9 },		/* the second mask is missing */
		{ 1, 4, 1, 2, 8, 0, 0, 0, 3, 9 },		/* a byte is missing */
		{ 1, 4, 1, 3, 8, 0, 0, 0, 1, 9, 9 },		/* one too many */
		{ 1, 4, 1, 2, 7, 0, 0, 0, 128, 9 },		/* beyond the end */
		{ 2, 4, 1, 2, 0, 0, 0, 0, 1, 9 },		/* no message */
		{ 1, 4, 1, 3, 8, 0, 0, 0, 130, 5, 6 },
	};
	enum { RIGHT = sizeof bad / sizeof *bad - 1 };
	for (int k = 0; k <= RIGHT; k++) {
		unsigned char to[256] = { 0 };
		struct side b;
		exanet_stream *s = hostile(x, &b);
		EQUAL(fi_recv(b.ep, to, sizeof to, NULL, 0, to), 0);
		EQUAL(exanet_stream_send(s, bad[k], 8 + bad[k][3] % 8, PATIENCE), 8 + bad[k][3] % 8);
		struct fi_cq_data_entry c;
		ssize_t n;
		while ((n = fi_cq_read(b.cq, &c, 1)) == -FI_EAGAIN)
			;
		if (k == RIGHT) {
			CHECK(n == 1 && c.len == 8 && !memcmp(to, (unsigned char[8]){ 0, 5, 0, 0, 0, 0, 0, 6 }, 8));
		} else {
			struct fi_cq_err_entry err = { 0 };
			CHECK(n == -FI_EAVAIL && fi_cq_readerr(b.cq, &err, 0) == 1 && err.err == FI_EIO);
			EQUAL(event(eq), FI_SHUTDOWN);
		}
		exanet_stream_close(s);
		side_close(&b);
	}
}

/* Of more connections without a request than a process keeps, the oldest is closed. */
static void test_silent(exanet *x, exanet_stream *silent)
{
	char text[64], byte;
	exanet_stream *s;
	uint32_t number;
	text_of_listener(text, sizeof text);
	EQUAL(exanet_stream_recv(silent, &byte, 1, 0), -EAGAIN);
	/* One at a time: of a thousand at once, some are refused by a mailbox that stays full under valgrind. */
	for (int k = 0; k < BACKLOG; k++) {
		EQUAL(exanet_connect(x, text, &s, PATIENCE), 0);
		EQUAL(fi_eq_read(eq, &number, &e, sizeof e, 0), -FI_EAGAIN);
	}
	while (exanet_stream_recv(silent, &byte, 1, 1) == -EAGAIN)
		EQUAL(fi_eq_read(eq, &number, &e, sizeof e, 0), -FI_EAGAIN);
	EQUAL(exanet_stream_recv(s, &byte, 1, 0), -EAGAIN);
	EQUAL(exanet_close(x), 0);
}

int main(int argc, char **argv)
{
	exanet *x;
	exanet_stream *silent;
	(void)argc;
	test_info();
	test_open();
	test_strangers(argv[1], &x, &silent);
	test_messages();
	test_zeros();
	test_large();
	test_selective();
	test_rma();
	test_shared();
	test_rejected();
	test_crossed();
	test_waiting();
	test_shutdown();
	test_flood(x);
	test_unread(x);
	test_unread_writes();
	test_nowait(x);
	test_unpacked(x);
	test_silent(x, silent);
	EQUAL(fi_close(&pep->fid), 0);
	EQUAL(fi_close(&eq->fid), 0);
	EQUAL(fi_close(&domain->fid), 0);
	EQUAL(fi_close(&fabric->fid), 0);
	fi_freeinfo(info);
	return 0;
}
