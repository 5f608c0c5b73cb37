/* Declarations shared by the parts of libexanet-fi.so, a libfabric provider of message endpoints
 * (fi_exanet(7), docs/mpi.md). Sections of libfabric's manual are named by their page. */
#ifndef EXANET_FI_H
#define EXANET_FI_H

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include "exanet.h"
#include "exanet_stream.h"

/* Limits. Values are defined by this provider. */
enum {
	INJECT = 256,		/* bytes of fi_inject */
	IOVS = 8, RMA_IOVS = 4,	/* pieces of memory of an operation */
	PIECES = IOVS + RMA_IOVS,
	CM_DATA = 56,		/* bytes of a program's data in a request, an answer or a rejection */
	OPERATIONS = 1024,	/* that an endpoint has in flight each way, if a program does not ask for fewer */
	SHARED = 65536,		/* buffers that a shared receive context may have */
	ENDPOINTS = 255,	/* ports of a process; an address has 8 bits for them */
	BACKLOG = 1024,		/* requests that a process keeps before they are accepted */
};
/* A flag of this provider's own, beside those of libfabric: fi_inject, which has no completion. */
#define QUIET (UINT64_C(1) << 63)
#define MESSAGE_MOST ((size_t)UINT32_MAX)

/* An element of a doubly linked list, and its head. */
struct link { struct link *next, *prev; };

static inline void list_init(struct link *head) { head->next = head->prev = head; }
static inline bool list_empty(const struct link *head) { return head->next == head; }
static inline void list_remove(struct link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	list_init(l);
}
static inline void list_append(struct link *head, struct link *l)
{
	l->prev = head->prev;
	l->next = head;
	l->prev->next = l;
	head->prev = l;
}
#define element(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

/* The attachment of this process, which all of its fabrics share. prov.c owns it. Its lock guards it and all
 * objects that are opened below it; functions whose comment says "locked" are called with it. */
struct attachment {
	pthread_mutex_t lock;
	exanet *exanet;
	pid_t pid;			/* of the process that attached: a forked child attaches itself */
	unsigned fabrics;
	struct sockaddr_in address;	/* with endpoint 0 */
	bool gone;			/* pfd has ended */
	struct link connected;		/* endpoints with a connection: progress_data */
	struct link opening;		/* endpoints that connect or accept: progress_control */
	struct link listeners;
	struct link requests;		/* connections from other processes that have not been accepted */
	unsigned nrequests;
	struct link transfers;		/* RMA operations */
	struct link unused;		/* operations for the next calls */
	uint32_t events;		/* exanet_events before the last look at what has come */
	unsigned idle;			/* calls since that did not look */
	int64_t spun, polled;		/* since when a program has called for nothing, and when it last did, ns */
	uint64_t key;			/* of the last memory region: atomic */
};

struct fabric {
	struct fid_fabric fid;
	struct attachment *attachment;
	unsigned users;			/* domains, event queues and passive endpoints */
};

struct domain {
	struct fid_domain fid;
	struct fabric *fabric;
	struct attachment *attachment;
	unsigned users;
	unsigned regions;		/* atomic: memory is registered without the lock */
};

/* What a thread that sleeps for a queue or a counter waits on: an epoll descriptor of the attachment's
 * descriptor and of an eventfd. wait.c owns it. */
struct waiter {
	enum fi_wait_obj object;
	int epoll, event;		/* -1: the object is FI_WAIT_NONE */
	bool signalled;			/* event is readable */
};

struct cq {
	struct fid_cq fid;
	struct domain *domain;
	enum fi_cq_format format;
	size_t size, count;
	struct link completed;		/* operations */
	struct waiter waiter;
	bool woken;			/* by fi_cq_signal */
	unsigned users;
};

struct counter {
	struct fid_cntr fid;
	struct domain *domain;
	uint64_t value, errors;
	struct waiter waiter;
	unsigned users;
};

struct eq {
	struct fid_eq fid;
	struct fabric *fabric;
	struct link events;
	struct waiter waiter;
	bool writable;
	unsigned users;
	unsigned char error_data[CM_DATA];	/* of the last fi_eq_readerr */
};

/* Kinds of operations, by which an endpoint's counters are indexed. */
enum kind { SENDING, RECEIVING, READING, WRITING, REMOTE, KINDS };

/* Frames of a connection: a header and its bytes. Values are defined by this provider. Byte 0 is the kind,
 * byte 1 has flags, byte 2 is VERSION, byte 3 the packed bytes or zero, and bytes 4 to 7 are the length, little-endian.
 * CQ data, 8 bytes, comes between header and bytes and does not count for the length. */
enum frame { FRAME_MESSAGE = 1, FRAME_ACK, FRAME_WRITTEN, FRAME_CONNECT, FRAME_ACCEPT, FRAME_REJECT };
enum { FRAME_DATA = 1, FRAME_ACKED = 2, FRAME_PACKED = 4 };	/* flags: CQ data follows; the receiver sends FRAME_ACK; zeros are left out */
enum { VERSION = 1, HEADER = 8, HEADER_DATA = HEADER + 8 };
/* A stream sends SHORT_FRAME bytes by one message of the mailbox, which takes less than a write. The header of
 * ofi_rxm has 64 bytes, of which most are zero: a message of up to PACKED bytes is packed if it then fits. */
enum { SHORT_FRAME = 48, PACKED = 128 };

/* An operation. It belongs to one list at a time: an endpoint's sends or unacked, a receive context's
 * posted, the attachment's transfers, a completion queue's completed, or the attachment's unused. Between
 * posted and completed a receive is its endpoint's into. */
struct op {
	struct link link;
	struct endpoint *endpoint;	/* NULL for a posted receive of a shared context */
	enum kind kind;
	bool report;			/* write a completion if it succeeds */
	bool quiet;			/* injected: it has no context, and errors are only counted */
	bool silent;			/* of the provider itself: nothing is reported or counted */
	bool acked;			/* it completes with FRAME_ACK */
	bool remote_data;		/* a write with CQ data */
	unsigned char packed;		/* bytes of a message, after its header; 0: it is sent as it is */
	uint64_t flags;			/* of the completion */
	void *context;
	uint64_t data;
	size_t length;			/* of the message */
	size_t done;			/* bytes sent with the header, or received */
	size_t room;			/* of a receive */
	int error;			/* FI_E..., 0: none */
	int status;			/* prov_errno: of a transfer */
	unsigned niov, nrma;
	struct iovec iov[IOVS];
	void *copy;			/* of injected bytes that were not sent at once */
	union {
		struct { unsigned char header[SHORT_FRAME]; unsigned header_size; };	/* packed bytes included */
		struct {
			struct fi_rma_iov rma[RMA_IOVS];
			size_t started;			/* bytes */
			int transfers[PIECES];		/* numbers of exanet_read and exanet_write, -1: none */
			unsigned flying;
		};
	};
};

/* Buffers that were posted, of an endpoint or of a shared receive context. */
struct receive_context {
	struct link posted;
	size_t count, size;
};

struct shared_context {
	struct fid_ep fid;
	struct domain *domain;
	struct receive_context receives;
	unsigned users;
};

enum state {
	OPENED,		/* not enabled */
	ENABLED,
	CONNECTING,	/* it sends FRAME_CONNECT, and waits for the answer */
	ACCEPTING,	/* it sends FRAME_ACCEPT */
	CONNECTED,
	ENDED,		/* closed, reset or rejected; error says why */
};

/* What the two ends of a connection send each other before it stands. */
struct handshake {
	unsigned char out[HEADER + CM_DATA], in[HEADER + CM_DATA];
	size_t size, sent, got;		/* bytes: size of out */
};

struct endpoint {
	struct fid_ep fid;
	struct domain *domain;
	struct link link;		/* in connected or opening */
	enum state state;
	int error;			/* FI_E..., once it ended */
	struct eq *eq;
	struct cq *cq[KINDS];
	bool selective[KINDS];		/* FI_SELECTIVE_COMPLETION */
	struct counter *counters[KINDS];
	uint64_t send_flags, receive_flags;	/* default flags of an operation */
	size_t sends_size;
	struct request *request;	/* that it was opened for */
	exanet_stream *stream;
	struct sockaddr_in address, peer_address;
	struct exanet_remote peer;	/* its whole address space */
	struct handshake handshake;
	/* Sending: the first of sends may be sent in part. */
	struct link sends, unacked;
	size_t nsilent;			/* of sends, of the provider itself */
	size_t nsends;			/* operations of the program that have not completed, RMA included */
	/* Receiving: a header, then its bytes into a buffer. */
	unsigned char header[HEADER_DATA];
	size_t header_got;
	unsigned char packed[SHORT_FRAME];
	struct op *into;
	size_t got;			/* bytes of the message, those without room included */
	struct receive_context own, *receives;
	struct shared_context *shared;
};

struct listener {
	struct fid_pep fid;
	struct fabric *fabric;
	struct link link;
	struct eq *eq;
	struct fi_info *info;
	struct sockaddr_in address;
	exanet_listener *listener;	/* NULL: it does not listen yet */
};

/* A connection of another process, from exanet_accept until an endpoint or fi_reject takes it. The handle
 * of an fi_info of FI_CONNREQ is its fid. */
struct request {
	struct fid fid;
	struct link link;
	struct listener *listener;	/* NULL: it was closed */
	struct endpoint *endpoint;	/* that was opened for it */
	exanet_stream *stream;
	struct exanet_remote peer;
	struct sockaddr_in address;
	bool asked;			/* its first frame has come */
	unsigned char in[HEADER + CM_DATA];
	size_t got;
};

/* prov.c */
extern struct fi_provider exanet_provider;
/* attachment_get returns the process's attachment, NULL: there is none, and a warning says why. */
struct attachment *attachment_get(void);
/* attachment_use counts a fabric of the attachment; attachment_leave detaches with the last one. */
struct attachment *attachment_use(void);
void attachment_leave(struct attachment *);
/* attachment_gone reports whether pfd has ended. */
bool attachment_gone(struct attachment *);

/* info.c */
int info_get(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **);

/* address.c */
struct sockaddr_in address_of(const struct exanet_remote *, unsigned endpoint);
/* address_text writes the form that exanet_connect takes: 0, or -FI_EADDRNOTAVAIL. */
int address_text(const struct sockaddr_in *, char *text, size_t size);
/* address_parse reads an address of a program or of fi_getinfo. NULL: service, or node, is not given. */
int address_parse(const char *node, const char *service, struct sockaddr_in *);
int address_check(const void *address, size_t size, struct sockaddr_in *);
unsigned address_endpoint(const struct sockaddr_in *);
/* address_copy is fi_getname. */
int address_copy(const struct sockaddr_in *, void *to, size_t *size);

/* fabric.c */
int fabric_open(struct fi_fabric_attr *, struct fid_fabric **, void *context);

/* domain.c */
int domain_open(struct fid_fabric *, struct fi_info *, struct fid_domain **, void *context);

/* Functions of the tables for which this provider has nothing. */
int no_bind(struct fid *, struct fid *, uint64_t);
int no_control(struct fid *, int, void *);
int no_ops_open(struct fid *, const char *, uint64_t, void **, void *);

/* endpoint.c */
int endpoint_open(struct fid_domain *, struct fi_info *, struct fid_ep **, void *context);
int shared_open(struct fid_domain *, struct fi_rx_attr *, struct fid_ep **, void *context);
/* endpoint_end ends the connection: it closes the stream, completes every operation with error, and raises
 * FI_SHUTDOWN if the connection stood and raise is true. Locked. */
void endpoint_end(struct endpoint *, int error, bool raise);
/* The options of every kind of endpoint. */
int option_set(fid_t, int level, int name, const void *, size_t);
int option_get(fid_t, int level, int name, void *, size_t *);

/* message.c */
extern struct fi_ops_msg message_ops, shared_message_ops;
/* message_progress sends and receives what can be done without waiting. It reports whether it did anything.
 * Locked. */
bool message_progress(struct endpoint *);
/* message_written sends the CQ data of a write that has finished. Locked. */
void message_written(struct endpoint *, uint64_t data);
/* frame_header writes a header and returns its size. */
unsigned frame_header(unsigned char *, enum frame, unsigned flags, size_t length, uint64_t data);
/* frame_length checks a header and returns the length, -1: it is none that kind and most allow. */
int64_t frame_length(const unsigned char *, enum frame, size_t most);

/* rma.c */
extern struct fi_ops_rma rma_ops;
bool rma_progress(struct attachment *);
/* rma_abort aborts the transfers of an endpoint, whose operations complete with error when those have ended.
 * rma_finish waits for them for a bounded time, and completes the others. */
void rma_abort(struct endpoint *, int error);
void rma_finish(struct endpoint *);

/* cm.c */
extern struct fi_ops_cm endpoint_cm_ops;
int listener_open(struct fid_fabric *, struct fi_info *, struct fid_pep **, void *context);
/* progress_control advances listeners, requests and handshakes. It reports whether it did anything. Locked. */
bool progress_control(struct attachment *);
/* request_find returns the request of a handle, NULL: it is none any more. request_drop closes a request. Locked. */
struct request *request_find(struct attachment *, fid_t handle);
void request_drop(struct attachment *, struct request *);

/* op.c */
/* op_get returns an operation, NULL: no memory. Locked, as the others. */
struct op *op_get(struct attachment *);
void op_free(struct attachment *, struct op *);
/* op_begin returns an operation of an endpoint that sends, reads or writes, NULL: error says why, or is 0 if the
 * connection has ended and the operation has completed with that. */
struct op *op_begin(struct endpoint *, enum kind, uint64_t flags, void *context, ssize_t *error);
/* op_reports reports whether an operation that succeeds has a completion. */
bool op_reports(const struct endpoint *, enum kind, uint64_t flags);
/* op_copy copies the bytes of an operation, whose memory the program may then change. */
bool op_copy(struct op *, size_t size);
/* op_complete writes the completion of an operation that is in no list, and counts it. */
void op_complete(struct op *);
void op_fail(struct op *, int error);
/* op_cancel cancels the operation of a context in a list and reports whether there was one. */
bool op_cancel(struct link *head, const void *context);
size_t iov_size(const struct iovec *, size_t n);
/* iov_slice returns the pieces of iov from offset on, of size bytes at most, in to. */
unsigned iov_slice(const struct iovec *iov, unsigned n, size_t offset, size_t size, struct iovec *to);

/* cq.c */
int cq_open(struct fid_domain *, struct fi_cq_attr *, struct fid_cq **, void *context);
void cq_add(struct cq *, struct op *);
int counter_open(struct fid_domain *, struct fi_cntr_attr *, struct fid_cntr **, void *context);
void counter_add(struct counter *, uint64_t done, uint64_t failed);

/* eq.c */
int eq_open(struct fid_fabric *, struct fi_eq_attr *, struct fid_eq **, void *context);
/* eq_event adds an event with the program's data, or if error is not 0 an error. It takes info. Locked. */
void eq_event(struct eq *, uint32_t event, fid_t, struct fi_info *info, int error, const void *data, size_t size);
/* eq_forget removes the events of an object that is closed, and those of a request. Locked. */
void eq_forget(struct eq *, fid_t);

/* wait.c */
int waiter_open(struct waiter *, enum fi_wait_obj, struct attachment *);
void waiter_close(struct waiter *);
/* waiter_signal wakes the threads that wait; waiter_clear is called when nothing is left. Locked. */
void waiter_signal(struct waiter *);
void waiter_clear(struct waiter *);
int waiter_control(struct waiter *, int command, void *arg);
/* wait_for calls done, with the lock, until it returns another value than -FI_EAGAIN, or the timeout has
 * passed. It makes progress before each call. */
ssize_t wait_for(struct attachment *, struct waiter *, int timeout, ssize_t (*done)(void *), void *arg);
/* progress_data advances messages and transfers, and reports whether it did anything. Locked. */
bool progress_data(struct attachment *);
/* progress_offer is called by a thread that has found nothing. If the program has called again and again for
 * nothing, the thread sleeps for a short time, or until something comes: pfd and the peer may need its processor. */
void progress_offer(struct attachment *);
int64_t clock_now(void);
int fabric_trywait(struct fid_fabric *, struct fid **, int count);

/* The errno of libfabric for a result of libexanet, negative as its functions return it, or the status of a
 * transfer. */
int errno_of(struct attachment *, int result);
int errno_of_status(struct attachment *, int status);

#endif
