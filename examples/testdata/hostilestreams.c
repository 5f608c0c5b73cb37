/* hostilestreams SOCKET ADDRESS: a process writes spans and credits that cannot be to the other end of its stream,
 * and sends messages that cannot be, as stream.TestHostilePeer does. It has three attachments: the victim, its
 * peer and a third one. ADDRESS is of an echo, whose connection to the victim goes on. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libexanet/stream.h"

static exanet *victim, *peer, *third;
static struct exanet_remote to;	/* the victim */
static exanet_stream *good;

static _Noreturn void failed(const char *what)
{
	printf("%s: %s\n", what, exanet_error());
	exit(1);
}

/* alive sends something to the echo, and receives it. */
static void alive(void)
{
	char b[100] = "still";
	if (exanet_stream_send(good, b, sizeof b, -1) != sizeof b)
		failed("the good stream");
	for (size_t got = 0; got < sizeof b;) {
		const ssize_t n = exanet_stream_recv(good, b + got, sizeof b - got, -1);
		if (n <= 0)
			failed("the good stream");
		got += n;
	}
}

/* store writes two words into the words of the victim's end. */
static void store(const struct end *e, unsigned at, struct words w)
{
	static uint64_t beat;
	struct exanet_transfer t = { .local = &beat, .size = 8, .remote = to, .notify = e->remote.words + at, .first = w.first, .last = w.last };
	t.remote.address = e->remote.words + BEAT_AT;
	t.remote.length = 8;
	const int n = exanet_write(peer, &t);
	if (n < 0 || exanet_wait(peer, n, -1))
		failed("write");
}

static void send_words(exanet *from, const uint64_t *words, int n)
{
	int status;
	while ((status = exanet_send(from, &to, words, n)) == -EBUSY)
		;
	if (status < 0)
		failed("send");
}

static void send_connection(exanet *from, uint8_t op, uint32_t own, uint32_t id, uint8_t flags)
{
	struct exanet_info i;
	uint64_t words[EXANET_WORDS];
	exanet_get_info(peer, &i);
	const struct connection_message m = { .op = op, .from = own, .to = id, .generation = i.generation, .flags = flags };
	encode_connection(&m, words);
	send_words(from, words, EXANET_WORDS);
}

static void send_short(exanet *from, uint32_t id, unsigned length, uint32_t number, int n)
{
	const uint64_t words[3] = { (uint64_t)KIND_STREAM << 18 | (uint64_t)length << 24 | (uint64_t)number << 32, id };
	send_words(from, words, n);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; unsigned at; struct slot span; } spans[] = {
		{ "a span of another slot", 0, { 0, 5, 2, 0 } },
		{ "a span ahead", 0, { 0, 5, 65, 0 } },
		{ "a span elsewhere", 0, { 7, 5, 1, 0 } },
		{ "a span without bytes", 0, { 0, 0, 1, 0 } },
		{ "a span beyond the ring", 0, { 0, UINT32_MAX, 1, 0 } },
		{ "a span by TCP", 0, { 0, 5, 1, 2 } },
	};
	static const struct { const char *name; unsigned at; struct words w; } words[] = {
		{ "all bits", 0, { UINT64_MAX, UINT64_MAX } },
		{ "credit for more bytes", CREDIT_AT, { 1, 0 } },
		{ "credit for more spans", CREDIT_AT, { 0, 1 } },
		{ "credit of all bits", CREDIT_AT, { UINT64_MAX, UINT64_MAX } },
	};
	static const char *const messages[] = { "a short span of 0 bytes", "a short span beyond", "an unknown operation", "a shutdown that is a reset" };
	enum { SPANS_WRONG = 6, WORDS_WRONG = 4, ALL = 14 };
	struct exanet_options o = { .socket = argv[1], .flags = EXANET_ACCEPT_GROUP, .node = 1 };
	exanet_listener *l;
	char text[64], b[10];
	if (argc < 3)
		return 2;
	if (exanet_attach(&victim, &o))
		failed("attach");
	o.node = 0;
	if (exanet_attach(&peer, &o) || exanet_attach(&third, &o))
		failed("attach");
	exanet_export(victim, &o, 1, &to);
	if (exanet_listen(victim, 80, &l) || exanet_listener_address(l, text, sizeof text) || exanet_connect(victim, argv[2], &good, -1) ||
	    exanet_stream_send(good, "e", 1, -1) != 1)
		failed("connect");
	for (int i = 0; i < ALL; i++) {
		exanet_stream *x, *y;
		if (exanet_connect(peer, text, &x, -1) || exanet_accept(l, &y, -1))
			failed("connect");
		const struct end *e = &x->end;
		const char *name;
		if (i < SPANS_WRONG) {
			name = spans[i].name;
			store(e, spans[i].at, encode_slot(spans[i].span));
		} else if (i < SPANS_WRONG + WORDS_WRONG) {
			name = words[i - SPANS_WRONG].name;
			store(e, words[i - SPANS_WRONG].at, words[i - SPANS_WRONG].w);
		} else {
			const int k = i - SPANS_WRONG - WORDS_WRONG;
			name = messages[k];
			if (k == 0)
				send_short(peer, e->peer_id, 0, 0, 2);
			else if (k == 1)
				send_short(peer, e->peer_id, 1, 64, 3);
			else
				send_connection(peer, k == 2 ? 9 : OP_SHUTDOWN, e->id, e->peer_id, k == 2 ? 0 : FLAG_RESET);
		}
		const ssize_t got = exanet_stream_recv(y, b, sizeof b, -1), sent = exanet_stream_send(y, "x", 1, -1);
		if (got != -ECONNRESET || sent != -ECONNRESET)
			printf("%s: receive %zd, send %zd\n", name, got, sent);
		exanet_stream_close(x);
		exanet_stream_close(y);
		alive();
	}

	/* Of another process: nothing happens to the connection. */
	exanet_stream *x, *y;
	if (exanet_connect(peer, text, &x, -1) || exanet_accept(l, &y, -1))
		failed("connect");
	send_short(third, x->end.peer_id, 1, 0, 3);
	send_short(third, x->end.peer_id, 0, 0, 2);
	send_connection(third, OP_SHUTDOWN, x->end.id, x->end.peer_id, FLAG_ANSWER | FLAG_RESET);
	send_connection(third, OP_REJECT, x->end.id, x->end.peer_id, REASON_PORT);
	send_connection(third, OP_SHUTDOWN, 0, x->end.peer_id, FLAG_ANSWER);
	send_connection(third, 77, 0, x->end.peer_id, 0);
	alive();
	if (exanet_stream_send(x, "bytes", 5, -1) != 5 || exanet_stream_recv(y, b, 5, -1) != 5 || memcmp(b, "bytes", 5))
		printf("a third process has harmed a stream: %s\n", exanet_error());
	exanet_stream_close(x);
	exanet_stream_close(y);
	exanet_stream_close(good);
	exanet_listener_close(l);
	return exanet_close(peer) || exanet_close(third) || exanet_close(victim);
}
