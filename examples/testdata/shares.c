/* shares SOCKET close|stale|own|sleeps|memory|forks METHOD: what the library leaves in the process. Prints what is wrong. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exanet.h>

enum { SIZE = 1 << 16 };

static struct exanet_options options;

static exanet *attach(unsigned flags)
{
	exanet *e;
	options.flags = flags;
	if (exanet_attach(&e, &options)) {
		printf("%s\n", exanet_error());
		exit(1);
	}
	return e;
}

static int count(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* A child that lives on has copies of all descriptors: closing takes no longer and leaves nothing. */
static int closes(void)
{
	const int fds = count("/proc/self/fd"), threads = count("/proc/self/task");
	exanet *e = attach(0);
	pid_t child = fork();
	if (!child)
		for (;;)
			pause();
	if (exanet_close(e))
		printf("%s\n", exanet_error());
	if (count("/proc/self/fd") != fds || count("/proc/self/task") != threads)
		printf("%d descriptors and %d threads are left\n", count("/proc/self/fd") - fds, count("/proc/self/task") - threads);
	kill(child, SIGKILL);
	return waitpid(child, NULL, 0) != child;
}

/* Writes size bytes to p by the device, and counts those that have not arrived. */
static int wrong(exanet *e, unsigned char *p, int value)
{
	static unsigned char from[SIZE];
	struct exanet_transfer t = { .local = from, .size = SIZE };
	int bad = 0, number, status;
	memset(from, value, SIZE);
	exanet_export(e, p, SIZE, &t.remote);
	if ((number = exanet_write(e, &t)) < 0 || (status = exanet_wait(e, number, -1)))
		return -1;
	for (int i = 0; i < SIZE; i++)
		bad += p[i] != value;
	return bad;
}

/* A buffer unmapped by munmap takes no write that is for its successor at the address. */
static int stale(void)
{
	exanet *e = attach(0);
	int bad;
	for (int i = 0; i < 3; i++) {
		unsigned char *p = exanet_alloc(e, SIZE), *q;
		memset(p, 1, SIZE);
		if ((bad = wrong(e, p, 2)))
			printf("%d bytes are wrong\n", bad);
		munmap(p, SIZE);
		if (i == 1) {
			q = mmap(p, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		} else if (!(q = exanet_alloc(e, SIZE))) {
			printf("%s\n", exanet_error());
			return 1;
		}
		memset(q, 1, SIZE);
		if ((bad = wrong(e, q, 3 + i)))
			printf("after munmap %d bytes of %s are wrong\n", bad, i == 1 ? "other memory" : "the next buffer");
		if (i == 1 ? munmap(q, SIZE) : exanet_free(e, q, SIZE))
			printf("%s\n", exanet_error());
	}
	/* Without a userfaultfd pfd does not learn of the munmap: the next share there is refused. */
	exanet_close(e);
	e = attach(EXANET_NO_USERFAULTFD);
	int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || ftruncate(fd, SIZE) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) || exanet_share(e, p, SIZE, fd, 0, 1) ||
	    mmap(p, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != p || exanet_share(e, p, SIZE, fd, 0, 1) != -EINVAL)
		printf("a share in the place of another one is not refused: %s\n", exanet_error());
	return exanet_close(e);
}

/* Reports whether memory at p is excluded from core dumps (proc(5), VmFlags). */
static int left_out(const void *p)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	uintptr_t from, to;
	int here = 0;
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
			here = from <= (uintptr_t)p && (uintptr_t)p < to;
		if (here && !strncmp(line, "VmFlags:", 8)) {
			fclose(f);
			return strstr(line, " dd") != NULL;
		}
	}
	fclose(f);
	return -1;
}

/* Returns why memory at p cannot be registered with the program's own userfaultfd; 0: it can. */
static int taken(void *p)
{
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY), error;
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register r = { .range = { (uintptr_t)p, SIZE }, .mode = UFFDIO_REGISTER_MODE_WP };
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		return -1;
	error = ioctl(fd, UFFDIO_REGISTER, &r) ? errno : 0;
	close(fd);
	return error;
}

/* Core dumps, and userfaultfds of the program's own, by the flags of the attachment. */
static int own(void)
{
	for (int with = 0; with < 2; with++) {
		exanet *e = attach(with ? EXANET_DUMP | EXANET_NO_USERFAULTFD : 0);
		struct exanet_info info;
		exanet_get_info(e, &info);
		int fd = memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		char *p = exanet_alloc(e, SIZE), *q = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (ftruncate(fd, SIZE) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) || !p || exanet_share(e, q, SIZE, fd, 0, 1))
			printf("%s\n", exanet_error());
		if (left_out(p) != !with || left_out(q) != !with)
			printf("with flags %d: exanet_alloc is left out of dumps: %d, exanet_share: %d\n", with, left_out(p), left_out(q));
		if (taken(q) != (with ? 0 : EBUSY))
			printf("with flags %d: own userfaultfd of exanet_share: %s\n", with, strerror(taken(q)));
		if (info.method != EXANET_UFFD && taken(p) != (with ? 0 : EBUSY))
			printf("with flags %d: own userfaultfd of exanet_alloc: %s\n", with, strerror(taken(p)));
		if (exanet_unshare(e, q, SIZE))
			printf("%s\n", exanet_error());
		if (left_out(q) || taken(q))
			printf("with flags %d: after exanet_unshare: left out of dumps: %d, own userfaultfd: %s\n", with, left_out(q), strerror(taken(q)));
		if (exanet_close(e))
			printf("%s\n", exanet_error());
		if (taken(p))
			printf("with flags %d: after exanet_close: own userfaultfd: %s\n", with, strerror(taken(p)));
	}
	return 0;
}

/* Pages that never arrive delay only their own transfers, until they arrive: other memory is unaffected. */
static int sleeps(void)
{
	enum { HUNG = 4 };
	exanet *e = attach(0);
	static char from[4096];
	char *p = mmap(NULL, (HUNG + 16) * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC), hung[HUNG], number, status = 0;
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register r = { .range = { (uintptr_t)p, HUNG * 4096 }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct exanet_transfer t = { .local = from, .size = sizeof from };
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &r)) {
		printf("userfaultfd: %s\n", strerror(errno));
		return 1;
	}
	exanet_export(e, p, (HUNG + 16) * 4096, &t.remote);
	for (int i = 0; i < HUNG; i++, t.offset += 4096)
		hung[i] = exanet_write(e, &t);
	for (; t.offset < (HUNG + 16) * 4096 && !status; t.offset += 4096)
		status = (number = exanet_write(e, &t)) < 0 ? number : exanet_wait(e, number, -1);
	if (status)
		printf("other pages: %d (%s)\n", status, exanet_error());
	for (int i = 0; i < HUNG; i++)
		if ((status = exanet_poll(e, hung[i])) != EXANET_ONGOING)
			printf("a page that does not come: %d\n", status);
	close(fd);	/* they arrive */
	for (int i = 0; i < HUNG; i++)
		if ((status = exanet_wait(e, hung[i], -1)))
			printf("a page that comes late: %d, %s\n", status, exanet_error());
	return exanet_close(e);
}

/* Memory that the kernel does not page in, huge pages of which none is reserved, is status 11 and not 2. */
static int memory(void)
{
	exanet *e = attach(0);
	static char from[4096];
	void *p = mmap(NULL, 1 << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
	struct exanet_transfer t = { .local = from, .size = sizeof from };
	int number, status;
	if (p == MAP_FAILED)
		return 77;	/* this kernel has none */
	exanet_export(e, p, 1 << 21, &t.remote);
	status = (number = exanet_write(e, &t)) < 0 ? number : exanet_wait(e, number, -1);
	if (status != 11)
		printf("huge pages of which there are none: %d, %s\n", status, exanet_error());
	return exanet_close(e);
}

/* Forks a child while the library sends pfd a memory request with a userfaultfd. */
static pid_t (*forks)(void);
static int children, counts[2], hold[2];

static pid_t unhandled(void) { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }	/* as in _Fork(3), no handler runs */

/* The child's copies of userfaultfds. */
static int copies(void)
{
	char path[64], to[64];
	int n = 0;
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		const ssize_t size = readlink(path, to, sizeof to);
		n += size > 0 && (size_t)size < sizeof to && memmem(to, size, "[userfaultfd]", 13);
	}
	return n;
}

/* The library's sendmsg. */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	const int type = *(unsigned char *)m->msg_iov->iov_base;
	if (forks && m->msg_control && (type == 5 || type == 8)) {	/* SHARE, REGISTER */
		const pid_t child = forks();
		char c;
		if (!child) {
			const int n = copies();
			close(hold[1]);
			_exit(write(counts[1], &n, sizeof n) != sizeof n || read(hold[0], &c, 1));	/* lives as long as the process */
		}
		children += child > 0;
	}
	return syscall(SYS_sendmsg, fd, m, flags);
}

/* Children that are forked while memory is shared delay no munmap, and do not keep the memory registered. */
static int in_forks(void)
{
	static pid_t (*const by[])(void) = { fork, unhandled };
	if (pipe(counts) || pipe(hold))
		return 1;
	for (int i = 0; i < 2; i++) {
		exanet *e = attach(0);
		struct exanet_info info;
		exanet_get_info(e, &info);
		int all = 0, n;
		children = 0;
		forks = by[i];
		char *p = exanet_alloc(e, SIZE), *q = exanet_alloc(e, SIZE), *r = exanet_alloc(e, SIZE);
		/* Without seals pfd does not share it, and takes no userfaultfd. */
		int fd = memfd_create("unsealed", MFD_CLOEXEC);
		char *s = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (!p || !q || !r || ftruncate(fd, SIZE) || exanet_share(e, s, SIZE, fd, 0, 1))
			printf("%s\n", exanet_error());
		forks = NULL;
		if (children < 4)
			printf("%d children\n", children);
		for (int k = 0; k < children; k++)
			all += read(counts[0], &n, sizeof n) == sizeof n ? n : 1;
		if (all && by[i] == fork)
			printf("%d userfaultfds are in children\n", all);
		if (!all && by[i] != fork)
			printf("children have no userfaultfds: what is looked at?\n");
		p[0] = q[0] = r[0] = s[0] = 1;
		if (exanet_free(e, p, SIZE) || munmap(q, SIZE / 2) || munmap(q + SIZE / 2, SIZE / 2) || munmap(s, SIZE))
			printf("%s\n", exanet_error());
		if (exanet_close(e))
			printf("%s\n", exanet_error());
		if (info.method != EXANET_UFFD && taken(r))
			printf("after exanet_close: own userfaultfd: %s\n", strerror(taken(r)));
		munmap(r, SIZE);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	options.socket = argv[1];
	options.method = atoi(argv[3]);
	alarm(60);
	return !strcmp(argv[2], "close") ? closes() : !strcmp(argv[2], "stale") ? stale() : !strcmp(argv[2], "own") ? own() :
	       !strcmp(argv[2], "sleeps") ? sleeps() : !strcmp(argv[2], "memory") ? memory() : in_forks();
}
