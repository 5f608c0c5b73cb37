/* Hash tables in the global address space (docs/dht.md): declarations shared by their parts. */
#ifndef EXANET_DHT_INTERNAL_H
#define EXANET_DHT_INTERNAL_H

#include "exanet_dht.h"
#include "gsas.h"

/* Values are defined by docs/dht.md, those of the second line by this project. LOCK_*, RETIREMENT: ns. */
enum { ELEMENT = 32, PAGE = 4096, LAYOUT = 2, LEVELS = 8, BUCKET = 8, LOG_LEAST = 7, LOG_MOST = 40, TABLES = PAGE / ELEMENT,
       HEADER_ELEMENTS = 2, RECORD_HEADER = 8, RECORD_MOST = RECORD_HEADER + EXANET_DHT_KEY + EXANET_DHT_VALUE };
enum { MAX_NODES = 4 * (PAGE / ELEMENT - HEADER_ELEMENTS), COUNTED = 256, ATTEMPTS = 10000, SLOW_LIMIT = 64, CONTAINERS = 4, RECORD_PAGES = 8,
       LOCK_ASK = 1000000, LOCK_AGAIN = 100000000, RETIREMENT = 10000000 };
#define LOCK_LIMIT INT64_C(10000000000)	/* a link may be down for SILENCE (gsas.c) */
#define MAGIC UINT64_C(0x4854444e41584521)
enum { INDIRECT = 1, LOCK = 2, DELETED = 4, RECORD = 8 };

/* Results of a change that are no errors: others were faster; it is made; it writes nothing; the record was replaced while
 * it was read. */
enum { LATE, MADE, UNWANTED, SLOW };

/* Memory that a handle has for containers (size 0) and records, at a node. */
enum { SIZES = RECORD_MOST / ELEMENT + 2 };
struct spare {
	struct spare *next;
	uint64_t at;
	int64_t due;	/* ns: slow readers may read it until then */
};
struct stock {
	struct stock *next;
	uint32_t node;
	struct { uint64_t at, end; } room[2];	/* of containers, of records */
	struct { struct spare *first, **last; } spares[SIZES];
};

enum { RECORD_ROOM = ELEMENT * SIZES };	/* for a record, in whole elements */

struct bytes { const void *at; size_t n; };

struct exanet_dht {
	exanet_gsas *g;
	char name[EXANET_DHT_NAME + 1];
	uint64_t header, each, seed, parts[MAX_NODES];	/* each: elements of a part */
	unsigned log, nodes;
	int64_t count;		/* changes of the number of keys that are kept back: atomic */
	int64_t kept;		/* how many are, at most: atomic; more if the header could not be written */
	pthread_mutex_t lock;	/* guards stocks */
	struct stock *stocks;
};

/* dht_finalize is the finalizer of SplitMix64; dht_key the 64-bit key of a key of bytes. dht_slot returns the index in a
 * container of level of the i-th element that a key may be in. dht_crc is CRC-32C. dht_log returns the logarithm of the
 * number of elements of the first level. dht_next returns word 0 of the update that follows one: flags and the next version. */
uint64_t dht_finalize(uint64_t x);
uint64_t dht_key(uint64_t seed, const void *key, size_t n);
int dht_slot(uint64_t key, int level, int i);
uint32_t dht_crc(const unsigned char *, size_t n);
unsigned dht_log(uint64_t keys, bool dense);
uint64_t dht_next(uint64_t word, uint64_t flags);

/* dht_corrupt_if returns the error of an access to the address at that the element at from has. */
int dht_corrupt(uint64_t from, uint64_t at);
int dht_corrupt_if(uint64_t from, uint64_t at, int error);

/* dht_take finds a container (size 0), all zero, or room for a record, at a node. dht_put_back takes it back, for use after
 * a time. The sizes of records are those of dht_record_size. */
int dht_take(exanet_dht *, uint32_t node, int size, uint64_t *at);
void dht_put_back(exanet_dht *, uint64_t at, int size, int64_t due);
int dht_record_size(uint64_t bytes);

int dht_check_bytes(struct bytes key, struct bytes value);
int dht_other_kind(void);
int dht_damaged(void);
/* dht_record_right reports whether an element can point to a record. */
bool dht_record_right(const uint64_t *e);
/* dht_read_record reads the record of an element into b, of RECORD_ROOM bytes: 0, SLOW or an error. Its key must be the one
 * given; value is in b. dht_write_record writes a record at a node, and what of an element points to it. */
int dht_read_record(exanet_dht *, const uint64_t *e, struct bytes key, unsigned char *b, struct bytes *value);
int dht_write_record(exanet_dht *, uint32_t node, struct bytes key, struct bytes value, uint64_t *e);

#endif
