/* Words of streams (docs/streams.md). */
#define _GNU_SOURCE
#include <string.h>

#include "stream.h"

#define CREDIT_RESET (UINT64_C(1) << 63)

struct words encode_slot(struct slot s)
{
	return (struct words){ s.offset, s.length | (uint64_t)(s.number & SPAN_NUMBER) << 32 | (uint64_t)s.flags << 56 };
}

struct slot decode_slot(struct words w)
{
	return (struct slot){ .offset = w.first, .length = w.last, .number = w.last >> 32 & SPAN_NUMBER, .flags = w.last >> 56 };
}

struct words encode_credit(struct credit c) { return (struct words){ c.bytes, c.spans | (c.reset ? CREDIT_RESET : 0) }; }

struct credit decode_credit(struct words w) { return (struct credit){ w.first, w.last & ~CREDIT_RESET, w.last & CREDIT_RESET }; }

bool same_credit(struct credit a, struct credit b) { return a.bytes == b.bytes && a.spans == b.spans && a.reset == b.reset; }

enum { SHORT_HEAD = 2 };	/* words */

int encode_short(const struct short_span *s, uint64_t *words)
{
	const int n = (s->length + 7) / 8;
	words[0] = (uint64_t)KIND_STREAM << 18 | (uint64_t)s->length << 24 | (uint64_t)s->number << 32;
	words[1] = s->to;
	memcpy(words + SHORT_HEAD, s->data, 8 * n);	/* little-endian, as all that libexanet runs on */
	return SHORT_HEAD + n;
}

bool decode_short(const uint64_t *words, int n, struct short_span *s)
{
	*s = (struct short_span){ 0 };
	if (n < SHORT_HEAD)
		return false;
	s->to = words[1];
	s->number = words[0] >> 32;
	s->length = words[0] >> 24 & 0xff;
	if (!s->length || s->length > SHORT || n != SHORT_HEAD + (s->length + 7) / 8 || words[1] >> 32)
		return false;
	memcpy(s->data, words + SHORT_HEAD, 8 * (n - SHORT_HEAD));
	return true;
}

void encode_connection(const struct connection_message *m, uint64_t *words)
{
	words[0] = (uint64_t)KIND_CONNECTION << 18 | (uint64_t)m->op << 24 | (uint64_t)m->from << 32;
	words[1] = m->to | (uint64_t)m->generation << 32;
	words[2] = m->ring;
	words[3] = m->size | (uint64_t)m->flags << 32;
	words[4] = m->words;
	memcpy(words + 5, m->caller, sizeof m->caller);
}

/* spans reports whether there may be size bytes of memory at an address. */
static bool spans(uint64_t address, uint64_t size) { return address && address + size > address; }

bool decode_connection(const uint64_t *words, int n, struct connection_message *m)
{
	*m = (struct connection_message){ 0 };
	if (n != EXANET_WORDS)
		return false;
	*m = (struct connection_message){
		.op = words[0] >> 24, .from = words[0] >> 32, .to = words[1], .generation = words[1] >> 32,
		.ring = words[2], .size = words[3], .flags = words[3] >> 32, .words = words[4],
	};
	memcpy(m->caller, words + 5, sizeof m->caller);
	if (words[3] >> 40 || !m->generation)
		return false;
	if (m->op == OP_CONNECT || m->op == OP_ACCEPT)
		return m->from && !m->flags && m->words % 64 == 0 && spans(m->words, WORDS_SIZE) && spans(m->ring, m->size) &&
		       m->size >= RING_LEAST && m->size <= RING_MOST && !(m->size & (m->size - 1));
	return m->op == OP_REJECT || m->op == OP_SHUTDOWN;
}
