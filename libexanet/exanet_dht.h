/* libexanet: a hash table that is spread over the nodes, in the global address space (exanet_gsas.h). A get is one read
 * of the node that the key belongs to, and no process there serves it. Tables are those of Go's package dht: programs in
 * C and in Go use the same ones. See exanet_dht(3) and docs/dht.md.
 *
 * A handle belongs to a thread of the address space, and any thread of the tree may open the table. Functions may be called
 * by any thread of the program, but exanet_dht_close only when no other call with that handle is in progress and none
 * follows. Close tables before their thread. In a forked child all functions return -EPERM.
 *
 * A function returns 0 or a number that is not negative, or a negative errno; exanet_error() then says what happened
 * and what to do. Errors are those of exanet_gsas.h, which never end the program here, and: -EBADMSG: words of the
 * table cannot be its own, a member of the tree has written over them. -EXFULL: the key has no place. -EBUSY: others have
 * changed or locked the key's place for too long. -EMEDIUMTYPE: the key holds a value of the other kind. After
 * -EHOSTUNREACH, -ENOTCONN and -ETIMEDOUT a change may have been done. */
#ifndef EXANET_DHT_H
#define EXANET_DHT_H

#include "exanet_gsas.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct exanet_dht exanet_dht;

/* The longest name of a table, and the longest key and value of bytes. */
enum { EXANET_DHT_NAME = 24, EXANET_DHT_KEY = 250, EXANET_DHT_VALUE = 1024 };

struct exanet_dht_options {
	const uint32_t *nodes;	/* that the table is spread over, in their order */
	uint32_t nnodes;	/* 1 to 504 */
	int dense;		/* 129 bytes a key instead of 492; a get takes two reads instead of one for most */
	uint64_t keys;		/* that the table is made for; more fit, and cost more memory each */
};

/* Makes a table and enters it into the directory of the thread's tree, as long as the tree lives. -EEXIST: the tree has a
 * table of this name. -ENAMETOOLONG: a name has 1 to 24 bytes. -ENOSPC: the quota is used, or the tree has 128 tables. */
int exanet_dht_create(exanet_gsas *, const char *name, const struct exanet_dht_options *, exanet_dht **);
/* Finds a table. -ENOENT: the tree has none of this name. */
int exanet_dht_open(exanet_gsas *, const char *name, exanet_dht **);
/* Adds to the table's number of keys the changes that the handle has kept back. The table stays; the handle is invalid in
 * any case. */
int exanet_dht_close(exanet_dht *);
/* The number of keys; each other handle may have kept back up to 256 changes. */
int exanet_dht_count(exanet_dht *, uint64_t *keys);

/* Keys of 64 bits, values of 16 bytes. exanet_dht_get returns 1 and stores the value and its version, 1 and up, unless a
 * pointer is NULL; or 0: the table has not the key. */
int exanet_dht_get(exanet_dht *, uint64_t key, void *value, uint32_t *version);
int exanet_dht_put(exanet_dht *, uint64_t key, const void *value);
/* Puts a value if the key's version is still the one that exanet_dht_get has returned, 0: if the table has not the key.
 * Returns 1 if it has put it, else 0. */
int exanet_dht_compare_and_put(exanet_dht *, uint64_t key, const void *value, uint32_t version);
/* Returns 1 if the table had the key, else 0. */
int exanet_dht_delete(exanet_dht *, uint64_t key);

/* Keys of up to 250 bytes, values of up to 1024: -EMSGSIZE. exanet_dht_get_bytes returns 1, and in size the value's length,
 * for which there was room on entry: -ENOBUFS, and its length: there was not. Or it returns 0: the table has not the key. */
int exanet_dht_get_bytes(exanet_dht *, const void *key, size_t, void *value, size_t *size);
int exanet_dht_put_bytes(exanet_dht *, const void *key, size_t, const void *value, size_t size);
int exanet_dht_delete_bytes(exanet_dht *, const void *key, size_t);

/* Number of parts of a table: one for each of the nodes that it was made with. */
uint32_t exanet_dht_parts(const exanet_dht *);

struct exanet_dht_entry {
	uint64_t key;
	unsigned char value[16];
	uint32_t version;
	int record;	/* the key is the hash of a key of bytes; the value says where it is */
};
/* Calls each for each key of a part, until it returns another number than 0, which is then the result. A change that is
 * made at the same time is seen or not. It reads each page of the part, which brings it into memory. -EINVAL: no such
 * part. each must not call pthread_exit. */
int exanet_dht_range(exanet_dht *, uint32_t part, int (*each)(void *, const struct exanet_dht_entry *), void *);

struct exanet_dht_stats {
	uint64_t keys, deleted;	/* deleted: elements of keys that were deleted */
	uint64_t elements;	/* of the first level */
	uint64_t containers, depth;	/* depth: containers below the deepest element */
};
/* Reads a part, and describes it. */
int exanet_dht_stats(exanet_dht *, uint32_t part, struct exanet_dht_stats *);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
