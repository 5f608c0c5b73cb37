/* stopped SOCKET NODE METHOD write|read|word|pending|absent: a client that waits while its pfd is stopped. It
 * prints "ready" before pfd is stopped, and "waiting" after a byte on standard input has said that it is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exanet.h>

static exanet *e;

/* Pages that nobody serves. */
static void *hung(void)
{
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register r = { .range = { (uintptr_t)p, 4096 }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &r))
		exit(2);
	return p;
}

static void *waits(void *number) { return (void *)(long)exanet_wait(e, (int)(long)number, -1); }

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static char here[4096];
	static uint64_t word;
	struct exanet_options o = { .socket = argv[1], .node = atoi(argv[2]), .method = atoi(argv[3]) };
	struct exanet_transfer t = { .local = here, .size = sizeof here };
	char group[32];
	const char *what = argv[4];
	enum { PAGES = 20 };
	pthread_t thread;
	int w = 0, r = 0, status = 0;
	snprintf(group, sizeof group, "c-%d", getpid());
	o.group = group;
	if (argc != 5 || exanet_attach(&e, &o))
		return fprintf(stderr, "%s\n", exanet_error()), 1;
	const int pending = !strcmp(what, "pending");
	void *there = pending ? hung() : mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	exanet_export(e, there, PAGES * 4096, &t.remote);
	if (pending && ((w = exanet_write(e, &t)) < 0 || (r = exanet_read(e, &t)) < 0))
		return 3;
	say("ready");
	getchar();
	say("waiting");
	if (pending && !pthread_create(&thread, NULL, waits, (void *)(long)w))
		status = exanet_wait(e, r, -1);
	else if (!strcmp(what, "word"))
		status = exanet_wait_word(e, &word, 1, -1);
	else if (!strcmp(what, "absent"))
		for (int i = 0; i < PAGES && !status; i++) {
			t.offset = i * sizeof here;
			status = (w = exanet_write(e, &t)) < 0 ? w : exanet_wait(e, w, -1);
		}
	else if (!strcmp(what, "read"))
		status = (r = exanet_read(e, &t)) < 0 ? r : exanet_wait(e, r, -1);
	else if ((w = exanet_write(e, &t)) < 0 || (r = exanet_write(e, &t)) < 0 ||
		 (status = exanet_wait(e, w, -1)) || (status = exanet_wait(e, r, -1)))
		status = 4;
	if (status)
		return fprintf(stderr, "%d %s\n", status, exanet_error()), 5;
	return exanet_close(e) != 0;
}
