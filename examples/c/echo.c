#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <exanet_stream.h>

static exanet *e;

/* copy_back sends all bytes of a connection back. */
static void copy_back(exanet_stream *x)
{
	char b[65536];
	ssize_t n;
	while ((n = exanet_stream_recv(x, b, sizeof b, -1)) > 0)
		if (exanet_stream_send(x, b, n, -1) != n)
			break;
	exanet_stream_close(x);
}

/* serve prints its address and serves one connection after the other. */
static int serve(void)
{
	exanet_listener *l;
	exanet_stream *x;
	char text[64];
	int status = exanet_listen(e, 7, &l);
	if (!status)
		status = exanet_listener_address(l, text, sizeof text);
	if (!status) {
		puts(text);
		fflush(stdout);
	}
	while (!status && !(status = exanet_accept(l, &x, -1)))
		copy_back(x);
	return status;
}

/* talk sends standard input to an address, and prints what comes back, until both have ended. It waits for both at
 * once: while nothing can be sent it goes on to receive. */
static int talk(const char *address)
{
	char in[4096], out[4096];
	exanet_stream *x;
	ssize_t n = 0, at = 0, end = 0;
	int status = exanet_connect(e, address, &x, -1), input = 0;
	if (status)
		return status;
	struct pollfd wait[] = { { 0, POLLIN, 0 }, { exanet_stream_fd(e), POLLIN, 0 } };
	while (!(status = exanet_stream_arm(e))) {
		while ((n = exanet_stream_recv(x, in, sizeof in, 0)) > 0)
			fwrite(in, 1, n, stdout);
		fflush(stdout);
		if (n != -EAGAIN)
			break;
		if (at < end && (n = exanet_stream_send(x, out + at, end - at, 0)) > 0)
			at += n;
		else if (at < end && n != -EAGAIN)
			break;
		wait[0].fd = at < end ? -1 : input;
		if (poll(wait, 2, -1) < 0 || !wait[0].revents)
			continue;
		at = 0;
		if ((end = read(0, out, sizeof out)) <= 0) {
			input = -1;
			if ((status = exanet_stream_shutdown(x)))
				break;
		}
	}
	return status ? status : n < 0 ? (int)n : exanet_stream_close(x);
}

/* echo NODE: sends back what arrives. echo NODE ADDRESS: talks to that. */
int main(int argc, char **argv)
{
	const struct exanet_options o = { .flags = EXANET_ACCEPT_GROUP, .node = argc > 1 ? atoi(argv[1]) : 0 };
	int status = exanet_attach(&e, &o);
	if (!status)
		status = argc > 2 ? talk(argv[2]) : serve();
	if (status)
		fprintf(stderr, "echo: %s\n", exanet_error());
	exanet_close(e);
	return status != 0;
}
