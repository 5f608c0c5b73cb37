/* ends SOCKET METHOD wait|late|word|read|abort|hung|close|number: a client whose pfd ends without a message.
 * It prints the results of its calls; a call that hangs ends in SIGALRM. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exanet.h>

static int late;

/* The library's check of the socket. With late it is held from before the end until after it. */
ssize_t recv(int s, void *b, size_t n, int flags)
{
	struct pollfd p = { .fd = s };
	if (late)
		poll(&p, 1, -1);
	return recvfrom(s, b, n, flags, NULL, NULL);
}

/* A page that nobody serves. */
static void *hung(void)
{
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register r = { .range = { (uintptr_t)p, 4096 }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &r))
		_exit(77);
	return p;
}

int main(int argc, char **argv)
{
	static char from[64];
	static uint64_t to[8];
	struct exanet_options o = { .socket = argv[1], .method = argc > 2 ? atoi(argv[2]) : 0 };
	struct exanet_transfer t = { .local = from, .size = sizeof from };
	const char *what = argc == 4 ? argv[3] : "";
	exanet *e;
	int number;
	if (argc != 4 || exanet_attach(&e, &o))
		return 1;
	alarm(10);
	exanet_export(e, strcmp(what, "hung") ? to : hung(), sizeof to, &t.remote);
	if (!strcmp(what, "close")) {
		getchar();
		return exanet_close(e) != 0;
	}
	if (!strcmp(what, "number")) {
		exanet_wait(e, 1234, 0);
		puts(exanet_error());
		return exanet_close(e) != 0;
	}
	number = strcmp(what, "read") ? exanet_write(e, &t) : exanet_read(e, &t);
	late = strcmp(what, "wait") && strcmp(what, "abort") && strcmp(what, "hung");
	if (!strcmp(what, "abort")) {
		printf("%d", exanet_write(e, &t) < 0);
		printf(" %d\n", exanet_abort(e, number) < 0);
	} else {
		printf("%d\n", strcmp(what, "word") ? exanet_wait(e, number, -1) : exanet_wait_word(e, to, 7, -1));
	}
	return exanet_close(e) != 0;
}
