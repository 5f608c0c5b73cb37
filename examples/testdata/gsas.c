/* gsas golden: prints the messages to pfd in hexadecimal.
 * gsas threaded HEX: reads the answer to a THREAD and prints its fields.
 * gsas request OP ADDRESS ARGUMENTS...: prints the words of a request.
 * gsas mailbox NODE NUMBER: reads messages, SOURCE and nine words a line, for a thread that awaits the answers of the
 * node to requests with the number, and prints for each what its operations have got.
 * gsas SOCKET NODE: reads commands, a line each, and prints the result and the words of each. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libexanet/gsas.h"

static void hex(const unsigned char *m, int n)
{
	for (int i = 0; i < n; i++)
		printf("%02x", m[i]);
	printf("\n");
}

static uint64_t number(const char *s) { return strtoull(s, NULL, 0); }

static int golden(void)
{
	unsigned char m[THREAD_SIZE], token[16];
	memset(token, 0x74, sizeof token);
	thread_message(m, token);
	hex(m, THREAD_SIZE);
	unthread_message(m, 2);
	hex(m, UNTHREAD_SIZE);
	return 0;
}

static int read_threaded(const char *text)
{
	unsigned char m[THREADED_SIZE] = { 0 };
	struct exanet_gsas g = { 0 };
	for (int i = 0; i < THREADED_SIZE && text[2 * i]; i++)
		sscanf(text + 2 * i, "%2hhx", &m[i]);
	if (!threaded(m, &g))
		return puts("no"), 0;
	printf("%d %#x %#x %#x ", g.index, g.id, g.protection, (unsigned)g.region);
	hex(g.token, sizeof g.token);
	return 0;
}

static int print_request(char **args, int n)
{
	uint64_t words[REQUEST_WORDS], a[8] = { 0 };
	for (int i = 2; i < n; i++)
		a[i - 2] = number(args[i]);
	const int count = request(words, number(args[0]), number(args[1]), a);
	for (int i = 0; i < count; i++)
		printf("%016" PRIx64 " ", words[i]);
	printf("\n");
	return 0;
}

static int mailbox(uint32_t node, uint16_t number)
{
	static _Alignas(4096) unsigned char port[PORT];
	struct exanet_gsas g = { .port = port };
	uint64_t m[9];
	for (uint32_t tail = 1; ; tail++) {
		for (int i = 0; i < 9; i++)
			if (scanf("%" SCNx64, &m[i]) != 1)
				return 0;
		for (int i = 0; i < THREAD_CHANNELS; i++)
			g.calls[i] = (struct call){ .op = EXANET_LOAD256, .open = i != 3, .node = node, .number = number };
		for (int i = 0; i < 9; i++)
			store64(port + (MAIL - PACKETIZER) + MAIL_SIZE * ((tail - 1) % MAIL_SLOTS) + 8 * i, m[i]);
		store32(port + (MAIL_TAIL - PACKETIZER), tail);
		accept_answers(&g);
		for (int i = 0; i < THREAD_CHANNELS; i++) {
			const struct call *c = &g.calls[i];
			printf(c->waiting ? "waits " : c->done ? "%d,%" PRIx64 ",%" PRIx64 ",%" PRIx64 ",%" PRIx64 " " : "- ", c->status, c->values[0], c->values[1], c->values[2], c->values[3]);
		}
		printf("\n");
	}
}

static exanet *e;
static exanet_gsas *g;

struct adder {
	pthread_t thread;
	uint64_t address, adds;
	int error;
	bool joined;
};

static void *add(void *arg)
{
	struct adder *a = arg;
	for (uint64_t i = 0; i < a->adds && !a->error; i++)
		a->error = exanet_gsas_fetch_add(g, a->address, 1, NULL);
	return NULL;
}

/* count adds by eight pthreads at once. */
static int count(uint64_t address, uint64_t adds)
{
	struct adder a[8];
	int error = 0;
	for (int i = 0; i < 8; i++) {
		a[i] = (struct adder){ .address = address, .adds = adds };
		if (pthread_create(&a[i].thread, NULL, add, &a[i]))
			exit(1);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(a[i].thread, NULL);
		error = error ? error : a[i].error;
	}
	return error;
}

/* scribble writes random words over the thread's packetizer and mailbox while operations are in flight. */
static int scribble(uint64_t address, uint64_t adds)
{
	struct adder a[3];
	bool alive = true;
	unsigned short seed[3] = { 1, 2, 3 };
	for (int i = 0; i < 3; i++) {
		a[i] = (struct adder){ .address = address, .adds = adds };
		if (pthread_create(&a[i].thread, NULL, add, &a[i]))
			exit(1);
	}
	while (alive) {
		for (int i = 0; i < 50; i++) {
			const int at = i % 2 ? (PORT / 2 + 0x100 + nrand48(seed) % 0xa00) & ~7 : nrand48(seed) % (PORT / 2) & ~7;
			store64(g->port + at, (uint64_t)mrand48() << 32 | (uint32_t)jrand48(seed));
		}
		usleep(100);
		alive = false;
		for (int i = 0; i < 3; i++) {
			a[i].joined = a[i].joined || !pthread_tryjoin_np(a[i].thread, NULL);
			alive |= !a[i].joined;
		}
	}
	return 0;
}

/* child calls all that a forked child may not. */
static int child(uint64_t address)
{
	const pid_t pid = fork();
	int status = 0;
	if (!pid) {
		exanet_gsas *other;
		uint64_t v[4] = { 0 };
		char text[EXANET_GSAS_TOKEN];
		void *p;
		const int all[] = {
			exanet_gsas_begin(e, &other), exanet_gsas_join(e, "01010101010101010101010101010101", &other), exanet_gsas_load64(g, address, v),
			exanet_gsas_compare_store256(g, address, 0, v, v), exanet_gsas_alloc(g, 0, 1, 0, v), exanet_gsas_free(g, address),
			exanet_gsas_alive(g, 1), exanet_gsas_start(g, EXANET_LOAD64, address, NULL), exanet_gsas_finish(g, 0, v),
			exanet_gsas_map(g, address, 8, &p), exanet_gsas_token(g, text, sizeof text), exanet_gsas_close(g),
		};
		for (size_t i = 0; i < sizeof all / sizeof *all; i++)
			if (all[i] != -EPERM) {
				printf("call %zu of a child: %d\n", i, all[i]);
				_exit(1);
			}
		exanet_close(e);
		_exit(0);
	}
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

static int operate(const char *op, const uint64_t *a, uint64_t *v, int *values)
{
	static const struct { const char *name; int (*call)(exanet_gsas *, uint64_t, uint64_t, uint64_t *); } simple[] = {
		{ "fetch_add", exanet_gsas_fetch_add }, { "swap", exanet_gsas_swap }, { "fetch_and", exanet_gsas_fetch_and },
		{ "fetch_or", exanet_gsas_fetch_or }, { "fetch_xor", exanet_gsas_fetch_xor },
	};
	for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
		if (!strcmp(op, simple[i].name))
			return *values = 1, simple[i].call(g, a[0], a[1], v);
#define IS(name, n, call) if (!strcmp(op, name)) return *values = n, call
	IS("load64", 1, exanet_gsas_load64(g, a[0], v));
	IS("load128", 2, exanet_gsas_load128(g, a[0], v));
	IS("load256", 4, exanet_gsas_load256(g, a[0], v));
	IS("store64", 0, exanet_gsas_store64(g, a[0], a[1]));
	IS("store128", 0, exanet_gsas_store128(g, a[0], a + 1));
	IS("store256", 0, exanet_gsas_store256(g, a[0], a + 1));
	IS("compare_swap", 1, exanet_gsas_compare_swap(g, a[0], a[1], a[2], v));
	IS("compare_swap128", 2, exanet_gsas_compare_swap128(g, a[0], a + 1, a + 3, v));
	IS("compare_store256", 4, exanet_gsas_compare_store256(g, a[0], a[1], a + 2, v));
	IS("alloc", 1, exanet_gsas_alloc(g, a[0], a[1], a[2], v));
	IS("free", 0, exanet_gsas_free(g, a[0]));
	IS("alive", 0, exanet_gsas_alive(g, a[0]));
	IS("start", 0, exanet_gsas_start(g, a[0], a[1], a + 2));
	IS("finish", 4, exanet_gsas_finish(g, a[0], v));
	IS("errors", 0, exanet_gsas_errors(a[0]));
	IS("limit", 0, exanet_gsas_limit(g, a[0]));
	IS("begin", 0, exanet_gsas_begin(e, &g));
	IS("close", 0, exanet_gsas_close(g));
	IS("count", 0, count(a[0], a[1]));
	IS("scribble", 0, scribble(a[0], a[1]));
	IS("child", 0, child(a[0]));
	IS("directory", 1, (v[0] = exanet_gsas_directory(g), 0));
	IS("id", 1, (v[0] = exanet_gsas_id(g), 0));
	IS("tree", 1, (v[0] = exanet_gsas_tree(g), 0));
#undef IS
	if (!strcmp(op, "map")) {	/* and adds to the first word */
		void *p;
		const int error = exanet_gsas_map(g, a[0], a[1], &p);
		if (!error && a[1] >= 8)
			v[0] = __atomic_fetch_add((uint64_t *)p, a[2], __ATOMIC_SEQ_CST);
		return *values = 1, error;
	}
	return fail(EINVAL, "no command %s", op);
}

int main(int argc, char **argv)
{
	char line[400], *w[10], text[EXANET_GSAS_TOKEN];
	if (argc == 2 && !strcmp(argv[1], "golden"))
		return golden();
	if (argc == 3 && !strcmp(argv[1], "threaded"))
		return read_threaded(argv[2]);
	if (argc > 3 && !strcmp(argv[1], "request"))
		return print_request(argv + 2, argc - 2);
	if (argc == 4 && !strcmp(argv[1], "mailbox"))
		return mailbox(number(argv[2]), number(argv[3]));
	if (argc < 3)
		return 2;
	const struct exanet_options o = { .socket = argv[1], .node = atoi(argv[2]), .flags = argc > 3 ? 0 : EXANET_THREADS };
	setvbuf(stdout, NULL, _IOLBF, 0);
	int error = exanet_attach(&e, &o);
	if (error) {
		printf("%d: %s\n", error, exanet_error());
		return 0;
	}
	while (fgets(line, sizeof line, stdin)) {
		uint64_t a[9] = { 0 }, v[4] = { 0 };
		int n = 0, values = 0;
		for (char *s = strtok(line, " \n"); s && n < 10; s = strtok(NULL, " \n"))
			w[n++] = s;
		for (int i = 1; i < n; i++)
			a[i - 1] = number(w[i]);
		if (n && !strcmp(w[0], "join"))
			error = exanet_gsas_join(e, n > 1 ? w[1] : "", &g);
		else if (n && !strcmp(w[0], "token"))
			error = exanet_gsas_token(g, text, n > 1 ? a[0] : sizeof text);
		else
			error = n ? operate(w[0], a, v, &values) : 0;
		printf("%d", error);
		if (error < 0)
			printf(": %s", exanet_error());
		for (int i = 0; i < values && error >= 0; i++)
			printf(" %#" PRIx64, v[i]);
		printf(n && !error && !strcmp(w[0], "token") ? " %s\n" : "\n", text);
	}
	return exanet_close(e) != 0;
}
