/* rings golden ADDRESS BYTES ARM: prints the message RING in hexadecimal.
 * rings pair COUNT: prints how many ns a round of two processes takes that sleep on a socket pair.
 * rings SOCKET NODE COMMAND [COUNT]: prints its remote, reads its peer's from standard input, and waits with
 * poll(2) for what its peer writes. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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
	unsigned char m[RING_SIZE];
	ring_message(m, strtoull(argv[2], NULL, 16), strtoull(argv[3], NULL, 16), strtoull(argv[4], NULL, 16));
	for (size_t i = 0; i < sizeof m; i++)
		printf("%02x", m[i]);
	return 0;
}

static int wait_on(exanet *e, int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };
	(void)e;
	return poll(&p, 1, -1) == 1 ? 0 : -1;
}

static const int64_t long_time = INT64_C(100000000000);	/* ns: reached only if something hangs */

/* game answers each of the peer's writes; the one that begins writes first. It sleeps on a ring of its words,
 * and for the end of its own transfer on exanet_fd; the other one sleeps until exanet_events changes. */
static int game(exanet *e, volatile uint64_t *words, const struct exanet_remote *peer, int begins, int count)
{
	int fd, status;
	if (exanet_ring(e, (const void *)words, 16, &fd))
		return failed("ring");
	for (int round = 1; round <= 2 * count; round++) {
		if (round % 2 == begins) {
			struct exanet_transfer t = { .local = (char *)words + 64, .size = 1, .remote = *peer, .offset = 128, .notify = peer->address, .first = round, .last = round };
			const int n = exanet_write(e, &t);
			if (n < 0)
				return failed("write");
			for (;;) {
				const uint32_t seen = exanet_events(e);
				if (begins && exanet_arm(e, exanet_fd(e)))
					return failed("arm");
				if ((status = exanet_poll(e, n)) != EXANET_ONGOING)
					break;
				if (begins)
					wait_on(e, exanet_fd(e));
				else if (exanet_events_wait(e, seen, long_time))
					return failed("events");
			}
			if (status)
				return failed("transfer");
			continue;
		}
		for (;;) {
			const uint32_t seen = exanet_events(e);
			if (begins && exanet_arm(e, fd))
				return failed("arm");
			if (load64((const void *)&words[1]) == (uint64_t)round)
				break;
			if (begins)
				wait_on(e, fd);
			else if (exanet_events_wait(e, seen, long_time))
				return failed("events");
		}
	}
	return exanet_ring_close(e, fd) ? failed("close") : 0;
}

enum { BEHIND = 16 };	/* of 32 channels */

/* player is game, and waits for a transfer's end only BEHIND rounds later. The one that begins prints how many
 * ns a round takes. */
static int player(exanet *e, uint64_t *words, const struct exanet_remote *peer, int begins, int count)
{
	struct exanet_transfer t = { .local = words + 8, .size = 8, .remote = *peer, .offset = 128, .notify = peer->address };
	int fd, sent[BEHIND];
	int64_t began = 0;
	if (exanet_ring(e, words, 16, &fd))
		return failed("ring");
	for (int round = 1; round <= count; round++) {
		if (round == count / 10 + 1)
			began = now();
		for (int turn = 0; turn < 2; turn++) {
			if (turn != begins) {
				t.first = t.last = round;
				int *n = &sent[round % BEHIND];
				if (round > BEHIND && exanet_wait(e, *n, -1))
					return failed("transfer");
				if ((*n = exanet_write(e, &t)) < 0)
					return failed("write");
				continue;
			}
			for (;;) {
				if (exanet_arm(e, fd))
					return failed("arm");
				if (load64(&words[1]) == (uint64_t)round)
					break;
				wait_on(e, fd);
			}
		}
	}
	if (begins)
		printf("%.0f\n", (now() - began) / (count - count / 10.));
	for (int round = count - BEHIND + 1; round <= count; round++)	/* the last answer must arrive */
		if (round > 0 && exanet_wait(e, sent[round % BEHIND], -1))
			return failed("transfer");
	return 0;
}

/* pair does the same over a socket pair. */
static int pair(int count)
{
	int fds[2];
	int64_t began = 0;
	char c = 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds))
		return 1;
	const pid_t child = fork();
	if (child < 0)
		return 1;
	for (int round = 1; round <= count; round++) {
		if (round == count / 10 + 1)
			began = now();
		if (!child && (read(fds[0], &c, 1) != 1 || write(fds[0], &c, 1) != 1))
			_exit(1);
		if (child && (write(fds[1], &c, 1) != 1 || read(fds[1], &c, 1) != 1))
			return 1;
	}
	if (!child)
		_exit(0);
	printf("%.0f\n", (now() - began) / (count - count / 10.));
	return waitpid(child, NULL, 0) != child;
}

static void bad(const char *what, int got, int want)
{
	if (got != want)
		printf("%s: %d, want %d\n", what, got, want);
	else
		printf("%s: %s\n", what, exanet_error());
}

/* descriptors permits this process to open descriptors, or forbids it. */
static void descriptors(int permits)
{
	static struct rlimit was;
	struct rlimit none = { 0, 0 };
	if (!permits && !getrlimit(RLIMIT_NOFILE, &was))
		none.rlim_max = was.rlim_max;
	setrlimit(RLIMIT_NOFILE, permits ? &was : &none);
}

static int wrong(exanet *e, uint64_t *words)
{
	int fd, first, mail[MAIL_RINGS];
	bad("0 bytes", exanet_ring(e, words, 0, &fd), -EINVAL);
	bad("half a word", exanet_ring(e, words, 4, &fd), -EINVAL);
	bad("not aligned", exanet_ring(e, (char *)words + 4, 8, &fd), -EINVAL);
	bad("bytes of the mailbox", exanet_ring(e, NULL, 8, &fd), -EINVAL);
	bad("past the end", exanet_ring(e, words, (size_t)1 << 48, &fd), -EPROTO);
	bad("no ring", exanet_arm(e, 0), -EBADF);
	for (int i = 0; i <= MAIL_RINGS; i++) {
		if (exanet_ring(e, words, 32, &first) || exanet_ring_close(e, first))
			return failed("ring");
		descriptors(0);
		if (exanet_ring(e, words, 32, &fd) != -EMFILE || exanet_fd(e) != -EMFILE)
			return failed("lost");
		descriptors(1);
	}
	descriptors(0);
	bad("lost", exanet_fd(e), -EMFILE);
	descriptors(1);
	if (exanet_ring(e, words, 32, &first))
		return failed("ring");
	bad("overlaps", exanet_ring(e, words + 3, 8, &fd), -EINVAL);
	bad("again", exanet_ring(e, words, 32, &fd), -EINVAL);
	for (int i = 0; i < MAIL_RINGS; i++)
		if (exanet_ring(e, NULL, 0, &mail[i]))
			return failed("mailbox");
	bad("full", exanet_fd(e), -EBUSY);
	if (exanet_ring_close(e, mail[2]) || exanet_fd(e) < 0 || exanet_fd(e) != exanet_fd(e))
		return failed("again");
	if (exanet_ring_close(e, first))
		return failed("close");
	bad("closed", exanet_ring_close(e, first), -EBADF);
	bad("arm closed", exanet_arm(e, first), -EBADF);
	fflush(stdout);
	const pid_t child = fork();
	if (!child) {
		bad("child makes", exanet_ring(e, words, 32, &fd), -EPERM);
		bad("child's", exanet_fd(e), -EPERM);
		bad("child arms", exanet_arm(e, mail[0]), -EPERM);
		bad("child closes", exanet_ring_close(e, mail[0]), -EPERM);
		exanet_close(e);
		fflush(stdout);
		_exit(0);
	}
	if (child < 0 || waitpid(child, NULL, 0) != child)
		return 1;
	return exanet_arm(e, mail[0]) ? failed("after the child") : 0;
}

/* orphan waits until pfd has ended. */
static int orphan(exanet *e)
{
	const int fd = exanet_fd(e);
	int status;
	puts("waits");
	fflush(stdout);
	while (!(status = exanet_arm(e, fd)))
		wait_on(e, fd);
	bad("orphan", status, -ENOTCONN);
	return 0;
}

int main(int argc, char **argv)
{
	struct exanet_options o = { .socket = argv[1], .flags = EXANET_ACCEPT_GROUP };
	struct exanet_remote own, peer;
	char text[96];
	uint64_t *words;
	exanet *e;
	int status = 1;

	if (argc == 5 && !strcmp(argv[1], "golden"))
		return golden(argv);
	if (argc == 3 && !strcmp(argv[1], "pair"))
		return pair(atoi(argv[2]));
	if (argc < 4)
		return 2;
	o.node = atoi(argv[2]);
	if (exanet_attach(&e, &o))
		return failed("attach");
	if (!(words = exanet_alloc(e, 65536)))
		return failed("alloc");
	memset(words, 0, 65536);
	exanet_export(e, words, 65536, &own);
	if (exanet_remote_text(&own, text, sizeof text))
		return failed("text");
	puts(text);
	fflush(stdout);
	if (!fgets(text, sizeof text, stdin))
		return 1;
	text[strcspn(text, "\n")] = 0;
	if (exanet_remote_parse(text, &peer))
		return failed("parse");
	const int count = argc > 4 ? atoi(argv[4]) : 0;
	if (!strcmp(argv[3], "first") || !strcmp(argv[3], "second"))
		status = game(e, words, &peer, argv[3][0] == 'f', count);
	else if (!strcmp(argv[3], "ping") || !strcmp(argv[3], "pong"))
		status = player(e, words, &peer, argv[3][1] == 'i', count);
	else if (!strcmp(argv[3], "wrong"))
		status = wrong(e, words);
	else if (!strcmp(argv[3], "orphan"))
		return orphan(e);
	if (exanet_close(e))
		return failed("close");
	return status;
}
