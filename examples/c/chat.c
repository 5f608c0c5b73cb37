#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <exanet.h>

enum { TEXT = 7 * 8 };	/* bytes of a message's words 1 to 7 */

static exanet *e;
static struct exanet_remote peer;

/* print_messages prints what has arrived: word 0 has the number of bytes in its upper half. */
static int print_messages(void)
{
	struct exanet_message m;
	int n;
	while ((n = exanet_receive(e, &m, 0)) > 0) {
		const size_t bytes = m.words[0] >> 32;
		fwrite(m.words + 1, 1, bytes < 8 * (size_t)(n - 1) ? bytes : 8 * (size_t)(n - 1), stdout);
	}
	fflush(stdout);
	return n == -ETIMEDOUT ? 0 : n;
}

/* say sends what was typed, in as many messages as it needs. A full mailbox is asked again. */
static int say(const char *text, size_t left)
{
	uint64_t words[EXANET_WORDS];
	for (size_t n; left; text += n, left -= n) {
		int status;
		n = left < TEXT ? left : TEXT;
		words[0] = (uint64_t)n << 32;
		memcpy(words + 1, text, n);
		while ((status = exanet_send(e, &peer, words, 1 + (n + 7) / 8)) == -EREMOTEIO || status == -EBUSY)
			poll(NULL, 0, 1);
		if (status < 0)
			return status;
	}
	return 0;
}

/* chat NODE: prints its name and reads the other's from standard input, one line each. Then each line that is
 * typed here is printed there. */
int main(int argc, char **argv)
{
	struct exanet_options o = { .flags = EXANET_ACCEPT_GROUP, .node = argc > 1 ? atoi(argv[1]) : 0 };
	struct exanet_remote own;
	char text[4096];
	ssize_t n;
	int status = exanet_attach(&e, &o);

	if (status)
		goto out;
	exanet_export(e, text, sizeof text, &own);
	exanet_remote_text(&own, text, sizeof text);
	puts(text);
	fflush(stdout);
	for (n = 0; n < 96 && read(0, text + n, 1) == 1 && text[n] != '\n'; n++)	/* not a byte more */
		;
	text[n] = 0;
	if ((status = exanet_remote_parse(text, &peer)))
		goto out;
	struct pollfd wait[] = { { 0, POLLIN, 0 }, { exanet_fd(e), POLLIN, 0 } };
	status = wait[1].fd < 0 ? wait[1].fd : 0;
	while (!status && !(status = exanet_arm(e, wait[1].fd)) && !(status = print_messages())) {
		if (poll(wait, 2, -1) < 0 || !wait[0].revents)
			continue;
		if ((n = read(0, text, sizeof text)) <= 0)
			break;
		status = say(text, n);
	}
out:
	if (status)
		fprintf(stderr, "chat: %s\n", exanet_error());
	exanet_close(e);
	return status != 0;
}
