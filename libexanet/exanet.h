/* libexanet: RDMA without pinning, for programs in C. See exanet(3).
 *
 * An attachment connects one process to one node of a pfd. Any memory of the process may be source and
 * destination. Nothing is registered or pinned, and absent pages are paged in during a transfer. Functions
 * may be called by any thread.
 *
 * A forked child cannot use its parent's attachment. Functions return -EPERM there, exanet_alloc NULL,
 * exanet_export and exanet_get_info zeros. exanet_close and exanet_free release the child's copies, and do
 * not affect the parent's. A child must attach itself. It inherits no descriptor that another thread is
 * sending to pfd; a child of clone or _Fork may (exanet(3)).
 *
 * The library starts tasks (keepers, and a memory helper if pfd is another user's). They send no SIGCHLD,
 * and a wait returns one only with __WALL or __WCLONE.
 *
 * A function returns 0 or a number that is not negative, or a negative errno; exanet_error() then says what
 * happened and what to do. Transfers end with a status of docs/troubleshooting.md. */
#ifndef EXANET_H
#define EXANET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define EXANET_VERSION "1.0"

typedef struct exanet exanet;

/* How absent pages are paged in (docs/spec/faultpath.md, "Page-in methods"). Only with touch and populate,
 * and for streams (exanet_stream.h), the library has a thread of its own. */
enum { EXANET_METHOD_DEFAULT, EXANET_GUP, EXANET_TOUCH, EXANET_UFFD, EXANET_POPULATE };

/* How many pages a fault pages in: the page, the pages to the end of 16 KiB, all that remain, as many as the
 * domain's faults suggest. */
enum { EXANET_POLICY_DEFAULT, EXANET_PIO, EXANET_PI4, EXANET_PIA, EXANET_ADAPTIVE };

/* Flags of an attachment. */
enum {
	EXANET_ACCEPT_GROUP = 1,	/* every member of the group may write here */
	EXANET_TRUST = 2,		/* the options have trust and ntrust */
	/* Include memory of exanet_alloc and exanet_share in core dumps, which page all of it in. Without
	 * the flag a program can include parts by MADV_DODUMP. */
	EXANET_DUMP = 4,
	/* Do not register shared memory with the library's userfaultfd, for a program that registers its
	 * own. Missing pages are then paged in like other memory, and after an munmap without exanet_unshare
	 * transfers silently access the memory that was shared. */
	EXANET_NO_USERFAULTFD = 8,
	/* Let the kernel bring in memory of exanet_alloc by folios, blocks of more than a page, if its
	 * setting allows it (exanetctl doctor): absent memory then comes in faster, and memory that is
	 * touched sparsely takes more. exanet_folio returns what a buffer has. */
	EXANET_FOLIOS = 16,
	/* The process may have threads of the global address space (exanet_gsas.h). -ENOTSUP: an older pfd
	 * has none. */
	EXANET_THREADS = 32,
	/* The options' node is a place among the nodes of pfd, from 0, and not a node's id. pfds of several
	 * machines have different ids (pfd --node-base). -EPROTO: an older pfd knows ids only. */
	EXANET_PLACE = 64
};

struct exanet_options {
	const char *socket;	/* pfd's control socket; NULL: the default one */
	uint32_t node;
	const char *group;	/* NULL: "default" */
	const unsigned char *key;	/* 32 secret bytes that the group shares, or NULL */
	unsigned char method, policy, flags;
	unsigned char naccept;	/* at most 16 */
	const uint16_t *accept;	/* PDIDs of other domains that may write here */
	/* Read only with EXANET_TRUST: users, besides root and the process's own, whose pfd may access the
	 * process's memory. The machine's own pfd need not be named. 65534 names every user that the user
	 * namespace does not map, such as that of the machine's pfd in a rootless container. */
	const uint32_t *trust;
	uint32_t ntrust;
};

/* Memory of a process, for its peers: it names the memory and carries no rights. */
struct exanet_remote {
	uint32_t node, generation;
	uint16_t pdid;
	unsigned char interface;	/* of the process, for messages to it: 16 to 31; 0: unknown */
	uint64_t address, length;
};

/* Description of an attachment. */
struct exanet_info {
	uint32_t node, generation;
	uint16_t pdid;
	unsigned char slot, method, policy, address_bits;
	int sva;	/* 0: the device accesses shared memory only (exanet_alloc, exanet_share) */
};

struct exanet_stats {
	uint64_t faults, pages_in, failed, invalidations;	/* pages */
};

/* Flags of a transfer. */
enum {
	EXANET_URGENT = 1,	/* a write: ahead of larger transfers */
	EXANET_NOWAIT = 2	/* a read: without a wait for pfd; if the node refuses it, it ends with status 2 */
};

struct exanet_transfer {
	void *local;		/* source of a write, destination of a read */
	uint32_t size;		/* bytes, not 0 */
	uint32_t flags;
	struct exanet_remote remote;
	uint64_t offset;	/* from the start of remote */
	/* If notify is not 0, a write stores first there and last 8 bytes after it, once every byte is in
	 * the target's memory. It is an address of the target, aligned to 16. */
	uint64_t notify, first, last;
};

/* exanet_poll and exanet_wait: the transfer has not ended. */
#define EXANET_ONGOING (-1000)

int exanet_attach(exanet **, const struct exanet_options *);
/* Ends the attachment: after it returns, no transfer accesses memory of the process. */
int exanet_close(exanet *);
void exanet_get_info(const exanet *, struct exanet_info *);
void exanet_get_stats(const exanet *, struct exanet_stats *);

/* Returns a name of this process's memory for its peers. */
void exanet_export(const exanet *, const void *, uint64_t length, struct exanet_remote *);
/* The text form, as of Go's rdma.Remote. A size of 96 is always enough. */
int exanet_remote_text(const struct exanet_remote *, char *text, size_t size);
int exanet_remote_parse(const char *text, struct exanet_remote *);

/* Start a transfer and return its number; -EBUSY: all 32 are in flight. Until it ends the transfer owns the
 * local memory. */
int exanet_write(exanet *, const struct exanet_transfer *);
int exanet_read(exanet *, const struct exanet_transfer *);
/* 0: every byte has arrived. 1 to 11: it failed with that status. EXANET_ONGOING: it has not ended. Once the
 * end is returned, the number is free. A caller that polls for more than some microseconds must sleep
 * between two calls, or use exanet_wait: pfd may need its processor to page in, and sched_yield does not
 * release it if the caller is a real-time thread or in another session (sched_autogroup). */
int exanet_poll(exanet *, int transfer);
/* Waits for the end; a timeout in milliseconds, -1: none. */
int exanet_wait(exanet *, int transfer, int timeout);
/* Requests the end of a transfer. The caller must still wait for it. */
int exanet_abort(exanet *, int transfer);
/* Waits until a word of this process's memory has the value: a notification's last. */
int exanet_wait_word(exanet *, const uint64_t *word, uint64_t value, int timeout);

/* A message of another process. The nodes write who its sender is. */
enum { EXANET_WORDS = 8 };
struct exanet_message {
	uint32_t node;		/* of the sender, or of the process that refused */
	uint32_t number;	/* with -EREMOTEIO: of this process's message that was refused; else 0 */
	uint16_t pdid;		/* of the sender */
	unsigned char interface, count;	/* of the sender; words */
	uint64_t words[EXANET_WORDS];	/* bits [17:2] of the first are zero */
};

/* Sends 1 to 8 words to the process that exported remote, whose address and length do not matter, and returns
 * the message's number, 1 or more. Bits [23:2] of the first word must be zero. Messages are not reliable:
 * -EREMOTEIO: the receiver's mailbox is full, or it does not admit this process, or it has ended. Another
 * node may refuse a message later, and without sva the own one, too: exanet_receive reports
 * that. -EBUSY: pfd does not read the messages. */
int exanet_send(exanet *, const struct exanet_remote *, const uint64_t *words, int n);
/* Waits for a message and returns the number of its words; a timeout in milliseconds, -1: none. -EREMOTEIO:
 * the message of this process whose number is in the message was refused. -ETIMEDOUT: none has arrived. The
 * library keeps 1024 messages and drops further ones. */
int exanet_receive(exanet *, struct exanet_message *, int timeout);

/* Rings: descriptors to wait on, for poll(2), epoll(7) or another event loop of the program. A ring watches
 * completion words in size bytes, whole words of 8 bytes, or with NULL and 0 the mailbox: messages, ends of
 * this process's transfers, and completion words that no other ring watches. It is readable once something has
 * come for it since exanet_ring or exanet_arm, and sometimes although nothing has. A process has at most 1024
 * rings, 8 of them of the mailbox. -EBUSY: all are in use. -EINVAL: another ring watches some of the words, or
 * the process can share no memory. -EDQUOT: the user has its share of rings. */
int exanet_ring(exanet *, const void *words, size_t size, int *fd);
/* Before each wait: empties the ring and lets pfd make it readable again. Only then look for what may have
 * come, and wait if nothing has. -ENOTCONN: the attachment has ended. */
int exanet_arm(exanet *, int fd);
/* Ends a ring and closes its descriptor; do not close that otherwise. */
int exanet_ring_close(exanet *, int fd);
/* Returns the descriptor of a ring of the mailbox that the attachment keeps, always the same. exanet_close
 * closes it and all others. */
int exanet_fd(exanet *);

/* A wait that costs less than a ring, for a program that polls. exanet_events returns a number that changes after
 * something has come for this process: a message, an answer, the end of a transfer, completion words that pfd
 * has written. A program reads it, then looks for what it waits for. While the number stays the same nothing has
 * come since, but completion words that another pfd has written. exanet_events_wait sleeps while the number is
 * seen, for ns nanoseconds at most. -ENOTCONN: the attachment has ended. */
uint32_t exanet_events(const exanet *);
int exanet_events_wait(exanet *, uint32_t seen, int64_t ns);

/* Rights of a memory window; the last one does not depend on its range. */
enum { EXANET_RIGHT_READ = 1, EXANET_RIGHT_WRITE = 2, EXANET_RIGHT_ATOMIC = 4, EXANET_RIGHT_MESSAGES = 8 };
/* Opens memory of this process to the domains with PDID peer on any node, 0: to all, until exanet_window_close or
 * the end of the attachment. It matters for domains that this process does not admit (EXANET_ACCEPT_GROUP,
 * accept): they reach exactly the memory of its windows. Windows that overlap or touch add up. A transfer
 * without the right for its whole memory here, and for its completion words, fails with status 5; blocks of it
 * that lie in a window may be written. Memory that is mapped there later is open, too: close the window before
 * its memory is freed. -EDQUOT: there are 64 windows, or this user's processes admit too many PDIDs by name. */
int exanet_window(exanet *, const void *address, size_t, uint16_t peer, int rights);
/* Withdraws a window, given as it was opened. When it returns 0 nothing that only this window admitted accesses
 * the memory any more. -ENOENT: there is no such window. */
int exanet_window_close(exanet *, const void *address, size_t, uint16_t peer, int rights);

/* Pages in memory of this process before a transfer needs it. */
int exanet_prefetch(exanet *, void *, size_t, int write);
/* Returns memory that is shared with the device, as a file of its own, and with method uffd registered. With
 * uffd and sva it is only registered. With sva it is private memory if the process may not create such a
 * file (ulimit -f, a seccomp filter). On failure it returns NULL: see exanet_error(). The memory is absent
 * until its first use, except under mlockall(2) with MCL_FUTURE. A forked child shares it and has no copy. */
void *exanet_alloc(exanet *, size_t);
/* Returns how many pages of the memory that exanet_alloc returned come in together at the first touch of one:
 * 1 without EXANET_FOLIOS. -EOPNOTSUPP: single pages, although the attachment has that flag; exanet_error()
 * says why. The memory can be used all the same. -EINVAL: exanet_alloc has not returned the address. */
int exanet_folio(exanet *, const void *);
/* The memory must not be mapped over before. If exanet_free fails, the memory stays. */
int exanet_free(exanet *, void *, size_t);
/* Shares whole pages of a memfd, sealed against shrinking, that is mapped shared at address. With sva
 * transfers are then faster, and memory that cannot be shared is accessed as before. Until exanet_unshare
 * nothing else may be mapped there, and transfers have the rights of the share. The memory is excluded from
 * core dumps (EXANET_DUMP). It is registered with a userfaultfd, through which pfd learns of an munmap
 * without exanet_unshare; the munmap waits for pfd, while pfd is stopped until it continues or ends. The
 * program can register no other there (EXANET_NO_USERFAULTFD). Without it, and with method uffd without sva,
 * transfers still access the memory that was shared, and end with status 0. pfd never learns of that, of
 * shmat with SHM_REMAP over the memory or of remap_file_pages in it: call exanet_unshare first. -EINVAL:
 * another share is at that address. */
int exanet_share(exanet *, void *address, size_t, int fd, uint64_t offset, int writable);
int exanet_unshare(exanet *, void *address, size_t);
/* Call it after whole pages of shared memory were discarded (MADV_REMOVE): the device removes them from its
 * tables. With sva the next access also notices, but takes longer. */
int exanet_invalidate(exanet *, void *address, size_t);
/* Method uffd: makes pfd fill the missing pages of private anonymous memory. */
int exanet_register(exanet *, void *address, size_t);
int exanet_unregister(exanet *, void *address, size_t);

/* The text of this thread's last failed call. */
const char *exanet_error(void);
/* A status in words. */
const char *exanet_status(int status);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
