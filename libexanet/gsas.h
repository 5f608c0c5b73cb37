/* Threads of the global address space: declarations shared by their parts. Numbers in comments are sections of
 * docs/spec/gsas.md. */
#ifndef EXANET_GSAS_INTERNAL_H
#define EXANET_GSAS_INTERNAL_H

#include "exanet_gsas.h"
#include "internal.h"

/* Operations that are not for exanet_gsas_start, and statuses (3). */
enum { OP_ALLOC = 0x20, OP_FREE = 0x21, OP_ALIVE = 0x32, OPS };
enum { GSAS_DONE, GSAS_PAGE, GSAS_ADDRESS, GSAS_ROOM, GSAS_DENIED = 5, GSAS_REQUEST, GSAS_BUSY, GSAS_WAITING, GSAS_GONE = 10 };
enum { REQUEST_WORDS = 7, VALUES = 4, THREAD_CHANNELS = 4, MAILBOX_GSAS = 4 };

/* An operation of a channel. The one that started it owns it; open, done and answer are under the thread's lock, but
 * done is atomic and is stored last. */
struct call {
	int op, n;
	uint64_t words[REQUEST_WORDS];
	uint32_t node, use, done;
	uint16_t number;
	bool open, waiting, sent;	/* waiting: the unit has said that the operation waits for its page */
	int64_t born, began, asked;	/* of the call; of the wait for its node; of its last request */
	int status;
	uint64_t values[VALUES];
};

struct exanet_gsas {
	exanet *e;
	struct exanet_gsas *next;
	unsigned char *port;		/* of threads in the attachment's memory (docs/attach.md 12) */
	uint16_t (*numbers)[1 << 16];	/* of the last message, by channel and node */
	uint32_t id, protection;
	uint64_t region;
	int index, memory;		/* memory: the memfd of the tree on this node */
	unsigned char token[16];
	void *map;			/* of memory; NULL: none yet */
	pthread_mutex_t lock;		/* guards the mailbox, calls and what follows; taken before all others */
	pthread_cond_t freed;
	int64_t limit;			/* of a call, ns; 0: none; atomic */
	unsigned used, started;		/* channels with an operation; those of exanet_gsas_start, until exanet_gsas_finish */
	struct call calls[THREAD_CHANNELS];
};

struct threads {
	uint16_t (*numbers[64])[1 << 16];	/* by interface: they continue when another thread has it (3) */
	struct exanet_gsas *list;
};

/* What a request asks for: arguments, values, and the alignment of its address, 0: none. */
struct operation {
	const char *name;
	unsigned char args, values, bytes;
};
extern const struct operation operations[OPS];

/* thread_message writes THREAD; unthread_message writes UNTHREAD; threaded reads THREADED and reports whether it can
 * be. */
void thread_message(unsigned char *m, const unsigned char *token);
void unthread_message(unsigned char *m, int index);
bool threaded(const unsigned char *m, struct exanet_gsas *);
/* request writes the words of a request and returns their number. The packetizer writes [55:0] of the first. */
int request(uint64_t *words, int op, uint64_t address, const uint64_t *args);
/* accept takes the messages of a thread's mailbox, with its lock held, and reports whether the ring was full. */
bool accept_answers(struct exanet_gsas *);

/* As exanet_gsas_start and exanet_gsas_finish, but an invalid address is an error. wait: for a free channel. The caller
 * must finish what it has started before it waits for anything else. */
int gsas_start(exanet_gsas *, int op, uint64_t address, const uint64_t *args, bool wait);
int gsas_finish(exanet_gsas *, int number, uint64_t *values);
int gsas_call(exanet_gsas *, int op, uint64_t address, const uint64_t *args, uint64_t *values);

#endif
