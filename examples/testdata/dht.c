/* dht SOCKET NODE TOKEN: joins a tree and reads commands, a line each, and prints the result of each. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libexanet/dht.h"

static exanet *e;
static exanet_gsas *g;
static exanet_dht *t;

static uint64_t number(const char *s) { return s ? strtoull(s, NULL, 0) : 0; }

struct adder {
	pthread_t thread;
	uint64_t keys, adds;
	int error;
};

/* add adds 1 to values of 16 bytes, and to texts, by turns. */
static void *add(void *arg)
{
	struct adder *a = arg;
	for (uint64_t i = 0; i < a->adds && a->error >= 0; i++) {
		const uint64_t key = i % a->keys;
		uint64_t value[2];
		uint32_t version;
		do {
			value[0] = value[1] = version = 0;
			if ((a->error = exanet_dht_get(t, key, value, &version)) >= 0) {
				value[0]++;
				value[1] = ~value[0];
				a->error = exanet_dht_compare_and_put(t, key, value, version);
			}
		} while (!a->error);
	}
	return NULL;
}

/* write_texts puts long values of one letter each, and gets them: each must be whole. */
static void *write_texts(void *arg)
{
	struct adder *a = arg;
	char name[20], text[EXANET_DHT_VALUE];
	for (uint64_t i = 0; i < a->adds && a->error >= 0; i++) {
		const int n = snprintf(name, sizeof name, "text %d", (int)(i % a->keys));
		size_t size = 1 + i * 37 % sizeof text;
		memset(text, 'a' + i % 26, size);
		if ((a->error = exanet_dht_put_bytes(t, name, n, text, size)) < 0)
			break;
		size = sizeof text;
		if ((a->error = exanet_dht_get_bytes(t, name, n, text, &size)) != 1)
			break;
		for (size_t j = 1; j < size; j++)
			if (text[j] != text[0])
				a->error = fail(EIO, "a value is torn at byte %zu of %zu", j, size);
	}
	return NULL;
}

static int work(uint64_t keys, uint64_t adds, void *(*f)(void *))
{
	struct adder a[6];
	int error = 0;
	for (int i = 0; i < 6; i++) {
		a[i] = (struct adder){ .keys = keys, .adds = adds };
		if (pthread_create(&a[i].thread, NULL, f, &a[i]))
			exit(1);
	}
	for (int i = 0; i < 6; i++) {
		pthread_join(a[i].thread, NULL);
		error = a[i].error < 0 ? a[i].error : error;
	}
	return error;
}

static int create(const char *name, char **w, int n)
{
	uint32_t nodes[600];
	struct exanet_dht_options o = { .keys = number(w[0]), .dense = number(w[1]), .nodes = nodes };
	for (int i = 2; i < n; i++)
		nodes[o.nnodes++] = number(w[i]);
	exanet_dht *made;
	const int status = exanet_dht_create(g, name, &o, &made);
	t = made ? made : t;
	return status;
}

static int open_table(const char *name)
{
	exanet_dht *found;
	const int status = exanet_dht_open(g, name, &found);
	t = found ? found : t;
	return status;
}

static int child(void)
{
	const pid_t pid = fork();
	int status = 0;
	if (!pid) {
		uint64_t v[2] = { 0 };
		size_t size = 0;
		exanet_dht *other;
		const int all[] = {
			exanet_dht_open(g, "t", &other), exanet_dht_get(t, 1, v, NULL), exanet_dht_put(t, 1, v), exanet_dht_delete(t, 1), exanet_dht_count(t, v),
			exanet_dht_put_bytes(t, "k", 1, "v", 1), exanet_dht_get_bytes(t, "k", 1, v, &size), exanet_dht_close(t),
		};
		for (size_t i = 0; i < sizeof all / sizeof *all; i++)
			if (all[i] != -EPERM)
				_exit(1 + i);
		_exit(0);
	}
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

static int sum_up(void *sums, const struct exanet_dht_entry *e)
{
	uint64_t *s = sums;
	s[0] += e->key * (e->version + 3 * e->record);
	return s[1] && !--s[1] ? 7 : 0;
}

static int run(char **w, int n)
{
	const char *op = w[0], *first = n > 1 ? w[1] : "", *second = n > 2 ? w[2] : "";
	uint64_t v[2] = { 0 };
	uint32_t version = 0;
	static char text[EXANET_DHT_VALUE + 1];
	size_t size = n > 2 ? number(w[2]) : EXANET_DHT_VALUE;
	int status;
#define IS(name) if (!strcmp(op, name)) return
	IS("create") create(first, w + 2, n - 2);
	IS("open") open_table(first);
	IS("close") exanet_dht_close(t);
	IS("delete") exanet_dht_delete(t, number(first));
	IS("put_bytes") exanet_dht_put_bytes(t, first, strlen(first), second, strlen(second));
	IS("delete_bytes") exanet_dht_delete_bytes(t, first, strlen(first));
	IS("add") work(number(first), number(second), add);
	IS("texts") work(number(first), number(second), write_texts);
	IS("child") child();
#undef IS
	if (!strcmp(op, "put") && n == 4)
		return exanet_dht_put(t, number(first), (const uint64_t[]){ number(second), number(w[3]) });
	if (!strcmp(op, "compare_and_put") && n == 5)
		return exanet_dht_compare_and_put(t, number(first), (const uint64_t[]){ number(second), number(w[3]) }, number(w[4]));
	if (!strcmp(op, "get")) {
		if ((status = exanet_dht_get(t, number(first), v, &version)) == 1)
			printf("%#" PRIx64 " %#" PRIx64 " %" PRIu32 " ", v[0], v[1], version);
		return status;
	}
	if (!strcmp(op, "range")) {
		v[1] = number(second);
		status = exanet_dht_range(t, number(first), sum_up, v);
		printf("%#" PRIx64 " ", v[0]);
		return status;
	}
	if (!strcmp(op, "stats")) {
		struct exanet_dht_stats s;
		if (!(status = exanet_dht_stats(t, number(first), &s)))
			printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 " ", s.keys, s.deleted, s.elements, s.containers, s.depth, exanet_dht_parts(t));
		return status;
	}
	if (!strcmp(op, "count")) {
		status = exanet_dht_count(t, v);
		printf("%" PRIu64 " ", v[0]);
		return status;
	}
	if (!strcmp(op, "get_bytes")) {
		if ((status = exanet_dht_get_bytes(t, first, strlen(first), text, &size)) == 1)
			printf("%.*s ", (int)size, text);
		return status;
	}
	return fail(EINVAL, "no command %s", op);
}

int main(int argc, char **argv)
{
	static char line[6000], *w[700];
	if (argc != 4)
		return 2;
	const struct exanet_options o = { .socket = argv[1], .node = atoi(argv[2]), .flags = EXANET_THREADS };
	if (exanet_attach(&e, &o) || exanet_gsas_join(e, argv[3], &g)) {
		printf("%s\n", exanet_error());
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		int n = 0;
		for (char *s = strtok(line, " \n"); s && n < 700; s = strtok(NULL, " \n"))
			w[n++] = s;
		const int status = n ? run(w, n) : 0;
		printf("%d", status);
		printf(status < 0 ? ": %s\n" : "\n", exanet_error());
	}
	return exanet_close(e) != 0;
}
