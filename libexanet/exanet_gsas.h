/* libexanet: the global address space. Threads of processes on all nodes read, write and change words of one address
 * space, whose pages are absent until they are used and are never pinned. It is that of Go's package gsas. See
 * exanet_gsas(3) and docs/gsas.md.
 *
 * A thread here is a packetizer and a mailbox of the attachment, which must have EXANET_THREADS; it is no thread of the
 * operating system. It begins a tree, or joins one by its token; only the threads of a tree access its pages.
 *
 * Functions may be called by any thread of the program, but exanet_gsas_close only when no other call with that handle is
 * in progress and none follows. exanet_close ends all threads of the attachment and makes their handles invalid. In a
 * forked child all functions return -EPERM.
 *
 * A function returns 0 or a number that is not negative, or a negative errno; exanet_error() then says what happened
 * and what to do. An operation is done once or, after an error, not at all, but with -EHOSTUNREACH, -ENOTCONN and
 * -ETIMEDOUT it may have been done. */
#ifndef EXANET_GSAS_H
#define EXANET_GSAS_H

#include "exanet.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A thread of the address space. */
typedef struct exanet_gsas exanet_gsas;

/* The size of a page, and of a token's text. */
enum { EXANET_GSAS_PAGE = 4096, EXANET_GSAS_TOKEN = 33 };

/* An invalid address ends the program, as a bad pointer does: with a message and abort(3). After exanet_gsas_errors(1) a
 * call returns -EFAULT or -EACCES instead, for all threads of the program. Returns what was set before. */
int exanet_gsas_errors(int on);

/* Makes a thread that is the root of a new tree. -EINVAL: the attachment has not EXANET_THREADS, or the node has no
 * unit. -EDQUOT: the attachment has 8 threads, or the node 32. */
int exanet_gsas_begin(exanet *, exanet_gsas **);
/* Makes a thread in the tree that has a token. -ENOENT: no tree of this user has it. */
int exanet_gsas_join(exanet *, const char *token, exanet_gsas **);
/* Ends a thread. The handle is invalid in any case. The pages of a tree are freed with its last thread. */
int exanet_gsas_close(exanet_gsas *);
/* The token of the thread's tree: who has it, of this user, can join. */
int exanet_gsas_token(const exanet_gsas *, char *text, size_t size);
/* The ids of the thread and of its tree, which is that of the tree's root. */
uint32_t exanet_gsas_id(const exanet_gsas *);
uint32_t exanet_gsas_tree(const exanet_gsas *);
/* The address of a page, on the root's node, that only this tree can have, for what its threads need to find. It is
 * allocated by naming it as the hint of exanet_gsas_alloc. */
uint64_t exanet_gsas_directory(const exanet_gsas *);
/* Returns 1 if a thread of the tree lives, else 0. */
int exanet_gsas_alive(exanet_gsas *, uint32_t thread);

/* Sets for how long a call of the thread waits at most: ms, rounded up to 20; 0: for as long as its page takes to come and
 * pfd does not read its request, which is so at first. A call that takes longer returns -ETIMEDOUT; its operation may have
 * been done, or will be. Returns the limit that was set before. */
int exanet_gsas_limit(exanet_gsas *, int ms);

/* The address of a byte of a node's partition, nodes 0 to 65534; and the node that an address is on, -1: none. */
static inline uint64_t exanet_gsas_at(uint32_t node, uint64_t offset) { return (uint64_t)(node + 1) << 48 | (offset & 0xffffffffffff); }
static inline int exanet_gsas_node(uint64_t address) { return (int)(address >> 48) - 1; }

/* Allocates consecutive pages of a node, which are zero, for the tree. If hint is not 0 they begin there if those pages
 * are free, on that node, and in the tree's part of it or its directory; else they are elsewhere. -ENOSPC: the user's
 * quota is used, or the node has no room. exanet_gsas_free frees the pages of one exanet_gsas_alloc; after it returns no
 * operation accesses them. */
int exanet_gsas_alloc(exanet_gsas *, uint32_t node, uint64_t pages, uint64_t hint, uint64_t *address);
int exanet_gsas_free(exanet_gsas *, uint64_t address);

/* Operations on 64, 128 and 256 bits, at addresses aligned to 8, 16 and 32 bytes. Each is atomic. Those that change words
 * return in old, unless it is NULL, what was there before; compare operations have changed them if that equals expected
 * (exanet_gsas_compare_store256: its first word). Four operations of a thread are in flight at once, and further ones
 * wait. */
int exanet_gsas_load64(exanet_gsas *, uint64_t address, uint64_t *v);
int exanet_gsas_load128(exanet_gsas *, uint64_t address, uint64_t v[2]);
int exanet_gsas_load256(exanet_gsas *, uint64_t address, uint64_t v[4]);
int exanet_gsas_store64(exanet_gsas *, uint64_t address, uint64_t v);
int exanet_gsas_store128(exanet_gsas *, uint64_t address, const uint64_t v[2]);
int exanet_gsas_store256(exanet_gsas *, uint64_t address, const uint64_t v[4]);
int exanet_gsas_fetch_add(exanet_gsas *, uint64_t address, uint64_t v, uint64_t *old);
int exanet_gsas_swap(exanet_gsas *, uint64_t address, uint64_t v, uint64_t *old);
int exanet_gsas_fetch_and(exanet_gsas *, uint64_t address, uint64_t v, uint64_t *old);
int exanet_gsas_fetch_or(exanet_gsas *, uint64_t address, uint64_t v, uint64_t *old);
int exanet_gsas_fetch_xor(exanet_gsas *, uint64_t address, uint64_t v, uint64_t *old);
int exanet_gsas_compare_swap(exanet_gsas *, uint64_t address, uint64_t expected, uint64_t v, uint64_t *old);
int exanet_gsas_compare_swap128(exanet_gsas *, uint64_t address, const uint64_t expected[2], const uint64_t v[2], uint64_t old[2]);
int exanet_gsas_compare_store256(exanet_gsas *, uint64_t address, uint64_t expected, const uint64_t v[4], uint64_t old[4]);

/* The same operations for exanet_gsas_start, with the words of their arguments, in the order above, and of their values. */
enum {
	EXANET_LOAD64 = 0x01, EXANET_LOAD128, EXANET_LOAD256,			/* 0 arguments; 1, 2, 4 values */
	EXANET_STORE64 = 0x09, EXANET_STORE128, EXANET_STORE256,		/* 1, 2, 4; 0 */
	EXANET_FETCH_ADD = 0x10, EXANET_SWAP, EXANET_COMPARE_SWAP,		/* 1, 1, 2; 1 */
	EXANET_FETCH_AND, EXANET_FETCH_OR, EXANET_FETCH_XOR,			/* 1; 1 */
	EXANET_COMPARE_SWAP128 = 0x1a, EXANET_COMPARE_STORE256			/* 4, 5; 2, 4 */
};
/* Starts an operation and returns its number. -EBUSY: four are in flight. exanet_gsas_finish waits for its end and
 * stores its values, unless that is NULL. Call it within half a second: a message that is lost is sent again
 * in that call only, and after 0.9 seconds it returns -EHOSTUNREACH if pfd has read the request and no answer has come. */
int exanet_gsas_start(exanet_gsas *, int operation, uint64_t address, const uint64_t *arguments);
int exanet_gsas_finish(exanet_gsas *, int number, uint64_t *values);

/* Returns where size bytes at an address of the thread's own node are in the process's memory, until exanet_gsas_close.
 * The processor's atomic operations there are coherent with those of all threads on 64 and 128 bits. -EFAULT: the
 * bytes are not in the tree's memory of this node. Only pages that were allocated are the tree's. */
int exanet_gsas_map(exanet_gsas *, uint64_t address, size_t size, void **memory);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
