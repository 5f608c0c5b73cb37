/* messages SOCKET NODE COMMAND [COUNT]: prints its remote, reads its peer's from standard input, and exchanges
 * messages with it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>

#include <exanet.h>

static int failed(const char *what)
{
	printf("%s: %s\n", what, exanet_error());
	return 1;
}

/* send_message waits while pfd does not read the messages. */
static int send_message(exanet *e, const struct exanet_remote *peer, const uint64_t *words, int n)
{
	int number;
	while ((number = exanet_send(e, peer, words, n)) == -EBUSY)
		;
	return number;
}

/* echo sends each message back, until one whose second word is 0. */
static int echo(exanet *e, const struct exanet_remote *peer)
{
	struct exanet_message m;
	for (;;) {
		const int n = exanet_receive(e, &m, -1);
		if (n < 0)
			return failed("receive");
		if (m.node != peer->node || m.pdid != peer->pdid || m.interface != peer->interface || n != m.count) {
			printf("a message of %d words from node %u, PDID %u, interface %u\n", n, m.node, m.pdid, m.interface);
			return 1;
		}
		if (send_message(e, peer, m.words, n) < 1)
			return failed("send");
		if (n > 1 && !m.words[1])
			return 0;
	}
}

/* ping sends messages of 2 to 8 words and expects each back. */
static int ping(exanet *e, const struct exanet_remote *peer, int count)
{
	for (int i = count; i >= 0; i--) {
		const int n = 2 + i % 7;
		const uint64_t words[EXANET_WORDS] = { UINT64_C(0xabcdef0000000003), i, 3, 4, 5, 6, 7, UINT64_MAX };
		struct exanet_message m;
		const int number = send_message(e, peer, words, n);
		if (number != count - i + 1)
			return failed("send");
		if (exanet_receive(e, &m, -1) != n || memcmp(m.words, words, n * sizeof *words))
			return failed("receive");
	}
	return 0;
}

/* flood sends count messages to a peer that takes none, and prints how many were refused. */
static int flood(exanet *e, const struct exanet_remote *peer, int count)
{
	const uint64_t word = 0;
	int refused = 0, late = 0, last = 0;
	for (int i = 0; i < count; i++) {
		const int n = send_message(e, peer, &word, 1);
		if (n == -EREMOTEIO)
			refused++;
		else if (n != i + 1)
			return failed("send");
	}
	while (refused + late < count - 97) {
		struct exanet_message m;
		if (exanet_receive(e, &m, -1) != -EREMOTEIO || m.number <= (unsigned)last || m.number > (unsigned)count || m.node != peer->node)
			return failed("refusal");
		last = m.number;
		late++;
	}
	printf("%d refused\n", refused + late);
	return 0;
}

static void bad(const char *what, int got, int want)
{
	if (got != want)
		printf("%s: %d, want %d\n", what, got, want);
	else
		printf("%s: %s\n", what, exanet_error());
}

static int wrong(exanet *e, const struct exanet_remote *peer, const struct exanet_remote *own)
{
	uint64_t words[9] = { 0 };
	struct exanet_remote r = *peer;
	struct exanet_message m;
	bad("0 words", exanet_send(e, peer, words, 0), -EINVAL);
	bad("9 words", exanet_send(e, peer, words, 9), -EINVAL);
	bad("oneself", exanet_send(e, own, words, 1), -EINVAL);
	words[0] = 4;
	bad("wired", exanet_send(e, peer, words, 1), -EINVAL);
	words[0] = 1 << 18;
	bad("kind", exanet_send(e, peer, words, 1), -EINVAL);
	words[0] = 0;
	r.interface = 0;
	bad("unknown", exanet_send(e, &r, words, 1), -EINVAL);
	r.interface = 15;
	bad("driver", exanet_send(e, &r, words, 1), -EINVAL);
	r = *peer;
	r.node = 1 << 22;
	bad("node", exanet_send(e, &r, words, 1), -EINVAL);
	r.node = 77;
	bad("nowhere", exanet_send(e, &r, words, 1), -EREMOTEIO);
	r = *own;
	r.interface = 31;
	bad("slot", exanet_send(e, &r, words, 1), -EREMOTEIO);
	bad("timeout", exanet_receive(e, &m, 0), -ETIMEDOUT);
	fflush(stdout);
	const pid_t child = fork();
	if (!child) {
		bad("child sends", exanet_send(e, peer, words, 1), -EPERM);
		bad("child receives", exanet_receive(e, &m, 0), -EPERM);
		fflush(stdout);
		_exit(0);
	}
	return child < 0 || waitpid(child, NULL, 0) != child;
}

int main(int argc, char **argv)
{
	struct exanet_options o = { .socket = argv[1], .flags = EXANET_ACCEPT_GROUP };
	struct exanet_remote own, peer;
	char text[96];
	exanet *e;
	int status = 1;

	if (argc < 4)
		return 2;
	o.node = atoi(argv[2]);
	if (exanet_attach(&e, &o))
		return failed("attach");
	exanet_export(e, &o, sizeof o, &own);
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
	if (!strcmp(argv[3], "echo"))
		status = echo(e, &peer);
	else if (!strcmp(argv[3], "ping"))
		status = ping(e, &peer, count);
	else if (!strcmp(argv[3], "flood"))
		status = flood(e, &peer, count);
	else if (!strcmp(argv[3], "wrong"))
		status = wrong(e, &peer, &own);
	if (exanet_close(e))
		return failed("close");
	return status;
}
