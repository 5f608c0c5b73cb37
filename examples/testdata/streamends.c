/* streamends SOCKET NODE COMMAND [ARGUMENT]...: ends of streams and waiting for them, for the tests. */
#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../libexanet/stream.h"

static exanet *e;

static int failed(const char *what)
{
	printf("%s: %s\n", what, exanet_error());
	return 1;
}

static exanet_stream *connected(const char *address, const char *part)
{
	exanet_stream *x;
	if (exanet_connect(e, address, &x, -1) || exanet_stream_send(x, part, 1, -1) != 1) {
		failed("connect");
		exit(1);
	}
	return x;
}

static void *send_until(void *arg)
{
	static const char b[7000];
	ssize_t n;
	while ((n = exanet_stream_send(arg, b, sizeof b, -1)) >= 0)
		;
	printf("send: %zd\n", n);
	return NULL;
}

/* reset says when bytes have gone both ways, as far as the part permits, and then how both directions end. */
static int reset(const char *address, const char *part)
{
	exanet_stream *x = connected(address, part);
	char b[5000];
	pthread_t t;
	ssize_t n = 1;
	if (*part != 'i')
		pthread_create(&t, NULL, send_until, x);
	if (*part == 'e' || *part == 'w')
		n = exanet_stream_recv(x, b, sizeof b, -1);
	puts("busy");
	while (n > 0)
		n = exanet_stream_recv(x, b, sizeof b, -1);
	printf("receive: %zd: %s\n", n, exanet_error());
	if (*part == 'i')
		printf("send: %zd\n", exanet_stream_send(x, b, 1, -1));
	else
		pthread_join(t, NULL);
	exanet_stream_close(x);
	return 0;
}

/* stop stops its peer, an echo, until nothing more can be sent: no byte is lost. */
static int stop(const char *address, pid_t peer)
{
	exanet_stream *x = connected(address, "e"), *y;
	const size_t most = (1 << 20) + 300000;
	unsigned char *out = malloc(most), *in = malloc(most);
	size_t sent = 0, got = 0;
	ssize_t n;
	for (size_t i = 0; i < most; i++)
		out[i] = i * 2654435761u >> 11;
	kill(peer, SIGSTOP);
	while ((n = exanet_stream_send(x, out + sent, most - sent < 30000 ? most - sent : 30000, 50)) > 0)
		sent += n;
	if (n != -EAGAIN || sent == most)
		printf("%zu bytes were sent, %zd\n", sent, n);
	if ((n = exanet_connect(e, address, &y, 50)) != -ETIMEDOUT)
		printf("a stopped process has answered: %zd\n", n);
	kill(peer, SIGCONT);
	while (got < most) {
		if (sent < most && (n = exanet_stream_send(x, out + sent, most - sent, 0)) > 0)
			sent += n;
		if ((n = exanet_stream_recv(x, in + got, most - got, sent < most ? 0 : -1)) > 0)
			got += n;
		else if (n != -EAGAIN)
			return failed("receive");
	}
	if (memcmp(in, out, most))
		puts("other bytes came");
	free(in);
	free(out);
	return exanet_stream_close(x) ? failed("close") : 0;
}

/* stopped stops all threads of a process. */
static void stopped(pid_t pid)
{
	char name[300];
	kill(pid, SIGSTOP);
	for (bool runs = true; runs;) {
		runs = false;
		snprintf(name, sizeof name, "/proc/%d/task", pid);
		DIR *d = opendir(name);
		for (struct dirent *t; (t = readdir(d));) {
			char state = 'T';
			snprintf(name, sizeof name, "/proc/%d/task/%s/stat", pid, t->d_name);
			FILE *f = *t->d_name == '.' ? NULL : fopen(name, "r");
			if (f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1)
				runs |= state != 'T';
			if (f)
				fclose(f);
		}
		closedir(d);
	}
}

/* hold stops pfd: calls that do not wait return, those with a timeout return in time, and nothing is lost. */
static int hold(const char *address, pid_t pfd)
{
	exanet_stream *x = connected(address, "e"), *y;
	const size_t most = (2 << 20) + 300000;
	unsigned char *out = malloc(most), *in = malloc(most);
	size_t sent = 0, got = 0;
	ssize_t n;
	for (size_t i = 0; i < most; i++)
		out[i] = i * 2654435761u >> 11;
	stopped(pfd);
	for (size_t k = 1; (n = exanet_stream_send(x, out + sent, k, 0)) > 0; k = k < 30000 ? 3 * k : k)
		sent += n;
	if (n != -EAGAIN || sent == most)
		printf("%zu bytes were sent, %zd\n", sent, n);
	if ((n = exanet_stream_send(x, out + sent, 90000, 30)) != -EAGAIN || (n = exanet_stream_recv(x, in, most, 30)) != -EAGAIN || (n = exanet_connect(e, address, &y, 30)) != -ETIMEDOUT)
		printf("something has arrived: %zd\n", n);
	kill(pfd, SIGCONT);
	while (got < most) {
		if (sent < most && (n = exanet_stream_send(x, out + sent, most - sent, 0)) > 0)
			sent += n;
		if ((n = exanet_stream_recv(x, in + got, most - got, sent < most ? 0 : -1)) > 0)
			got += n;
		else if (n != -EAGAIN)
			return failed("receive");
	}
	if (memcmp(in, out, most))
		puts("other bytes came");
	free(in);
	free(out);
	return exanet_stream_close(x) ? failed("close") : 0;
}

/* leave ends its attachment while pfd is stopped: with a stream, and once with a ring alone. */
static int leave(const char *address, pid_t pfd)
{
	int fd;
	if (*address == '-' && exanet_ring(e, NULL, 0, &fd))
		return failed("ring");
	if (*address != '-')
		connected(address, "e");
	stopped(pfd);
	const int n = exanet_close(e);
	if (n != -ETIMEDOUT)
		printf("%d: %s\n", n, exanet_error());
	kill(pfd, SIGCONT);
	_exit(0);
}

/* last sends bytes, closes, and ends at once. */
static int last(const char *address, size_t size)
{
	exanet_stream *x;
	unsigned char *b = malloc(size);
	for (size_t i = 0; i < size; i++)
		b[i] = i * 7;
	if (exanet_connect(e, address, &x, -1) || exanet_stream_send(x, b, size, -1) != (ssize_t)size || exanet_stream_close(x))
		return failed("send");
	_exit(0);
}

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* settled waits until no stream is left, not even one that the peer has not answered yet. */
static size_t settled(void)
{
	struct streams *s = e->streams;
	for (bool any = true; any; poll(NULL, 0, 1)) {
		pthread_mutex_lock(&s->lock);
		any = s->nstale;
		for (unsigned i = 0; i < s->host.used; i++)
			any |= s->host.ends[i] != NULL;
		pthread_mutex_unlock(&s->lock);
	}
	return mallinfo2().uordblks;
}

/* churn opens and closes connections one after the other, and prints what they have left. */
static int churn(const char *address, int count)
{
	int fds = 0;
	size_t bytes = 0;
	char b[5];
	for (int i = 0; i < count; i++) {
		exanet_stream *x = connected(address, "e");
		if (exanet_stream_send(x, "hello", 5, -1) != 5)
			return failed("send");
		for (int n = 0; n < 5;)
			n += exanet_stream_recv(x, b + n, 5 - n, -1);
		if (memcmp(b, "hello", 5))
			puts("other bytes came");
		if (exanet_stream_close(x))
			return failed("close");
		if (i == count / 10) {
			bytes = settled();
			fds = descriptors();
		}
	}
	const size_t more = settled();
	if (descriptors() > fds)
		printf("%d descriptors, before %d\n", descriptors(), fds);
	if (more > bytes + 4096)
		printf("%zu bytes, before %zu\n", more, bytes);
	if (e->streams->used != e->streams->nplaces)
		printf("%u places that are not used again\n", e->streams->used - e->streams->nplaces);
	return 0;
}

/* sleep_for waits for the descriptor of streams, after one call of each kind has found nothing. */
static int sleep_for(int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };
	const int n = poll(&p, 1, 60000);
	if (n != 1)
		puts("nothing has woken the program for a minute");
	return n == 1 ? exanet_stream_arm(e) : -ETIMEDOUT;
}

/* loop is an echo of one thread that never waits in a call: it serves connections until its standard input ends. */
static int loop(int connections)
{
	enum { MOST = 16, BUFFER = 10000 };
	static struct { exanet_stream *x; size_t from, to; bool over; char b[BUFFER]; } all[MOST];
	exanet_listener *l;
	char text[64];
	const int fd = exanet_stream_fd(e);
	int open = 0, ended = 0, error = exanet_stream_arm(e);
	if (fd < 0 || error || exanet_listen(e, 80, &l) || exanet_listener_address(l, text, sizeof text))
		return failed("listen");
	puts(text);
	while (ended < connections && !error) {
		bool busy = false;
		if (open < MOST && !exanet_accept(l, &all[open].x, 0)) {
			open++;
			busy = true;
		}
		for (int i = 0; i < open; i++) {
			if (all[i].over)
				continue;
			ssize_t n = -EAGAIN;
			if (all[i].from < all[i].to)
				n = exanet_stream_send(all[i].x, all[i].b + all[i].from, all[i].to - all[i].from, 0);
			else if ((n = exanet_stream_recv(all[i].x, all[i].b, BUFFER, 0)) >= 0)
				all[i].from = all[i].to = 0;
			if (n == -EAGAIN)
				continue;
			busy = true;
			if (n > 0 && all[i].from < all[i].to) {
				all[i].from += n;
			} else if (n > 0) {
				all[i].to = n;
			} else {
				all[i].over = true;
				ended++;
				if (n < 0 || exanet_stream_close(all[i].x))
					failed("serve");
			}
		}
		if (!busy)
			error = sleep_for(fd);
	}
	return error ? failed("sleep") : 0;
}

/* client exchanges bytes with an echo by one thread that sleeps in poll(2) alone, on one connection for each
 * address. */
static int client(const char *address, int connections, size_t total)
{
	enum { MOST = 16 };
	struct { exanet_stream *x; size_t sent, got; } all[MOST] = { 0 };
	static unsigned char out[65536], in[65536];
	const int fd = exanet_stream_fd(e);
	int left = connections, error = 0;
	for (int i = 0; i < connections; i++)
		if (exanet_connect(e, address, &all[i].x, 0))
			return failed("connect");
	while (left && !error) {
		bool busy = false;
		for (int i = 0; i < connections; i++) {
			if (all[i].got == total)
				continue;
			size_t n = total - all[i].sent < sizeof out ? total - all[i].sent : sizeof out;
			for (size_t k = 0; k < n; k++)
				out[k] = (all[i].sent + k) * 2654435761u >> 13;
			const ssize_t sent = n ? exanet_stream_send(all[i].x, out, n, 0) : -EAGAIN;
			const ssize_t got = exanet_stream_recv(all[i].x, in, sizeof in, 0);
			if ((sent < 0 && sent != -EAGAIN) || (got <= 0 && got != -EAGAIN))
				return failed("exchange");
			busy |= sent > 0 || got > 0;
			all[i].sent += sent > 0 ? sent : 0;
			for (ssize_t k = 0; k < got; k++, all[i].got++)
				if (in[k] != (unsigned char)(all[i].got * 2654435761u >> 13))
					return printf("byte %zu is wrong\n", all[i].got);
			if (all[i].got == total) {
				left--;
				if (exanet_stream_close(all[i].x))
					failed("close");
			}
		}
		if (!busy && left)
			error = sleep_for(fd);
	}
	return error ? failed("sleep") : 0;
}

/* late connects to a process that never answers, and sleeps until the descriptor wakes it: no message announces
 * that. */
static int late(const char *address)
{
	exanet_stream *x;
	char b;
	ssize_t n;
	const int fd = exanet_stream_fd(e);
	if (exanet_connect(e, address, &x, 0))
		return failed("connect");
	while ((n = exanet_stream_recv(x, &b, 1, 0)) == -EAGAIN)
		if (sleep_for(fd))
			return failed("sleep");
	printf("%zd: %s\n", n, exanet_error());
	return exanet_stream_close(x);
}

int main(int argc, char **argv)
{
	struct exanet_options o = { .socket = argv[1], .flags = EXANET_ACCEPT_GROUP };
	int status = 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 5)
		return 2;
	o.node = atoi(argv[2]);
	if (exanet_attach(&e, &o))
		return failed("attach");
	const char *command = argv[3], *address = argv[4];
	if (!strcmp(command, "reset") && argc > 5)
		status = reset(address, argv[5]);
	else if (!strcmp(command, "stop") && argc > 5)
		status = stop(address, atoi(argv[5]));
	else if (!strcmp(command, "hold") && argc > 5)
		status = hold(address, atoi(argv[5]));
	else if (!strcmp(command, "leave") && argc > 5)
		status = leave(address, atoi(argv[5]));
	else if (!strcmp(command, "last") && argc > 5)
		status = last(address, atol(argv[5]));
	else if (!strcmp(command, "churn") && argc > 5)
		status = churn(address, atoi(argv[5]));
	else if (!strcmp(command, "loop"))
		status = loop(atoi(argv[4]));
	else if (!strcmp(command, "client") && argc > 6)
		status = client(address, atoi(argv[5]), atol(argv[6]));
	else if (!strcmp(command, "late"))
		status = late(address);
	exanet_close(e);	/* fails if pfd was killed */
	return status;
}
