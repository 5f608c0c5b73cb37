/* A hash table in the global address space (package dht). docs/dht.md has its words. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "dht.h"

uint64_t dht_finalize(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t dht_key(uint64_t seed, const void *key, size_t n)
{
	const unsigned char *p = key;
	uint64_t h = dht_finalize(n ^ UINT64_C(0x9e3779b97f4a7c15) ^ seed);
	for (size_t at = 0; at < n; at += 8)
		h = dht_finalize(dht_finalize(h ^ get(p + at, n - at < 8 ? n - at : 8)) ^ seed);
	return h;
}

int dht_slot(uint64_t key, int level, int i)
{
	const uint64_t h2 = dht_finalize(key ^ UINT64_C(0x9e3779b97f4a7c15));
	const int h = h2 >> (64 - 7 * (level + 1)) & 127;
	return (h & ~(BUCKET - 1)) | ((h + i) & (BUCKET - 1));
}

unsigned dht_log(uint64_t keys, bool dense)
{
	uint64_t elements = keys ? keys : 1;
	unsigned log = 0;
	if (dense)
		elements = elements / 32 + (elements % 32 != 0);
	else if (elements <= UINT64_C(1) << (LOG_MOST - 3))
		elements *= 8;
	while (log < 64 && (elements - 1) >> log)
		log++;
	return log < LOG_LEAST ? LOG_LEAST : log > LOG_MOST ? LOG_MOST : log;
}

/* An element is four words: flags, holder of the lock and version; key or address of a container; value. */

static bool holds(const uint64_t *e, uint64_t key) { return e[0] && !(e[0] & INDIRECT) && e[1] == key; }

uint64_t dht_next(uint64_t word, uint64_t flags)
{
	const uint32_t version = (word >> 32) + 1;
	return flags | (uint64_t)(version ? version : 1) << 32;
}

static int load_words(exanet_dht *t, uint64_t at, uint64_t *e) { return gsas_call(t->g, EXANET_LOAD256, at, NULL, e); }
static int store_words(exanet_dht *t, uint64_t at, const uint64_t *e) { return gsas_call(t->g, EXANET_STORE256, at, e, NULL); }

/* write_if stores an element if word 0 of the one there is expected: 1 if it has, 0 if not. */
static int write_if(exanet_dht *t, uint64_t at, uint64_t expected, const uint64_t *e)
{
	uint64_t old[4];
	const int error = gsas_call(t->g, EXANET_COMPARE_STORE256, at, (const uint64_t[]){ expected, e[0], e[1], e[2], e[3] }, old);
	return error ? error : old[0] == expected;
}

/* load reads an element that is not locked. The lock of a thread that has ended is taken away: the element is whole,
 * since each write of it is one operation. */
static int load(exanet_dht *t, uint64_t at, uint64_t *e)
{
	uint64_t was = 0;
	int64_t began = 0, since = 0, ask = LOCK_ASK, pause = LOCK_ASK / 10;
	int error;
	while (!(error = load_words(t, at, e)) && e[0] & LOCK) {
		if (e[0] != was) {
			was = e[0];
			since = now();
			ask = LOCK_ASK;
		}
		began = began ? began : since;
		rest(&pause, LOCK_ASK / 10);
		const int64_t waited = now() - since;
		const uint32_t holder = e[0] >> 8 & 0xffffff;
		if (now() - began > LOCK_LIMIT)	/* also if others take it one after the other */
			return fail(EBUSY, "thread %#" PRIx32 " holds the lock of the element at %#" PRIx64, holder, at);
		if (waited <= ask)
			continue;
		ask += ask < LOCK_AGAIN ? ask : LOCK_AGAIN;
		const int alive = exanet_gsas_alive(t->g, holder);
		if (!alive) {
			const uint64_t freed[4] = { dht_next(e[0], e[0] & (INDIRECT | DELETED | RECORD)), e[1], e[2], e[3] };
			if ((error = write_if(t, at, e[0], freed)) < 0)
				return error;
		} else if (alive < 0) {
			return alive;
		}
	}
	return error;
}

/* Where the search for a key has ended: at its element, at an empty one, or at one of another key. */
struct place {
	uint64_t at, found[4];
	int level;	/* of the container, -1: in the first level */
};

static uint64_t first_place(const exanet_dht *t, uint64_t key)
{
	const uint64_t index = dht_finalize(key) >> (64 - t->log);
	return t->parts[index / t->each] + ELEMENT * (index % t->each);
}

/* find_in searches the container that p's element points to. */
static int find_in(exanet_dht *t, uint64_t key, struct place *p)
{
	const uint64_t from = p->at, container = p->found[1];
	struct place last = { 0 };
	int error;
	if (container % PAGE || container >> 48 != from >> 48)
		return dht_corrupt(from, container);
	p->level++;
	for (int i = 0; i < BUCKET; i++) {
		const int slot = dht_slot(key, p->level, i);
		p->at = container + ELEMENT * slot;
		if ((error = load(t, p->at, p->found)))
			return dht_corrupt_if(from, container, error);
		if (!p->found[0] || holds(p->found, key))
			return 0;
		if (slot % BUCKET == BUCKET - 1)
			last = *p;
		else if (p->found[0] & INDIRECT)
			return fail(EBADMSG, "the element at %#" PRIx64 " is indirect and is not the last one of its bucket: the table is corrupt", p->at);
	}
	*p = last;
	return 0;
}

/* find searches for a key, in at most eight containers of eight elements. */
static int find(exanet_dht *t, uint64_t key, struct place *p)
{
	p->at = first_place(t, key);
	p->level = -1;
	int error = load(t, p->at, p->found);
	while (!error && p->found[0] & INDIRECT)
		error = p->level + 1 == LEVELS ? fail(EBADMSG, "the element at %#" PRIx64 " is indirect, and is of the last level: the table is corrupt", p->at) :
			find_in(t, key, p);
	return error;
}

/* Changes. */

/* What a call asks for. decide is told the element of the key's place and whether it holds the key, and stores the flags
 * and the value of the element that replaces it: 0, UNWANTED, SLOW or a negative errno. */
struct change {
	int (*decide)(exanet_dht *, const struct change *, const uint64_t *now, bool has, uint64_t *e);
	uint64_t key, value[2];
	uint32_t version;
	struct bytes name, bytes;	/* key and value of a record; name.at NULL: of a key of 64 bits */
};

static int put_value(exanet_dht *t, const struct change *c, const uint64_t *now, bool has, uint64_t *e)
{
	(void)t;
	memcpy(e + 2, c->value, sizeof c->value);
	return has && now[0] & RECORD ? dht_other_kind() : 0;
}

static int compare_and_put(exanet_dht *t, const struct change *c, const uint64_t *now, bool has, uint64_t *e)
{
	return (has ? now[0] >> 32 : 0) == c->version ? put_value(t, c, now, has, e) : UNWANTED;
}

/* check_record checks that a key of bytes is the one in an element's record. */
static int check_record(exanet_dht *t, const struct change *c, const uint64_t *now)
{
	unsigned char b[RECORD_ROOM];
	struct bytes value;
	return dht_read_record(t, now, c->name, b, &value);
}

static int put_record(exanet_dht *t, const struct change *c, const uint64_t *now, bool has, uint64_t *e)
{
	const int error = has ? check_record(t, c, now) : 0;
	return error ? error : dht_write_record(t, (first_place(t, c->key) >> 48) - 1, c->name, c->bytes, e);
}

static int delete_key(exanet_dht *t, const struct change *c, const uint64_t *now, bool has, uint64_t *e)
{
	e[0] = DELETED;
	return !has ? UNWANTED : c->name.at ? check_record(t, c, now) : now[0] & RECORD ? dht_other_kind() : 0;
}

/* add_level makes the place of another key indirect: a container takes both, and they appear in it at once. 1: it has.
 * sent: the place may have been written. */
static int add_level(exanet_dht *t, const struct place *p, uint64_t *e, bool *sent)
{
	static const uint64_t zero[4];
	const int level = p->level + 1;
	uint64_t container;
	int status;
	if (level == LEVELS)
		return fail(EXFULL, "no place for the key: %d containers lie below its element", level);
	if ((status = dht_take(t, (p->at >> 48) - 1, 0, &container)))
		return status;
	const int one = dht_slot(p->found[1], level, 0), two = dht_slot(e[1], level, dht_slot(e[1], level, 0) == one);
	e[0] = dht_next(0, e[0]);
	if ((status = store_words(t, container + ELEMENT * one, p->found)) || (status = store_words(t, container + ELEMENT * two, e)))
		return status;
	const uint64_t indirect[4] = { dht_next(p->found[0], INDIRECT), container };
	*sent = true;
	if ((status = write_if(t, p->at, p->found[0], indirect)))
		return status;	/* after an error the container may be in use */
	if (!store_words(t, container + ELEMENT * one, zero) && !store_words(t, container + ELEMENT * two, zero))	/* else it is not used again */
		dht_put_back(t, container, 0, 0);
	return 0;
}

/* write_place writes an element into its place: 1, or 0 if the place was changed meanwhile. */
static int write_place(exanet_dht *t, const struct place *p, uint64_t *e, bool *sent)
{
	*sent = false;
	if (p->found[0] && !holds(p->found, e[1]))
		return add_level(t, p, e, sent);
	*sent = true;
	e[0] = dht_next(p->found[0], e[0]);
	return write_if(t, p->at, p->found[0], e);
}

/* may_be_done reports whether an operation that failed may have been done. */
static bool may_be_done(int error) { return error == -EHOSTUNREACH || error == -ENOTCONN || error == -ETIMEDOUT; }

static int count_keys(exanet_dht *t, uint64_t *keys)
{
	const int64_t n = __atomic_exchange_n(&t->count, 0, __ATOMIC_SEQ_CST);
	const uint64_t more = n;
	uint64_t old = 0;
	const int error = gsas_call(t->g, EXANET_FETCH_ADD, t->header + ELEMENT, &more, &old);
	if (error && !may_be_done(error))
		__atomic_fetch_add(&t->count, n, __ATOMIC_SEQ_CST);
	__atomic_store_n(&t->kept, error ? t->kept + COUNTED : COUNTED, __ATOMIC_SEQ_CST);
	*keys = old + more;
	return error;
}

/* attempt tries a change once. slow is the element whose record had another checksum in the attempt before: if it is still
 * there, its record is damaged, and can only be deleted. */
static int attempt(exanet_dht *t, const struct change *c, uint64_t *slow)
{
	struct place p;
	uint64_t e[4] = { 0 }, keys;
	bool sent;
	int status = find(t, c->key, &p);
	if (status)
		return status;
	const bool own = holds(p.found, c->key), has = own && !(p.found[0] & DELETED);
	status = c->decide(t, c, p.found, has, e);
	if (status == SLOW && !memcmp(slow, p.found, sizeof p.found))
		status = c->decide == delete_key ? 0 : dht_damaged();
	if (status == SLOW)
		memcpy(slow, p.found, sizeof p.found);
	if (status)
		return status;
	e[1] = c->key;
	const bool deletes = e[0] & DELETED, record = e[0] & RECORD;
	status = write_place(t, &p, e, &sent);
	if (record && (!status || (status < 0 && !sent)))	/* else it may be in use */
		dht_put_back(t, e[2], dht_record_size((uint32_t)e[3]), 0);
	if (status <= 0)
		return status ? status : LATE;
	if (own && p.found[0] & RECORD && dht_record_right(p.found) && p.found[2] >> 48)	/* else a member of the tree wrote over it */
		dht_put_back(t, p.found[2], dht_record_size((uint32_t)p.found[3]), now() + RETIREMENT);
	if (has == deletes) {
		const int64_t n = __atomic_add_fetch(&t->count, has ? -1 : 1, __ATOMIC_SEQ_CST), kept = __atomic_load_n(&t->kept, __ATOMIC_SEQ_CST);
		if (n >= kept || n <= -kept)
			count_keys(t, &keys);	/* the change is made, also if the header cannot be written */
	}
	return MADE;
}

/* context adds to the text of an error what failed. */
static int context(const exanet_dht *t, const char *verb, uint64_t key, int error)
{
	char why[400];
	snprintf(why, sizeof why, "%s", exanet_error());
	return fail(-error, "%s key %#" PRIx64 " of table \"%s\": %s", verb, key, t->name, why);
}

/* change makes a change, without a lock: 1, or 0 if it was not to be made. */
static int change(exanet_dht *t, const char *verb, const struct change *c)
{
	UNCANCELLED;
	int status = LATE, slow = 0;
	uint64_t element[4] = { 0 };
	for (int i = 0; i < ATTEMPTS && slow < SLOW_LIMIT && (status == LATE || status == SLOW); i++) {
		status = attempt(t, c, element);
		slow += status == SLOW;
	}
	if (status == MADE || status == UNWANTED)
		return status == MADE;
	if (status >= 0)
		status = fail(EBUSY, "others have changed it %d times meanwhile", status == SLOW ? slow : ATTEMPTS);
	return context(t, verb, c->key, status);
}

int exanet_dht_put(exanet_dht *t, uint64_t key, const void *value)
{
	struct change c = { .decide = put_value, .key = key };
	memcpy(c.value, value, sizeof c.value);
	const int status = change(t, "put", &c);
	return status < 0 ? status : 0;
}

int exanet_dht_compare_and_put(exanet_dht *t, uint64_t key, const void *value, uint32_t version)
{
	struct change c = { .decide = compare_and_put, .key = key, .version = version };
	memcpy(c.value, value, sizeof c.value);
	return change(t, "put", &c);
}

int exanet_dht_delete(exanet_dht *t, uint64_t key)
{
	const struct change c = { .decide = delete_key, .key = key };
	return change(t, "delete", &c);
}

int exanet_dht_put_bytes(exanet_dht *t, const void *key, size_t n, const void *value, size_t size)
{
	const struct change c = { .decide = put_record, .key = dht_key(t->seed, key, n <= EXANET_DHT_KEY ? n : 0), .name = { key ? key : "", n }, .bytes = { value ? value : "", size } };
	const int error = dht_check_bytes(c.name, c.bytes), status = error ? error : change(t, "put", &c);
	return status < 0 ? status : 0;
}

int exanet_dht_delete_bytes(exanet_dht *t, const void *key, size_t n)
{
	const struct change c = { .decide = delete_key, .key = dht_key(t->seed, key, n <= EXANET_DHT_KEY ? n : 0), .name = { key ? key : "", n } };
	const int error = dht_check_bytes(c.name, c.bytes);
	return error ? error : change(t, "delete", &c);
}

int exanet_dht_get(exanet_dht *t, uint64_t key, void *value, uint32_t *version)
{
	UNCANCELLED;
	struct place p;
	const int error = find(t, key, &p);
	if (error)
		return context(t, "get", key, error);
	if (!holds(p.found, key) || p.found[0] & DELETED)
		return 0;
	if (p.found[0] & RECORD)
		return context(t, "get", key, dht_other_kind());
	if (value)
		memcpy(value, p.found + 2, 16);
	if (version)
		*version = p.found[0] >> 32;
	return 1;
}

int exanet_dht_get_bytes(exanet_dht *t, const void *key, size_t n, void *value, size_t *size)
{
	UNCANCELLED;
	const struct bytes name = { key ? key : "", n };
	unsigned char b[RECORD_ROOM];
	struct bytes found = { 0 };
	struct place p;
	int status = dht_check_bytes(name, found);
	if (status)
		return status;
	const uint64_t hash = dht_key(t->seed, key, n);
	uint64_t slow[4] = { 0 };
	for (int i = 0; i < SLOW_LIMIT; i++) {
		if ((status = find(t, hash, &p)))
			return context(t, "get", hash, status);
		if (!holds(p.found, hash) || p.found[0] & DELETED)
			return 0;
		if ((status = dht_read_record(t, p.found, name, b, &found)) != SLOW)
			break;
		if (!memcmp(slow, p.found, sizeof slow)) {
			status = dht_damaged();
			break;
		}
		memcpy(slow, p.found, sizeof slow);
	}
	if (status)
		return context(t, "get", hash, status == SLOW ? fail(EBUSY, "its record was replaced each of %d times that it was read", SLOW_LIMIT) : status);
	const size_t room = *size;
	*size = found.n;
	if (found.n > room)
		return context(t, "get", hash, fail(ENOBUFS, "a value of %zu bytes, and room for %zu", found.n, room));
	if (found.n)
		memcpy(value, found.at, found.n);
	return 1;
}

/* A walk over a part of the table. Each container belongs to one element: one that is met twice was not put there by the
 * table, and could keep the walk for ever. */
struct walk {
	int (*each)(void *, const struct exanet_dht_entry *);
	void *arg;
	struct exanet_dht_stats stats;
	unsigned char *visited;	/* a bit for each page that a tree has on a node */
};
enum { TREE_PAGES = 1 << 22 };

/* visit visits an element and those below it: 0, a negative errno, or what each has returned. */
static int visit(exanet_dht *t, struct walk *w, uint64_t at, int depth)
{
	uint64_t e[4];
	int status = load(t, at, e);
	if (status || !e[0])
		return status;
	if (e[0] & DELETED) {
		w->stats.deleted++;
		return 0;
	}
	if (!(e[0] & INDIRECT)) {
		struct exanet_dht_entry found = { .key = e[1], .version = e[0] >> 32, .record = !!(e[0] & RECORD) };
		memcpy(found.value, e + 2, sizeof found.value);
		w->stats.keys++;
		return w->each ? w->each(w->arg, &found) : 0;
	}
	const uint64_t container = e[1], page = container / PAGE % TREE_PAGES;
	if (container % PAGE || container >> 48 != at >> 48 || depth == LEVELS || w->visited[page / 8] >> page % 8 & 1)
		return dht_corrupt(at, container);
	w->visited[page / 8] |= 1 << page % 8;
	w->stats.containers++;
	if (w->stats.depth < (uint64_t)++depth)
		w->stats.depth = depth;
	for (int i = 0; i < PAGE / ELEMENT && !status; i++)
		status = visit(t, w, container + ELEMENT * i, depth);
	return status == -EFAULT || status == -EACCES ? dht_corrupt_if(at, container, status) : status;
}

static int walk_part(exanet_dht *t, uint32_t part, struct walk *w)
{
	UNCANCELLED;
	int status = 0;
	if (inherited(t->g->e))
		return refuse_child(t->g->e);
	if (part >= t->nodes)
		return fail(EINVAL, "table \"%s\" has parts 0 to %u, and no part %" PRIu32, t->name, t->nodes - 1, part);
	if (!(w->visited = calloc(TREE_PAGES / 8, 1)))
		return fail(ENOMEM, "no memory");
	const uint64_t from = part * t->each, all = UINT64_C(1) << t->log;
	w->stats.elements = from >= all ? 0 : all - from < t->each ? all - from : t->each;
	for (uint64_t i = 0; i < w->stats.elements && !status; i++)
		status = visit(t, w, t->parts[part] + ELEMENT * i, 0);
	free(w->visited);
	return status;
}

int exanet_dht_range(exanet_dht *t, uint32_t part, int (*each)(void *, const struct exanet_dht_entry *), void *arg)
{
	struct walk w = { .each = each, .arg = arg };
	return walk_part(t, part, &w);
}

int exanet_dht_stats(exanet_dht *t, uint32_t part, struct exanet_dht_stats *stats)
{
	struct walk w = { 0 };
	const int status = walk_part(t, part, &w);
	*stats = w.stats;
	return status;
}

uint32_t exanet_dht_parts(const exanet_dht *t) { return t->nodes; }

/* Tables. */

static uint64_t part_elements(unsigned log, unsigned nodes) { return ((UINT64_C(1) << log) + nodes - 1) / nodes; }

/* enter enters a table into the directory, at the first entry that is free: so two that enter one name meet there. */
static int enter(exanet_dht *t, const uint64_t *entry)
{
	const uint64_t page = exanet_gsas_directory(t->g);
	uint64_t w[4], at;
	int error = load_words(t, page, w);
	if (error == -EFAULT && !(error = gsas_call(t->g, OP_ALLOC, page & ~((UINT64_C(1) << 48) - 1), (const uint64_t[]){ 1, page }, &at)) && at != page)
		error = gsas_call(t->g, OP_FREE, at, (const uint64_t[]){ 0 }, NULL);	/* another thread was faster */
	for (int i = 0; i < TABLES && !error; i++) {
		if ((error = gsas_call(t->g, EXANET_COMPARE_STORE256, page + ELEMENT * i, (const uint64_t[]){ 0, entry[0], entry[1], entry[2], entry[3] }, w)))
			return error;
		if (!w[0])
			return 0;
		if (!memcmp(w + 1, entry + 1, EXANET_DHT_NAME))
			return fail(EEXIST, "the tree has a table of this name");
	}
	return error ? error : fail(ENOSPC, "the tree has %d tables", TABLES);
}

static int make_table(exanet_dht *t, const struct exanet_dht_options *o, uint64_t *entry)
{
	const uint64_t root = exanet_gsas_directory(t->g), pages = (t->each * ELEMENT + PAGE - 1) / PAGE;
	int error;
	for (t->nodes = 0; t->nodes < o->nnodes; t->nodes++)
		if ((error = exanet_gsas_alloc(t->g, o->nodes[t->nodes], pages, 0, &t->parts[t->nodes])))
			return error;
	if ((error = exanet_gsas_alloc(t->g, exanet_gsas_node(root), 1, 0, &t->header)))
		return error;
	for (unsigned i = 0; i < t->nodes; i += 4)	/* parts beyond the last are zero */
		if ((error = store_words(t, t->header + ELEMENT * (HEADER_ELEMENTS + i / 4), t->parts + i)))
			return error;
	const uint64_t first[4] = { MAGIC, LAYOUT | (uint64_t)t->log << 8 | (uint64_t)t->nodes << 16, o->keys, t->seed };
	if ((error = store_words(t, t->header, first)))
		return error;
	entry[0] = t->header;
	return enter(t, entry);
}

/* read_table reads a table's header. */
static int read_table(exanet_dht *t)
{
	uint64_t w[4];
	int error = load_words(t, t->header, w);
	if (error)
		return dht_corrupt_if(exanet_gsas_directory(t->g), t->header, error);
	t->log = w[1] >> 8 & 0xff;
	t->seed = w[3];
	t->nodes = w[1] >> 16 & 0xffff;
	if (w[0] != MAGIC || (w[1] & 0xff) != LAYOUT || t->log < LOG_LEAST || t->log > LOG_MOST || !t->nodes || t->nodes > MAX_NODES)
		return fail(EBADMSG, "the header at %#" PRIx64 " has words %#" PRIx64 " and %#" PRIx64 ": the table is corrupt", t->header, w[0], w[1]);
	t->each = part_elements(t->log, t->nodes);
	for (unsigned i = 0; i < t->nodes && !error; i += 4)
		error = load_words(t, t->header + ELEMENT * (HEADER_ELEMENTS + i / 4), t->parts + i);
	return error;
}

static int find_table(exanet_dht *t, const uint64_t *entry)
{
	const uint64_t page = exanet_gsas_directory(t->g);
	uint64_t w[4];
	for (int i = 0; i < TABLES; i++) {
		const int error = load_words(t, page + ELEMENT * i, w);
		if (error && error != -EFAULT)
			return error;
		if (error || !w[0])
			break;
		if (!memcmp(w + 1, entry + 1, EXANET_DHT_NAME)) {
			t->header = w[0];
			return read_table(t);
		}
	}
	return fail(ENOENT, "the tree has no table of this name");
}

static void free_table(exanet_dht *t)
{
	for (struct stock *s; (s = t->stocks); free(s)) {
		t->stocks = s->next;
		for (int i = 0; i < SIZES; i++)
			for (struct spare *x; (x = s->spares[i].first); free(x))
				s->spares[i].first = x->next;
	}
	free(t);
}

/* make returns a handle of a table of a name, and its entry in the directory: the name is in words 1 to 3. */
static int make(exanet_gsas *g, const char *name, exanet_dht **out, uint64_t *entry)
{
	const size_t n = strnlen(name, EXANET_DHT_NAME + 1);
	*out = NULL;
	if (inherited(g->e))
		return refuse_child(g->e);
	if (!n || n > EXANET_DHT_NAME)
		return fail(ENAMETOOLONG, "table \"%.30s\": a name has 1 to %d bytes", name, EXANET_DHT_NAME);
	exanet_dht *t = calloc(1, sizeof *t);
	if (!t)
		return fail(ENOMEM, "no memory");
	t->g = g;
	t->kept = COUNTED;
	pthread_mutex_init(&t->lock, NULL);
	memcpy(t->name, name, n);
	memcpy(entry + 1, t->name, EXANET_DHT_NAME);
	*out = t;
	return 0;
}

/* opened returns the result of opening a table, or of making one; after an error it frees the handle, and its pages. */
static int opened(exanet_dht **out, bool made, int error)
{
	exanet_dht *t = *out;
	const char *verb = made ? "create" : "open";
	char why[400];
	if (!error)
		return 0;
	snprintf(why, sizeof why, "%s", exanet_error());
	made = made && !may_be_done(error);	/* else the directory may name the table */
	for (unsigned i = 0; made && i < t->nodes; i++)
		gsas_call(t->g, OP_FREE, t->parts[i], (const uint64_t[]){ 0 }, NULL);
	if (made && t->header)
		gsas_call(t->g, OP_FREE, t->header, (const uint64_t[]){ 0 }, NULL);
	fail(-error, "%s table \"%s\": %s", verb, t->name, why);
	free_table(t);
	*out = NULL;
	return error;
}

int exanet_dht_create(exanet_gsas *g, const char *name, const struct exanet_dht_options *o, exanet_dht **out)
{
	UNCANCELLED;
	uint64_t entry[4] = { 0 };
	const int error = make(g, name, out, entry);
	if (error)
		return error;
	exanet_dht *t = *out;
	if (!o->nnodes || o->nnodes > MAX_NODES)
		return opened(out, true, fail(EINVAL, "%" PRIu32 " nodes: a table has 1 to %d", o->nnodes, MAX_NODES));
	t->log = dht_log(o->keys, o->dense);
	if (getrandom(&t->seed, sizeof t->seed, 0) != sizeof t->seed)
		return opened(out, true, fail(errno, "no random seed: %m"));
	t->each = part_elements(t->log, o->nnodes);
	return opened(out, true, make_table(t, o, entry));
}

int exanet_dht_open(exanet_gsas *g, const char *name, exanet_dht **out)
{
	UNCANCELLED;
	uint64_t entry[4] = { 0 };
	const int error = make(g, name, out, entry);
	return error ? error : opened(out, false, find_table(*out, entry));
}

int exanet_dht_count(exanet_dht *t, uint64_t *keys)
{
	UNCANCELLED;
	return count_keys(t, keys);
}

int exanet_dht_close(exanet_dht *t)
{
	UNCANCELLED;
	uint64_t keys;
	if (inherited(t->g->e))
		return refuse_child(t->g->e);
	const int error = count_keys(t, &keys);
	pthread_mutex_destroy(&t->lock);
	free_table(t);
	return error;
}
