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

#include <exanet_stream.h>

static exanet *e;

static int failed(const char *what)
{
	printf("%s: %s\n", what, exanet_error());
	return 1;
}

__attribute__((unused)) static void expect(const char *what, ssize_t got, ssize_t want)
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

int main(int argc, char **argv)
{
	struct exanet_options o = { .socket = argv[1], .flags = EXANET_ACCEPT_GROUP };
	int status = 2;
	if (argc < 4)
		return 2;
	o.node = atoi(argv[2]);
	if (exanet_attach(&e, &o))
		return failed("attach");
	const char *command = argv[3];
	if (!strcmp(command, "serve"))
		status = serve();
	else if (!strcmp(command, "exchange") && argc > 7)
		status = exchange(argv[4], atol(argv[5]), atol(argv[6]), atol(argv[7]));
	if (exanet_close(e))
		return failed("close");
	return status;
}
