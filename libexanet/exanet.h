/* libexanet: RDMA without pinning, for programs in C. See exanet(3).
 *
 * An attachment is one process on one node of a pfd. Any memory of the process may be
 * source and destination; nothing is registered or pinned, and absent pages are brought
 * in while a transfer goes on. Functions may be called by any thread.
 *
 * A child made by fork has no part in its parent's attachment. There every function gives -EPERM, or
 * nothing (exanet_alloc NULL, exanet_export and exanet_get_info zeros), but exanet_close and exanet_free:
 * these release what the child inherited, and end nothing of the parent's. A child attaches anew. It has no
 * descriptor that another thread is just handing to pfd; one made by clone or _Fork may (exanet(3)).
 *
 * The library starts tasks (keepers, and for a pfd of another user a memory helper). None sends SIGCHLD, and
 * no wait meets one, but with __WALL or __WCLONE.
 *
 * A function gives 0 or a number that is not negative, or the negative of an errno;
 * exanet_error() then says what happened and what to do. Transfers end with a status of
 * docs/troubleshooting.md. */
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

/* Who brings absent pages in (docs/spec/faultpath.md, "Page-in methods"). With touch
 * and populate the library has a thread of its own, else none. */
enum { EXANET_METHOD_DEFAULT, EXANET_GUP, EXANET_TOUCH, EXANET_UFFD, EXANET_POPULATE };

/* How many pages a fault brings in: the page, to the end of 16 KiB, all that remain, what the
 * domain's faults show. */
enum { EXANET_POLICY_DEFAULT, EXANET_PIO, EXANET_PI4, EXANET_PIA, EXANET_ADAPTIVE };

/* Flags of an attachment. */
enum {
	EXANET_ACCEPT_GROUP = 1,	/* every member of the group may write here */
	EXANET_TRUST = 2,		/* the options have trust and ntrust */
	/* Memory of exanet_alloc and exanet_share stays in core dumps, which bring all of it in. Without
	 * it a program has parts dumped by MADV_DODUMP. */
	EXANET_DUMP = 4,
	/* Shared memory has no userfaultfd of the library's, for a program that has one of its own there:
	 * its missing pages come in as others do, and after an munmap without exanet_unshare transfers
	 * reach the memory that was shared, silently. */
	EXANET_NO_USERFAULTFD = 8
};

struct exanet_options {
	const char *socket;	/* pfd's control socket; NULL: the default one */
	uint32_t node;
	const char *group;	/* NULL: "default" */
	const unsigned char *key;	/* 32 secret bytes that the group shares, or NULL */
	unsigned char method, policy, flags;
	unsigned char naccept;	/* at most 16 */
	const uint16_t *accept;	/* PDIDs of other domains that may write here */
	/* With EXANET_TRUST, else they are not read: users, besides root and the process's own, whose
	 * pfd may reach the process's memory. The machine's own pfd need not be named. 65534 names
	 * every user that the user namespace does not map: in a rootless container, for one, the
	 * machine's pfd shows as that. */
	const uint32_t *trust;
	uint32_t ntrust;
};

/* Memory of a process, for its peers: a name and not a right. */
struct exanet_remote {
	uint32_t node, generation;
	uint16_t pdid;
	uint64_t address, length;
};

/* What an attachment is. */
struct exanet_info {
	uint32_t node, generation;
	uint16_t pdid;
	unsigned char slot, method, policy, address_bits;
	int sva;	/* 0: the device reaches shared memory alone (exanet_alloc, exanet_share) */
};

struct exanet_stats {
	uint64_t faults, pages_in, failed, invalidations;	/* pages */
};

/* Flags of a transfer. */
enum { EXANET_URGENT = 1 };	/* ahead of larger transfers */

struct exanet_transfer {
	void *local;		/* source of a write, destination of a read */
	uint32_t size;		/* bytes, not 0 */
	uint32_t flags;
	struct exanet_remote remote;
	uint64_t offset;	/* from the start of remote */
	/* Where notify is not 0 a write stores first there, and last 8 bytes after it,
	 * once every byte is in the target's memory. It is an address of the target,
	 * aligned to 16. */
	uint64_t notify, first, last;
};

/* exanet_poll and exanet_wait: not over yet. */
#define EXANET_ONGOING (-1000)

int exanet_attach(exanet **, const struct exanet_options *);
/* Ends the attachment: when it returns no transfer reaches memory of the process. */
int exanet_close(exanet *);
void exanet_get_info(const exanet *, struct exanet_info *);
void exanet_get_stats(const exanet *, struct exanet_stats *);

/* Names memory of this process for its peers. */
void exanet_export(const exanet *, const void *, uint64_t length, struct exanet_remote *);
/* The text form, as Go's rdma.Remote has it. size 96 is always enough. */
int exanet_remote_text(const struct exanet_remote *, char *text, size_t size);
int exanet_remote_parse(const char *text, struct exanet_remote *);

/* Start a transfer and give its number; -EBUSY: all 32 are under way. Until it is over
 * the memory here belongs to it. */
int exanet_write(exanet *, const struct exanet_transfer *);
int exanet_read(exanet *, const struct exanet_transfer *);
/* 0: every byte has arrived. 1 to 11: it failed with that status. EXANET_ONGOING.
 * The number is free once it is over. A caller that polls for longer than some microseconds
 * must sleep between two looks, or use exanet_wait: pfd may need its processor to bring pages
 * in, and sched_yield does not give that to it where the caller is a real-time thread, or one
 * of another session (sched_autogroup). */
int exanet_poll(exanet *, int transfer);
/* Waits; a timeout in milliseconds, -1: none. */
int exanet_wait(exanet *, int transfer, int timeout);
/* Asks for the end of a transfer; wait for it all the same. */
int exanet_abort(exanet *, int transfer);
/* Waits until a word of this process's memory has the value: a notification's last. */
int exanet_wait_word(exanet *, const uint64_t *word, uint64_t value, int timeout);

/* Brings pages of this process in, before a transfer needs them. */
int exanet_prefetch(exanet *, void *, size_t, int write);
/* Memory of a file of its own that is shared with the device, and registered with method
 * uffd; with uffd and sva it is registered alone, and with sva it is private memory, too, where the process may
 * make no such file (ulimit -f, a seccomp filter). NULL and exanet_error(). It is not in memory
 * before it is used, but under mlockall(2) with MCL_FUTURE. A child that is forked has the same memory, and no copy. */
void *exanet_alloc(exanet *, size_t);
/* Nothing else may be mapped there before; where it fails the memory stays. */
int exanet_free(exanet *, void *, size_t);
/* Shares whole pages of a memfd that is sealed against shrinking, mapped shared at address.
 * With sva a transfer reaches them sooner; what cannot be shared it reaches as before. Until
 * exanet_unshare nothing else may be mapped there, and transfers have the rights of the share; it is
 * in no core dump (EXANET_DUMP). It has a userfaultfd until then, by which pfd learns of an
 * munmap without exanet_unshare, which waits for that, and while pfd is stopped until it goes on or ends: the
 * program can have no other there (EXANET_NO_USERFAULTFD). Without it, and with method uffd without sva, transfers
 * go on to reach what was shared, and status 0 says so. That, shmat with SHM_REMAP over it and
 * remap_file_pages in it are not told: exanet_unshare first. -EINVAL: another share is in the way. */
int exanet_share(exanet *, void *address, size_t, int fd, uint64_t offset, int writable);
int exanet_unshare(exanet *, void *address, size_t);
/* After whole pages of shared memory were taken away (MADV_REMOVE): the device forgets them.
 * With sva the next access finds that out, too, and takes longer. */
int exanet_invalidate(exanet *, void *address, size_t);
/* Method uffd: has pfd serve the missing pages of private anonymous memory. */
int exanet_register(exanet *, void *address, size_t);
int exanet_unregister(exanet *, void *address, size_t);

/* What the last call of this thread that failed has to say. */
const char *exanet_error(void);
/* A status in words. */
const char *exanet_status(int status);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
