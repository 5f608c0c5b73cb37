/* Memory of hash tables, and records of bytes (docs/dht.md). */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dht.h"

int dht_corrupt(uint64_t from, uint64_t at) { return fail(EBADMSG, "the element at %#" PRIx64 " points to %#" PRIx64 ": the table is corrupt", from, at); }

int dht_corrupt_if(uint64_t from, uint64_t at, int error) { return error == -EFAULT || error == -EACCES ? dht_corrupt(from, at) : error; }

uint32_t dht_crc(const unsigned char *b, size_t n)
{
	static const uint32_t half[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
		0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};
	uint32_t c = ~0u;
	for (size_t i = 0; i < n; i++) {
		c ^= b[i];
		c = c >> 4 ^ half[c & 15];
		c = c >> 4 ^ half[c & 15];
	}
	return ~c;
}

/* stock_of returns the stock of a node, under the lock; NULL: no memory. */
static struct stock *stock_of(exanet_dht *t, uint32_t node)
{
	struct stock *s = t->stocks;
	while (s && s->node != node)
		s = s->next;
	if (!s && (s = calloc(1, sizeof *s))) {
		s->node = node;
		s->next = t->stocks;
		t->stocks = s;
		for (int i = 0; i < SIZES; i++)
			s->spares[i].last = &s->spares[i].first;
	}
	return s;
}

int dht_record_size(uint64_t bytes) { return (bytes + ELEMENT - 1) / ELEMENT; }

/* Without memory for that it is lost until the
 * tree ends. */
void dht_put_back(exanet_dht *t, uint64_t at, int size, int64_t due)
{
	struct spare *x = malloc(sizeof *x);
	pthread_mutex_lock(&t->lock);
	struct stock *s = x ? stock_of(t, (at >> 48) - 1) : NULL;
	if (s) {
		*x = (struct spare){ due ? NULL : s->spares[size].first, at, due };
		if (due || !s->spares[size].first) {
			*s->spares[size].last = x;
			s->spares[size].last = &x->next;
		} else {
			s->spares[size].first = x;
		}
	} else {
		free(x);
	}
	pthread_mutex_unlock(&t->lock);
}

/* taken returns a container (size 0), all zero, or room for a record, of what the handle has at a node; 0: nothing. */
static uint64_t taken(exanet_dht *t, struct stock *s, int size)
{
	const uint64_t bytes = size ? ELEMENT * size : PAGE;
	uint64_t at = 0;
	pthread_mutex_lock(&t->lock);
	struct spare *x = s->spares[size].first;
	if (x && x->due <= now()) {
		at = x->at;
		if (!(s->spares[size].first = x->next))
			s->spares[size].last = &s->spares[size].first;
		free(x);
	} else if (s->room[!!size].end - s->room[!!size].at >= bytes) {
		at = s->room[!!size].at;
		s->room[!!size].at += bytes;
	}
	pthread_mutex_unlock(&t->lock);
	return at;
}

int dht_take(exanet_dht *t, uint32_t node, int size, uint64_t *at)
{
	const uint64_t pages = size ? RECORD_PAGES : CONTAINERS;
	uint64_t more;
	int error;
	pthread_mutex_lock(&t->lock);
	struct stock *s = stock_of(t, node);
	pthread_mutex_unlock(&t->lock);
	if (!s)
		return fail(ENOMEM, "no memory");
	while (!(*at = taken(t, s, size))) {
		if ((error = gsas_call(t->g, OP_ALLOC, exanet_gsas_at(node, 0), (const uint64_t[]){ pages, 0 }, &more)))
			return error;
		pthread_mutex_lock(&t->lock);
		const bool late = s->room[!!size].end - s->room[!!size].at >= (size ? ELEMENT * (uint64_t)size : PAGE);	/* another caller was faster */
		if (!late) {
			s->room[!!size].at = more;
			s->room[!!size].end = more + pages * PAGE;
		}
		pthread_mutex_unlock(&t->lock);
		if (late && (error = gsas_call(t->g, OP_FREE, more, (const uint64_t[]){ 0 }, NULL)))
			return error;
	}
	return 0;
}

/* spread loads or stores n elements, four at once. */
static int spread(exanet_dht *t, uint64_t at, unsigned char *b, int n, int op)
{
	int numbers[THREAD_CHANNELS], begun = 0, ended = 0, error = 0;
	uint64_t w[4];
	while (ended < begun || (begun < n && !error)) {
		if (begun < n && begun - ended < THREAD_CHANNELS && !error) {
			memcpy(w, b + ELEMENT * begun, sizeof w);	/* little-endian, as all that libexanet runs on */
			const int number = gsas_start(t->g, op, at + ELEMENT * begun, w, begun == ended);
			if (number >= 0)
				numbers[begun++ % THREAD_CHANNELS] = number;
			else if (number != -EBUSY || begun == ended)
				error = number;
			if (number >= 0 || error)
				continue;
		}
		const int failed = gsas_finish(t->g, numbers[ended % THREAD_CHANNELS], w);
		if (!failed && op == EXANET_LOAD256)
			memcpy(b + ELEMENT * ended, w, sizeof w);
		error = error ? error : failed;
		ended++;
	}
	return error;
}

int dht_check_bytes(struct bytes key, struct bytes value)
{
	if (key.n > EXANET_DHT_KEY)
		return fail(EMSGSIZE, "a key of %zu bytes: it has at most %d", key.n, EXANET_DHT_KEY);
	if (value.n > EXANET_DHT_VALUE)
		return fail(EMSGSIZE, "a value of %zu bytes: it has at most %d", value.n, EXANET_DHT_VALUE);
	return 0;
}

bool dht_record_right(const uint64_t *e) { return (uint32_t)e[3] >= RECORD_HEADER && (uint32_t)e[3] <= RECORD_MOST && !(e[2] % ELEMENT); }

int dht_other_kind(void) { return fail(EMEDIUMTYPE, "the key holds another kind of value, or another key of bytes with the same hash"); }

int dht_damaged(void) { return fail(EBADMSG, "its record has another checksum than its element: delete the key"); }

int dht_read_record(exanet_dht *t, const uint64_t *e, struct bytes key, unsigned char *b, struct bytes *value)
{
	const uint32_t n = e[3], sum = e[3] >> 32;
	if (!(e[0] & RECORD))
		return dht_other_kind();
	if (!dht_record_right(e))
		return fail(EBADMSG, "a record of %" PRIu32 " bytes at %#" PRIx64 ": the table is corrupt", n, e[2]);
	const int error = spread(t, e[2], b, dht_record_size(n), EXANET_LOAD256);
	if (error)
		return dht_corrupt_if(0, e[2], error);
	const size_t own = get(b, 2), length = get(b + 2, 2);
	if (RECORD_HEADER + own + length != n || dht_crc(b, n) != sum)
		return SLOW;
	*value = (struct bytes){ b + RECORD_HEADER + own, length };
	return own == key.n && !memcmp(b + RECORD_HEADER, key.at, own) ? 0 : dht_other_kind();
}

int dht_write_record(exanet_dht *t, uint32_t node, struct bytes key, struct bytes value, uint64_t *e)
{
	const size_t n = RECORD_HEADER + key.n + value.n;
	unsigned char b[RECORD_ROOM] = { 0 };
	int error = dht_take(t, node, dht_record_size(n), &e[2]);
	if (error)
		return error;
	put(b, 2, key.n);
	put(b + 2, 2, value.n);
	memcpy(b + RECORD_HEADER, key.at, key.n);
	memcpy(b + RECORD_HEADER + key.n, value.at, value.n);
	e[0] = RECORD;
	e[3] = n | (uint64_t)dht_crc(b, n) << 32;
	return spread(t, e[2], b, dht_record_size(n), EXANET_STORE256);
}
