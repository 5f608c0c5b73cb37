/* limits SOCKET ACTION [TRUST]: attaches, trusting user TRUST if one is named, and
 *   use    allocates 1 MiB, writes into it, reads it back and frees it;
 *   fork   calls every function in a forked child, and then uses the attachment itself;
 *   wait   waits until it has no child;
 *   small  does the same as "use", by method touch, in a thread with the smallest stack;
 *   clock  attaches by method touch and closes ten times, while the time of day jumps;
 *   flight has so many descriptors in flight in a socket that no more can be sent;
 *   hold   prints "attached", waits for the end of its input, and exits.
 * It prints "ok", or what failed. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../libexanet/exanet.h"

enum { SIZE = 1 << 20 };

static exanet *e;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	puts("");
	fflush(stdout);
	_exit(1);
}

static void finish(int transfer, const char *what)
{
	const int status = transfer < 0 ? transfer : exanet_wait(e, transfer, 10000);
	if (status)
		die("%s: %s", what, status < 0 && status != EXANET_ONGOING ? exanet_error() : exanet_status(status));
}

static void use(char *p)
{
	static char from[65536], back[sizeof from];
	struct exanet_transfer t = { .local = from, .size = sizeof from };
	memset(from, 'w', sizeof from);
	exanet_export(e, p, SIZE, &t.remote);
	finish(exanet_write(e, &t), "write");
	t.local = back;
	finish(exanet_read(e, &t), "read");
	if (memcmp(from, back, sizeof from) || memcmp(from, p, sizeof from))
		die("other bytes came than were sent");
}

static void refused(int result, const char *what)
{
	if (result != -EPERM || !strstr(exanet_error(), "forked"))
		die("in the child %s gives %d: %s", what, result, exanet_error());
}

/* child calls every function that a child may not use. p is memory of the parent's. */
static void child(char *p, int transfer)
{
	static uint64_t word;
	static char own[4096];
	struct exanet_transfer t = { .local = own, .size = sizeof own };
	struct exanet_remote r;
	struct exanet_info info;
	struct exanet_stats stats;
	exanet_export(e, p, SIZE, &r);
	exanet_get_info(e, &info);
	exanet_get_stats(e, &stats);
	if (r.address || r.length || r.pdid || info.pdid || stats.pages_in)
		die("in the child something is named or counted");
	t.remote = (struct exanet_remote){ .address = (uintptr_t)p, .length = SIZE };
	refused(exanet_write(e, &t), "exanet_write");
	refused(exanet_read(e, &t), "exanet_read");
	refused(exanet_poll(e, transfer), "exanet_poll");
	refused(exanet_wait(e, transfer, 1000), "exanet_wait");
	refused(exanet_abort(e, transfer), "exanet_abort");
	refused(exanet_wait_word(e, &word, 0, 1000), "exanet_wait_word");
	refused(exanet_prefetch(e, own, sizeof own, 1), "exanet_prefetch");
	refused(exanet_share(e, own, sizeof own, 0, 0, 1), "exanet_share");
	refused(exanet_unshare(e, p, SIZE), "exanet_unshare");
	refused(exanet_invalidate(e, p, SIZE), "exanet_invalidate");
	refused(exanet_register(e, p, SIZE), "exanet_register");
	refused(exanet_unregister(e, p, SIZE), "exanet_unregister");
	refused(exanet_folio(e, p), "exanet_folio");
	refused(exanet_alloc(e, SIZE) ? 0 : -EPERM, "exanet_alloc");
	if (exanet_free(e, p, SIZE) || !madvise(p, SIZE, MADV_NORMAL))
		die("in the child exanet_free leaves its memory: %s", exanet_error());
	if (exanet_close(e))
		die("in the child exanet_close: %s", exanet_error());
	if (exanet_attach(&e, NULL) == 0)	/* a new attachment: no pfd listens on the environment's socket */
		die("in the child exanet_attach finds a pfd");
	_exit(0);
}

/* pages returns how many pages of addresses the process has. */
static long pages(void)
{
	long n = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%ld", &n) != 1)
		die("/proc/self/statm: %m");
	fclose(f);
	return n;
}

/* small attaches in a thread with the smallest stack. The library itself maps at most 1 MiB of addresses:
 * mlockall(2) with MCL_FUTURE pages in all of it. */
static void *small(void *options)
{
	struct exanet_options o = *(const struct exanet_options *)options, nowhere = { .socket = "/nowhere/pfd.sock" };
	o.method = EXANET_TOUCH;
	if (!exanet_attach(&e, &nowhere) || !strstr(exanet_error(), "no pfd answers"))
		die("no such socket: %s", exanet_error());
	const long before = pages();
	if (exanet_attach(&e, &o))
		die("attach: %s", exanet_error());
	if (pages() - before > 256)
		die("an attachment takes %ld pages of addresses", pages() - before);
	char *p = exanet_alloc(e, SIZE);
	if (!p)
		die("alloc: %s", exanet_error());
	use(p);
	if (exanet_free(e, p, SIZE) || exanet_close(e))
		die("end: %s", exanet_error());
	puts("ok");
	return NULL;
}

/* clock_gettime replaces the library's: each read sets the time of day forward by an hour. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
	const int result = syscall(SYS_clock_gettime, clock, t);
	if (clock == CLOCK_REALTIME)
		t->tv_sec -= 3600;
	return result;
}

/* jumps checks that the descriptors of each attachment are closed, so its thread's end was awaited. */
static int jumps(struct exanet_options o)
{
	o.method = EXANET_TOUCH;
	const int first = dup(0);
	close(first);
	for (int i = 0; i < 10; i++)
		if (exanet_attach(&e, &o) || exanet_close(e))
			die("the time of day jumps: %s", exanet_error());
	const int next = dup(0);
	if (next != first)
		die("the time of day jumps: the next descriptor is %d, and was %d", next, first);
	puts("ok");
	return 0;
}

/* flight leaves descriptors unread in a socket until the kernel accepts no more of this user's. */
static void flight(void)
{
	int ends[2], fds[16];
	char byte = 0;
	union { char b[CMSG_SPACE(sizeof fds)]; struct cmsghdr align; } control = { 0 };
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.b, .msg_controllen = sizeof control.b };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends))
		die("socketpair: %m");
	for (int i = 0; i < 16; i++)
		fds[i] = ends[0];
	*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fds) };
	memcpy(CMSG_DATA(c), fds, sizeof fds);
	while (sendmsg(ends[1], &msg, MSG_DONTWAIT) > 0)
		;
	if (errno != ETOOMANYREFS)
		die("descriptors under way: %m");
}

static int in_small_thread(const struct exanet_options *o)
{
	pthread_attr_t smallest;
	pthread_t thread;
	pthread_attr_init(&smallest);
	if (pthread_attr_setstacksize(&smallest, PTHREAD_STACK_MIN) || pthread_create(&thread, &smallest, small, (void *)o))
		die("no thread with a stack of %ld bytes", (long)PTHREAD_STACK_MIN);
	return pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	uint32_t trust = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
	const struct exanet_options o = { .socket = argc > 2 ? argv[1] : "", .flags = argc > 3 ? EXANET_TRUST : 0, .trust = &trust, .ntrust = argc > 3 };
	if (argc < 3)
		die("usage: limits SOCKET ACTION [TRUST]");
	if (!strcmp(argv[2], "small"))
		return in_small_thread(&o);
	if (!strcmp(argv[2], "flight"))
		flight();
	if (!strcmp(argv[2], "clock"))
		return jumps(o);
	if (exanet_attach(&e, &o))
		die("attach: %s", exanet_error());
	char *p = exanet_alloc(e, SIZE);
	if (!p)
		die("alloc: %s", exanet_error());
	use(p);
	if (!strcmp(argv[2], "fork")) {
		struct exanet_transfer t = { .local = p, .size = 4096 };
		int status = 0;
		exanet_export(e, p + 4096, 4096, &t.remote);
		const int transfer = exanet_write(e, &t);
		const pid_t pid = fork();
		if (!pid)
			child(p, transfer);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			die("the child ended with %#x", status);
		finish(transfer, "a write that was under way");
		use(p);
	} else if (!strcmp(argv[2], "wait")) {
		int n = 0;
		if (!fork())
			_exit(0);
		while (wait(NULL) > 0)
			n++;
		if (n != 1 || errno != ECHILD)
			die("%d children ended: %m", n);
		use(p);
	}
	if (!strcmp(argv[2], "hold")) {
		puts("attached");
		fflush(stdout);
		while (getchar() != EOF)
			;
	} else if (exanet_free(e, p, SIZE)) {
		die("free: %s", exanet_error());
	}
	if (exanet_close(e))
		die("close: %s", exanet_error());
	puts("ok");
	return 0;
}
