/* window golden TYPE ADDRESS BYTES PEER RIGHTS: prints the message in hexadecimal.
 * window SOCKET NODE: opens memory of a process on the node to one of another group, which attaches to node 0. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libexanet/internal.h"

static int failed(const char *what)
{
	printf("%s: %s\n", what, exanet_error());
	return 1;
}

static int golden(char **argv)
{
	unsigned char m[WINDOW_SIZE];
	window_message(m, atoi(argv[2]), strtoull(argv[3], NULL, 16), strtoull(argv[4], NULL, 16), strtoul(argv[5], NULL, 16), atoi(argv[6]));
	for (size_t i = 0; i < sizeof m; i++)
		printf("%02x", m[i]);
	return 0;
}

static void expect(const char *what, int got, int want)
{
	if (got != want)
		printf("%s: %d, want %d: %s\n", what, got, want, exanet_error());
}

static void bad(const char *what, int got, int want)
{
	if (got != want)
		printf("%s: %d, want %d\n", what, got, want);
	else
		printf("%s: %s\n", what, exanet_error());
}

/* transfer writes to the target's memory, or reads it, and returns the outcome. */
static int transfer(exanet *e, int (*start)(exanet *, const struct exanet_transfer *), void *local, const struct exanet_remote *to, uint64_t at, uint32_t size)
{
	const struct exanet_transfer t = { .local = local, .size = size, .remote = *to, .offset = at };
	const int n = start(e, &t);
	return n < 0 ? n : exanet_wait(e, n, -1);
}

enum { SIZE = 12288, FROM = 4099, BYTES = 4091, DOMAIN = 5 };

int main(int argc, char **argv)
{
	struct exanet_options o = { .group = "target" };
	struct exanet_info guest_info;
	struct exanet_remote all;
	struct exanet_message message;
	exanet *target, *guest;
	char *memory, *local;
	const uint64_t word = 0;

	if (argc == 7 && !strcmp(argv[1], "golden"))
		return golden(argv);
	if (argc != 3)
		return 2;
	o.socket = argv[1];
	o.node = atoi(argv[2]);
	if (exanet_attach(&target, &o))
		return failed("attach");
	o.group = "guest";
	o.node = 0;
	if (exanet_attach(&guest, &o))
		return failed("attach");
	exanet_get_info(guest, &guest_info);
	if (!(memory = exanet_alloc(target, SIZE)) || !(local = exanet_alloc(guest, SIZE)))
		return failed("alloc");
	memset(local, 1, SIZE);
	exanet_export(target, memory, SIZE, &all);
	const int rights = EXANET_RIGHT_READ | EXANET_RIGHT_WRITE;

	expect("before", transfer(guest, exanet_write, local, &all, FROM, 1), DOMAIN);
	if (exanet_window(target, memory + FROM, BYTES, guest_info.pdid, rights))
		return failed("window");
	for (int edge = FROM; edge <= FROM + BYTES; edge += BYTES)
		for (int at = edge - 2; at <= edge + 1; at++)
			for (int n = 1; n <= 3; n++) {
				const int want = at >= FROM && at + n <= FROM + BYTES ? 0 : DOMAIN;
				expect("write", transfer(guest, exanet_write, local, &all, at, n), want);
				expect("read", transfer(guest, exanet_read, local, &all, at, n), want);
			}
	expect("all", transfer(guest, exanet_write, local, &all, FROM, BYTES), 0);
	for (int i = 0; i < SIZE; i++)
		if (memory[i] != (i >= FROM && i < FROM + BYTES))
			printf("byte %d is %d\n", i, memory[i]);
	expect("message without a right", exanet_send(guest, &all, &word, 1) < 0 ? -EREMOTEIO : exanet_receive(guest, &message, -1), -EREMOTEIO);
	if (exanet_window(target, memory, 1, 0, EXANET_RIGHT_MESSAGES))
		return failed("window");
	expect("message", exanet_send(guest, &all, &word, 1) > 0 ? exanet_receive(target, &message, -1) : -1, 1);
	expect("withdrawn", exanet_window_close(target, memory + FROM, BYTES, guest_info.pdid, rights), 0);
	expect("after", transfer(guest, exanet_write, local, &all, FROM, 1), DOMAIN);

	bad("0 bytes", exanet_window(target, memory, 0, 0, rights), -EINVAL);
	bad("past the end", exanet_window(target, memory, SIZE_MAX, 0, rights), -EINVAL);
	bad("past the node's end", exanet_window(target, memory, (size_t)1 << 48, 0, rights), -EINVAL);
	bad("no right", exanet_window(target, memory, 1, 0, 0), -EINVAL);
	bad("unknown right", exanet_window(target, memory, 1, 0, 16), -EINVAL);
	bad("drivers' PDID", exanet_window(target, memory, 1, 0xffff, rights), -EINVAL);
	bad("of nothing", exanet_window_close(target, memory + FROM, BYTES, guest_info.pdid, rights), -ENOENT);
	bad("other rights", exanet_window_close(target, memory, 1, 0, rights), -ENOENT);
	for (int i = 1; i < 64; i++)
		if (exanet_window(target, memory + i, 1, 0, rights))
			return failed("many");
	bad("65th", exanet_window(target, memory, 2, 0, rights), -EDQUOT);
	fflush(stdout);
	const pid_t child = fork();
	if (!child) {
		bad("child opens", exanet_window(target, memory, 1, 0, rights), -EPERM);
		bad("child closes", exanet_window_close(target, memory, 1, 0, EXANET_RIGHT_MESSAGES), -EPERM);
		fflush(stdout);
		_exit(0);
	}
	if (child < 0 || waitpid(child, NULL, 0) != child)
		return 1;
	expect("after the child", exanet_window_close(target, memory, 1, 0, EXANET_RIGHT_MESSAGES), 0);
	return exanet_close(guest) || exanet_close(target) ? failed("close") : 0;
}
