/* streams SOCKET NODE COMMAND [ARGUMENT]...: streams of a process, for the tests. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../libexanet/stream.h"

static exanet *e;

static int failed(const char *what)
{
	printf("%s: %s\n", what, exanet_error());
	return 1;
}

static void expect(const char *what, ssize_t got, ssize_t want)
{
	if (got != want)
		printf("%s: %zd, want %zd\n", what, got, want);
	else
		printf("%s: %s\n", what, got < 0 ? exanet_error() : "ok");
}

/* A stream of bytes and of sizes that both ends can make. */
static uint32_t next(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

static bool send_all(exanet_stream *x, const void *p, size_t n)
{
	const ssize_t sent = exanet_stream_send(x, p, n, -1);
	return sent >= 0 && (size_t)sent == n;
}

/* play serves a connection. Its first byte says how: it echoes, writes, reads, or idles. */
static void *play(void *arg)
{
	exanet_stream *x = arg;
	static const char zeros[10000];
	char *b = malloc(1 << 20), part = 0;
	ssize_t n = exanet_stream_recv(x, &part, 1, -1);
	while (n > 0 && part != 'i') {
		if (part == 'w') {
			n = exanet_stream_send(x, zeros, sizeof zeros, -1);
			continue;
		}
		n = exanet_stream_recv(x, b, 1 << 20, -1);
		if (n > 0 && part == 'e' && !send_all(x, b, n))
			n = -1;
	}
	if (part != 'i') {
		exanet_stream_shutdown(x);
		exanet_stream_close(x);
	}
	free(b);
	return NULL;
}

static void *accept_all(void *arg)
{
	exanet_stream *x;
	pthread_t t;
	while (!exanet_accept(arg, &x, -1))
		if (!pthread_create(&t, NULL, play, x))
			pthread_detach(t);
	return NULL;
}

/* serve serves connections until its standard input ends. */
static int serve(void)
{
	exanet_listener *l;
	char text[64];
	pthread_t t;
	if (exanet_listen(e, 80, &l) || exanet_listener_address(l, text, sizeof text))
		return failed("listen");
	puts(text);
	fflush(stdout);
	pthread_create(&t, NULL, accept_all, l);
	while (read(0, text, sizeof text) > 0)
		;
	_exit(0);	/* threads use the attachment */
}

/* A run of bytes from one end. */
struct run {
	exanet_stream *x;
	size_t most, total;
	uint32_t seed;
	bool wrong;
};

static void *write_run(void *arg)
{
	struct run *r = arg;
	uint32_t bytes = r->seed, sizes = ~r->seed;
	unsigned char *b = malloc(r->most);
	for (size_t left = r->total, n; left && !r->wrong; left -= n) {
		n = 1 + next(&sizes) % r->most;
		n = n < left ? n : left;
		for (size_t i = 0; i < n; i++)
			b[i] = next(&bytes);
		r->wrong = !send_all(r->x, b, n);
	}
	if (r->wrong || exanet_stream_shutdown(r->x))
		failed("send");
	free(b);
	return NULL;
}

static void *read_run(void *arg)
{
	struct run *r = arg;
	uint32_t bytes = r->seed, sizes = r->seed;
	unsigned char *b = malloc(r->most);
	ssize_t n;
	while ((n = exanet_stream_recv(r->x, b, 1 + next(&sizes) % r->most, -1)) > 0) {
		for (ssize_t i = 0; i < n && !r->wrong; i++)
			r->wrong = b[i] != (unsigned char)next(&bytes);
		r->total -= n;
	}
	if (n < 0)
		failed("receive");
	if (r->wrong || r->total)
		printf("wrong bytes: %zu are missing\n", r->total);
	free(b);
	return NULL;
}

/* exchange sends total bytes to an echo by sends of at most most bytes, and checks those that come back. */
static int exchange(const char *address, size_t most, size_t total, uint32_t seed)
{
	exanet_stream *x;
	pthread_t t;
	if (exanet_connect(e, address, &x, -1))
		return failed("connect");
	if (!send_all(x, "e", 1))
		return failed("send");
	struct run out = { x, most, total, seed, false }, in = out;
	pthread_create(&t, NULL, write_run, &out);
	read_run(&in);
	pthread_join(t, NULL);
	return exanet_stream_close(x) ? failed("close") : 0;
}

/* pair connects the process to itself, without a wait. */
static int pair(exanet_listener *l, exanet_stream **a, exanet_stream **b)
{
	char text[64];
	int error;
	if (exanet_listener_address(l, text, sizeof text) || exanet_connect(e, text, a, 0))
		return failed("connect");
	while ((error = exanet_accept(l, b, 0)) == -EAGAIN)
		;
	return error ? failed("accept") : 0;
}

/* self exchanges bytes with itself in both directions by one thread that never waits. */
static int self(size_t most, size_t total)
{
	exanet_listener *l;
	exanet_stream *x[2];
	unsigned char *out = malloc(most), *in = malloc(most);
	uint32_t sizes = 7, from[2] = { 1, 2 }, to[2] = { 1, 2 };
	size_t sent[2] = { 0 }, got[2] = { 0 };
	if (exanet_listen(e, 0, &l) || pair(l, &x[0], &x[1]))
		return failed("listen");
	while (got[0] < total || got[1] < total)
		for (int i = 0; i < 2; i++) {
			size_t n = 1 + next(&sizes) % most;
			n = n < total - sent[i] ? n : total - sent[i];
			uint32_t seed = from[i];
			for (size_t k = 0; k < n; k++)
				out[k] = next(&seed);
			const struct iovec v[3] = { { out, n / 3 }, { out, 0 }, { out + n / 3, n - n / 3 } };
			ssize_t k = n ? exanet_stream_sendv(x[i], v, 3, 0) : 0;
			if (k < 0 && k != -EAGAIN)
				return failed("send");
			for (; k > 0; k--, sent[i]++)
				next(&from[i]);
			k = exanet_stream_recv(x[!i], in, most, 0);
			if (k < 0 && k != -EAGAIN)
				return failed("receive");
			for (ssize_t j = 0; j < k; j++, got[i]++)
				if (in[j] != (unsigned char)next(&to[i]))
					return printf("byte %zu is wrong\n", got[i]);
		}
	free(out);
	free(in);
	if (exanet_stream_close(x[0]) || exanet_stream_recv(x[1], &sizes, 1, -1) || exanet_stream_close(x[1]) || exanet_listener_close(l))
		return failed("close");
	return 0;
}

static int64_t nanoseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ping prints the time of a round of size bytes with an echo. */
static int ping(const char *address, int rounds, size_t size, int timeout)
{
	exanet_stream *x;
	char *b = calloc(1, size);
	if (exanet_connect(e, address, &x, -1) || !send_all(x, "e", 1))
		return failed("connect");
	int64_t began = 0;
	for (int i = -rounds / 10; i < rounds; i++) {
		if (!i)
			began = nanoseconds();
		if (!send_all(x, b, size))
			return failed("send");
		for (size_t got = 0; got < size;) {
			const ssize_t n = exanet_stream_recv(x, b + got, size - got, timeout);
			if (n <= 0 && n != -EAGAIN)
				return failed("receive");
			got += n < 0 ? 0 : n;
		}
	}
	printf("%lld\n", (long long)(nanoseconds() - began) / rounds);
	free(b);
	return exanet_stream_close(x) ? failed("close") : 0;
}

/* empty prints the time of a receive that finds nothing, with 16 connections. */
static int empty(int calls)
{
	exanet_listener *l;
	exanet_stream *x[32];
	char b[8];
	if (exanet_listen(e, 0, &l))
		return failed("listen");
	for (int i = 0; i < 32; i += 2)
		if (pair(l, &x[i], &x[i + 1]))
			return 1;
	const int64_t began = nanoseconds();
	for (int i = 0; i < calls; i++)
		if (exanet_stream_recv(x[i % 32], b, sizeof b, 0) != -EAGAIN)
			return failed("receive");
	printf("%lld\n", (long long)(nanoseconds() - began) / calls);
	return 0;
}

/* wrong makes calls that fail. busy is the address of a process without streams. */
static int wrong(const char *there, const char *nobody, const char *busy)
{
	static const char *const texts[] = {
		"", "exanet:", "tcp:1/16/80", "exanet:1/16", "exanet:1/16/80/1", "exanet:x/16/80", "exanet:4194304/16/80", "exanet:1/15/80",
		"exanet:1/32/80", "exanet:1/16/4294967296", "exanet:1/16/-1", "exanet:1/16/+1", "exanet:1//80", "1/16/80",
		"exanet:1/16/99999999999999999999999999",
	};
	exanet_listener *l, *second;
	exanet_stream *x, *y;
	struct exanet_remote r;
	char b[16] = "", small[8];
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		expect("text", exanet_connect(e, texts[i], &x, -1), -EINVAL);
	expect("no port", exanet_connect(e, nobody, &x, -1), -ECONNREFUSED);
	expect("no process", exanet_connect(e, "exanet:1/31/80", &x, -1), -ECONNREFUSED);
	expect("no node", exanet_connect(e, "exanet:77/16/80", &x, -1), -ECONNREFUSED);
	expect("no answer in time", exanet_connect(e, busy, &x, 1), -ETIMEDOUT);
	expect("no answer", exanet_connect(e, busy, &x, -1), -ETIMEDOUT);
	expect("listen", exanet_listen(e, 7, &l), 0);
	expect("in use", exanet_listen(e, 7, &second), -EADDRINUSE);
	expect("small text", exanet_listener_address(l, small, sizeof small), -ENOSPC);
	expect("nobody connects", exanet_accept(l, &x, 0), -EAGAIN);
	expect("nobody connects in time", exanet_accept(l, &x, 1), -EAGAIN);
	expect("close", exanet_listener_close(l), 0);
	expect("again", exanet_listen(e, 7, &l), 0);

	expect("at once", exanet_connect(e, busy, &x, 0), 0);
	expect("receive too early", exanet_stream_recv(x, b, 1, 0), -EAGAIN);
	expect("send too early", exanet_stream_send(x, b, 1, 0), -EAGAIN);
	expect("shut down too early", exanet_stream_shutdown(x), -EAGAIN);
	expect("peer too early", exanet_stream_peer(x, &r), -EAGAIN);
	expect("close early", exanet_stream_close(x), 0);
	expect("refused later", exanet_connect(e, nobody, &x, 0), 0);
	expect("receive", exanet_stream_recv(x, b, 1, -1), -ECONNREFUSED);
	expect("send", exanet_stream_send(x, b, 1, -1), -ECONNREFUSED);
	expect("close refused", exanet_stream_close(x), 0);

	expect("connect", exanet_connect(e, there, &x, 5000), 0);
	expect("peer", exanet_stream_peer(x, &r), 0);
	expect("part", exanet_stream_send(x, "e", 1, 0), 1);
	expect("nothing", exanet_stream_send(x, b, 0, 0), 0);
	expect("nothing", exanet_stream_recv(x, b, 0, 0), 0);
	expect("nothing comes", exanet_stream_recv(x, b, 1, 1), -EAGAIN);
	expect("question", exanet_stream_send(x, "question", 8, -1), 8);
	expect("shut down", exanet_stream_shutdown(x), 0);
	expect("shut down twice", exanet_stream_shutdown(x), 0);
	expect("send after that", exanet_stream_send(x, b, 1, -1), -EPIPE);
	for (int n = 0; n < 8;)
		n += exanet_stream_recv(x, b + n, 8 - n, -1);
	expect("answer", memcmp(b, "question", 8), 0);
	expect("end", exanet_stream_recv(x, b, 1, -1), 0);
	expect("end again", exanet_stream_recv(x, b, 1, 0), 0);
	expect("close", exanet_stream_close(x), 0);

	if (pair(l, &x, &y))
		return 1;
	exanet_stream_close(y);
	ssize_t n;
	while ((n = exanet_stream_send(x, b, sizeof b, -1)) > 0)
		;
	expect("to a closed end", n, -EPIPE);
	exanet_stream_close(x);
	expect("unaccepted", exanet_listener_address(l, small, 0), -ENOSPC);
	char text[64];
	exanet_listener_address(l, text, sizeof text);
	expect("unaccepted", exanet_connect(e, text, &x, -1), 0);
	exanet_listener_close(l);
	expect("unaccepted", exanet_stream_recv(x, b, 1, -1), -ECONNRESET);
	exanet_stream_close(x);

	expect("connect", exanet_connect(e, there, &x, -1), 0);
	exanet_listen(e, 7, &l);
	fflush(stdout);
	const pid_t child = fork();
	if (!child) {
		expect("child listens", exanet_listen(e, 9, &second), -EPERM);
		expect("child's address", exanet_listener_address(l, text, sizeof text), -EPERM);
		expect("child accepts", exanet_accept(l, &y, -1), -EPERM);
		expect("child connects", exanet_connect(e, there, &y, -1), -EPERM);
		expect("child sends", exanet_stream_send(x, b, 1, -1), -EPERM);
		expect("child receives", exanet_stream_recv(x, b, 1, -1), -EPERM);
		expect("child shuts down", exanet_stream_shutdown(x), -EPERM);
		expect("child's peer", exanet_stream_peer(x, &r), -EPERM);
		expect("child's descriptor", exanet_stream_fd(e), -EPERM);
		expect("child arms", exanet_stream_arm(e), -EPERM);
		expect("child closes", exanet_stream_close(x), -EPERM);
		expect("child closes", exanet_listener_close(l), -EPERM);
		expect("child detaches", exanet_close(e), 0);
		fflush(stdout);
		_exit(0);
	}
	if (child < 0 || waitpid(child, NULL, 0) != child)
		return 1;
	expect("after a child", exanet_stream_send(x, "eagain", 6, -1), 6);
	for (int got = 0; got < 5;)
		got += exanet_stream_recv(x, b + got, 5 - got, -1);
	expect("after a child", memcmp(b, "again", 5), 0);
	exanet_stream_close(x);
	return 0;
}

static void print(const char *name, const uint64_t *words, int n)
{
	printf("%s ", name);
	for (int i = 0; i < 8 * n; i++)
		printf("%02x", ((const unsigned char *)words)[i]);
	puts("");
}

/* golden prints the words that docs/streams.md has, and what is decoded to something else. */
static int golden(void)
{
	const struct slot slot = { 0x1122334455667788, 64, 2, FIN };
	const struct credit credit = { 256 << 10, 17, true };
	const struct short_span sp = { .to = 42, .number = 7, .length = 10, .data = "hello, wor" };
	const struct connection_message list[] = {
		{ .op = OP_CONNECT, .from = 3, .to = 80, .generation = 0xa1020304, .ring = 0x7f0001400000, .size = 256 << 10, .words = 0x7f0002000440 },
		{ .op = OP_SHUTDOWN, .from = 3, .to = 42, .generation = 0xa1020304, .flags = FLAG_RESET | FLAG_DOUBTFUL },
	};
	uint64_t words[EXANET_WORDS];
	struct words two = encode_slot(slot);
	const struct slot slot_back = decode_slot(two);
	struct short_span sp_back;
	print("slot", &two.first, 2);
	if (slot_back.offset != slot.offset || slot_back.length != slot.length || slot_back.number != slot.number || slot_back.flags != slot.flags)
		puts("another slot");
	two = encode_credit(credit);
	print("credit", &two.first, 2);
	if (!same_credit(decode_credit(two), credit))
		puts("another credit");
	const int n = encode_short(&sp, words);
	print("short", words, n);
	if (!decode_short(words, n, &sp_back) || memcmp(&sp, &sp_back, sizeof sp))
		puts("another short span");
	for (int i = 0; i < 2; i++) {
		const struct connection_message *m = &list[i];
		struct connection_message back;
		encode_connection(m, words);
		print(i ? "shutdown" : "connect", words, EXANET_WORDS);
		if (!decode_connection(words, EXANET_WORDS, &back) || back.op != m->op || back.from != m->from || back.to != m->to ||
		    back.generation != m->generation || back.ring != m->ring || back.size != m->size || back.words != m->words || back.flags != m->flags)
			puts("another message");
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct exanet_options o = { .socket = argv[1], .flags = EXANET_ACCEPT_GROUP };
	int status = 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && !strcmp(argv[1], "golden"))
		return golden();
	if (argc < 4)
		return 2;
	o.node = atoi(argv[2]);
	if (getenv("METHOD"))
		o.method = atoi(getenv("METHOD"));
	if (exanet_attach(&e, &o))
		return failed("attach");
	const char *command = argv[3];
	if (!strcmp(command, "serve"))
		status = serve();
	else if (!strcmp(command, "exchange") && argc > 7)
		status = exchange(argv[4], atol(argv[5]), atol(argv[6]), atol(argv[7]));
	else if (!strcmp(command, "self") && argc > 5)
		status = self(atol(argv[4]), atol(argv[5]));
	else if (!strcmp(command, "wrong") && argc > 6)
		status = wrong(argv[4], argv[5], argv[6]);
	else if (!strcmp(command, "ping") && argc > 6)
		status = ping(argv[4], atoi(argv[5]), atol(argv[6]), argc > 7 ? atoi(argv[7]) : -1);
	else if (!strcmp(command, "empty") && argc > 4)
		status = empty(atoi(argv[4]));
	if (exanet_close(e))
		return failed("close");
	return status;
}
