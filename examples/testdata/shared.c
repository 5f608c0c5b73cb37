/* shared SOCKET METHOD: how the process and transfers see memory of exanet_alloc. It prints a line when its
 * attachment may be ended, and waits for that. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exanet.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, exanet_error()); exit(1); } } while (0)

static exanet *e;

/* arrives reports whether a byte arrives at p, by a write and by a read. */
static int arrives(char *p, char byte)
{
	static char other[8192];
	struct exanet_transfer out = { .local = other, .size = 4096 }, back = { .local = other + 4096, .size = 4096 };
	memset(other, byte, 4096);
	memset(other + 4096, 0, 4096);
	exanet_export(e, p, 4096, &out.remote);
	back.remote = out.remote;
	return !exanet_wait(e, exanet_write(e, &out), -1) && !memcmp(p, other, 4096) &&
		!exanet_wait(e, exanet_read(e, &back), -1) && !memcmp(other, other + 4096, 4096);
}

int main(int argc, char **argv)
{
	const int uffd = argc == 3 && !strcmp(argv[2], "uffd");
	struct exanet_options o = { .socket = argv[1], .method = uffd ? EXANET_UFFD : EXANET_GUP, .flags = EXANET_ACCEPT_GROUP };
	CHECK(argc == 3 && !exanet_attach(&e, &o));
	char *p = exanet_alloc(e, 4096), *stays = exanet_alloc(e, 4096);
	CHECK(p && stays && arrives(p, 1) && arrives(stays, 2));

	if (!fork()) {
		*p = 3;
		_exit(0);
	}
	CHECK(wait(NULL) > 0 && *p == (uffd ? 1 : 3));

	CHECK(!madvise(p, 4096, uffd ? MADV_DONTNEED : MADV_REMOVE) && !exanet_invalidate(e, p, 4096));
	CHECK(arrives(p, 4));

	/* Transfers access what is mapped there next, and not the earlier memory. */
	CHECK(!exanet_free(e, p, 4096) && mmap(p, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	memset(p, 5, 4096);
	CHECK(arrives(p, 6));

	/* A file that could shrink is not shared, and bounds that are not whole pages are refused, both
	 * without loss. */
	int fd = memfd_create("own", MFD_CLOEXEC);
	CHECK(fd >= 0 && !ftruncate(fd, 4096) && mmap(p, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p);
	memset(p, 7, 4096);
	CHECK(!exanet_share(e, p, 4096, fd, 0, 1) && arrives(p, 8) && !exanet_unshare(e, p, 4096));
	CHECK(!exanet_share(e, p + 1, 4096, fd, 0, 1) && arrives(p, 9));

	puts("ready");
	fflush(stdout);
	while ((p = exanet_alloc(e, 4096)))
		CHECK(!exanet_free(e, p, 4096));
	CHECK(!exanet_alloc(e, 4096) && !exanet_free(e, stays, 4096) && !exanet_close(e));
	return 0;
}
