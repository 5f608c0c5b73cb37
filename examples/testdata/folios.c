/* folios SOCKET METHOD PAGES|WORDS: allocates memory with EXANET_FOLIOS, writes into it by the device, and frees
 * it. A touch must bring in PAGES pages, or exanet_folio must fail with WORDS. Prints what is wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exanet.h>

enum { PAGE = 4096, SIZE = 3 << 20 };

static int older;	/* pfd refuses folios */
static int tables;	/* the device does not use the page tables of processes */

/* The library's sendmsg. With older, a SHARE of folios has reserved bytes that are not zero, which pfd refuses
 * as one without folios refuses these. */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	unsigned char *b = m->msg_iov->iov_base;
	if (older && b[0] == 5 && b[100])
		b[103] = 1;
	const ssize_t n = syscall(SYS_sendmsg, fd, m, flags);
	if (older && b[0] == 5)
		b[103] = 0;
	return n;
}

/* The library's recvmsg. With tables, bit 27 of CAPS in WELCOME is zero. */
ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	const ssize_t n = syscall(SYS_recvmsg, fd, m, flags);
	unsigned char *b = m->msg_iov->iov_base;
	if (tables && n > 99 && b[0] == 2)
		b[99] &= ~(1 << 3);
	return n;
}

/* Returns how many of the pages from p on are in memory. */
static int there(char *p, int pages)
{
	unsigned char v[SIZE / PAGE];
	int n = 0;
	if (mincore(p, (size_t)pages * PAGE, v))
		return -errno;
	for (int i = 0; i < pages; i++)
		n += v[i] & 1;
	return n;
}

static void failed(const char *what)
{
	printf("%s: %s\n", what, exanet_error());
	exit(1);
}

/* Writes a byte into each of n places by the device, and reports those that have not come. */
static void writes(exanet *e, char *p, size_t step, int n)
{
	static char from;
	for (int i = 0; i < n; i++) {
		struct exanet_transfer t = { .local = &from, .size = 1, .offset = i * step + 1 };
		from = i + 1;
		exanet_export(e, p, SIZE, &t.remote);
		const int number = exanet_write(e, &t);
		const int status = number < 0 ? number : exanet_wait(e, number, -1);
		if (status)
			printf("write %d: %d: %s, %s\n", i, status, exanet_status(status), exanet_error());
		else if (p[i * step + 1] != (char)(i + 1) || p[i * step] || p[i * step + 2])
			printf("write %d: wrong bytes\n", i);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	const int want = atoi(argv[3]);
	struct exanet_options o = { .socket = argv[1], .method = atoi(argv[2]), .flags = EXANET_FOLIOS };
	exanet *e, *without;
	older = !strcmp(argv[3], "this pfd");
	tables = !strcmp(argv[3], "page tables");
	alarm(60);
	if (exanet_attach(&e, &o))
		failed("attach");
	o.flags = 0;
	if (exanet_attach(&without, &o))
		failed("attach");
	char *p = exanet_alloc(e, SIZE), *q = exanet_alloc(without, SIZE), *small = exanet_alloc(e, 1);
	if (!p || !q || !small)
		failed("alloc");
	if (exanet_folio(e, q) != -EINVAL || exanet_folio(e, p + PAGE) != -EINVAL || exanet_folio(e, NULL) != -EINVAL)
		printf("memory that exanet_alloc did not return has folios\n");
	const int single = exanet_folio(without, q), got = exanet_folio(e, p);
	if (single != 1)
		printf("without folios: %d pages\n", single);
	if (want ? got != want : got != -EOPNOTSUPP || !strstr(exanet_error(), argv[3]))
		printf("%d pages come in together: %s; want %s\n", got, exanet_error(), argv[3]);
	if (exanet_folio(e, small) != -EOPNOTSUPP)
		printf("one page has folios\n");
	if (want && ((uintptr_t)p % (want * PAGE) || there(p, SIZE / PAGE)))
		printf("a new buffer is at %p, and %d pages of it are there\n", (void *)p, there(p, SIZE / PAGE));
	/* The first byte of each folio brings in all of it. */
	const int step = (want ? want : 1) * PAGE;
	for (int n = 1; n <= 8; n += 7) {
		writes(e, p, step, n);
		if (want && there(p, SIZE / PAGE) != n * want)
			printf("%d writes bring in %d pages\n", n, there(p, SIZE / PAGE));
	}
	writes(without, q, PAGE, 8);
	if (exanet_free(e, p, SIZE) || exanet_free(e, small, 1) || exanet_free(without, q, SIZE))
		failed("free");
	if (there(p, 1) != -ENOMEM || there(p + SIZE - PAGE, 1) != -ENOMEM)
		printf("freed memory is still mapped\n");
	/* The address may be used again. */
	if (!(p = exanet_alloc(e, SIZE)))
		failed("alloc again");
	munmap(p, SIZE);	/* not by exanet_free */
	for (int i = 0; i < 3; i++) {
		if (!(q = exanet_alloc(e, SIZE)))
			failed("alloc after munmap");
		writes(e, q, step, 3);
		if (want && exanet_folio(e, q) != want)
			printf("after munmap %d pages come in together\n", exanet_folio(e, q));
		if (exanet_free(e, q, SIZE))
			failed("free after munmap");
	}
	return exanet_close(without) | exanet_close(e);
}
