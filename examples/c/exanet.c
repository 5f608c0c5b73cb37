/* A client of pfd in C, written against docs/attach.md and nothing else. The
 * numbers in comments are its sections.
 *
 *   exanet target SOCKET NODE METHOD SIZE
 *     lets others write SIZE bytes into memory that nobody has touched; prints
 *     "NODE PDID GENERATION ADDRESS NOTIFY", waits for the completion words, checks the bytes
 *   exanet write SOCKET NODE METHOD SIZE  NODE PDID GENERATION ADDRESS NOTIFY
 *     writes SIZE bytes there
 *
 * gcc -std=c11 -O2 -pthread -o exanet exanet.c builds it. SOCKET is what pfd's
 * --socket is. METHOD is gup (pfd pages in) or touch (this program does). Exit
 * code 0: done.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { HELLO = 1, WELCOME, REFUSED, ENDED, MEMORY_OFFER = 10, MAPPED, HELPER };	/* 2 */
enum { HEADER = 72, HELLO_SIZE = 232, WELCOME_SIZE = 112, HELPER_SIZE = 80, TEXT_SIZE = 512, VERSION = 2 };
enum { DOORBELL = 0x1000, PACKETIZER = 0x2000, ASLEEP = 0x3000, KICK = 0x3004,
       EVENT = 0x3008, WAITERS = 0x300c, STATE = 0x3010, MEMORY = 0x4000 };	/* 3 */
enum { DONE_READY = 0, DONE_OK = 1, DONE_FAILED = 3 };
enum { DOORBELL_CHANNEL = 0, FAULT_CHANNEL = 1 };	/* of the packetizer */
#define FIRST_WORD UINT64_C(0x1122334455667788)
#define LAST_WORD UINT64_C(0x99aabbccddeeff00)

/* keeper is a task that shares this process's memory and can do nothing (9). */
struct keeper {
	int pid, pidfd, hold;		/* a file that this process has locked */
	int ptracer;
	uint32_t ready;
	unsigned char proof[16];
	_Alignas(16) unsigned char stack[8192];
};

struct attachment {
	struct keeper *keeper, *lent;	/* for pfd, for the helper */
	pid_t helper;		/* 0: none */
	int socket, eventfd, netlink;
	unsigned char *pages;	/* 3 */
	uint8_t slot, method;
	uint16_t pdid;
	uint32_t node, generation, pfd_port;
	struct ucred pfd;
};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Every access is one atomic load or store of the word's width (3). */
static uint32_t load32(const void *p) { return __atomic_load_n((const uint32_t *)p, __ATOMIC_SEQ_CST); }
static uint64_t load64(const void *p) { return __atomic_load_n((const uint64_t *)p, __ATOMIC_SEQ_CST); }
static void store32(void *p, uint32_t v) { __atomic_store_n((uint32_t *)p, v, __ATOMIC_SEQ_CST); }
static void store64(void *p, uint64_t v) { __atomic_store_n((uint64_t *)p, v, __ATOMIC_SEQ_CST); }

/* Numbers on the socket are little-endian and need not be aligned. */
static void put(unsigned char *m, int size, uint64_t v)
{
	for (int i = 0; i < size; i++)
		m[i] = v >> 8 * i;
}

static uint64_t get(const unsigned char *m, int size)
{
	uint64_t v = 0;
	for (int i = size - 1; i >= 0; i--)
		v = v << 8 | m[i];
	return v;
}

/* receive reads one message and its descriptors; -1 where there is none. */
static ssize_t receive(int s, unsigned char *m, size_t size, int *fds, int *nfds)
{
	union { char b[CMSG_SPACE(8 * sizeof(int))]; struct cmsghdr align; } control;
	struct iovec iov = { m, size };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.b, .msg_controllen = sizeof control.b };
	ssize_t n = recvmsg(s, &msg, MSG_CMSG_CLOEXEC);
	*nfds = 0;
	if (n <= 0)
		return -1;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			*nfds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(c), *nfds * sizeof(int));
		}
	return n;
}

#if defined __x86_64__
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define OWN_ARCH AUDIT_ARCH_AARCH64
#endif

/* keep is the keeper: system calls alone, in the steps of section 9. The thread
 * that made it waits for ready, and its errno may change until then. */
static int keep(void *arg)
{
	static struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),	/* little-endian */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_SETLKW, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	static const struct sock_fprog program = { sizeof filter / sizeof filter[0], filter };
	static const struct flock whole = { .l_type = F_WRLCK };
	struct keeper *k = arg;
	bool bound = (!k->hold || !syscall(SYS_close_range, 0, k->hold - 1, 0)) && !syscall(SYS_close_range, k->hold + 1, ~0U, 0);
	syscall(SYS_prctl, PR_SET_NAME, "exanet-keeper");
	syscall(SYS_prctl, PR_SET_PTRACER, k->ptracer);	/* EINVAL: no Yama */
	bound = bound && !syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	bound = bound && !syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
	if (bound) {
		store32(&k->ready, 1);
		syscall(SYS_fcntl, k->hold, F_SETLKW, &whole);
	}
	syscall(SYS_exit, !bound);
	return 0;
}

static struct keeper *make_keeper(pid_t ptracer)
{
	int ends[2];
	const struct flock whole = { .l_type = F_WRLCK };
	const uint64_t all = ~UINT64_C(0);
	uint64_t old;
	struct keeper *k = mmap(NULL, sizeof *k, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (k == MAP_FAILED || pipe2(ends, O_CLOEXEC) || getrandom(k->proof, sizeof k->proof, 0) != sizeof k->proof)
		die("keeper");
	close(ends[0]);	/* before the lock is taken: any close of the file gives it up */
	k->hold = ends[1];
	if (fcntl(k->hold, F_SETLK, &whole))
		die("F_SETLK");
	k->ptracer = ptracer;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof all);
	k->pid = clone(keep, k->stack + sizeof k->stack, CLONE_VM | CLONE_PIDFD, k, &k->pidfd);
	int why = errno;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof old);
	errno = why;
	if (k->pid < 0)
		die("clone");
	while (!load32(&k->ready)) {
		if (waitpid(k->pid, NULL, __WCLONE | WNOHANG)) {
			fprintf(stderr, "a keeper cannot be bound: close_range or seccomp is forbidden\n");
			exit(1);
		}
		sched_yield();
	}
	return k;
}

static void end_keeper(struct keeper *k)
{
	close(k->hold);
	syscall(SYS_pidfd_send_signal, k->pidfd, SIGKILL, NULL, 0);
	waitpid(k->pid, NULL, __WCLONE);
	close(k->pidfd);
	munmap(k, sizeof *k);
}

/* start_helper starts the program that pfd sent (10). */
static void start_helper(struct attachment *a, int *fds, int nfds)
{
	char *const argv[] = { "pfd", "memory-helper", NULL }, *const env[] = { NULL };
	char path[32];
	struct stat st;
	if (nfds != 4 || fstat(fds[0], &st) || !S_ISREG(st.st_mode) || (st.st_uid && st.st_uid != geteuid()) || st.st_mode & 022) {
		fprintf(stderr, "pfd asks for a memory helper whose program cannot be trusted\n");
		exit(1);
	}
	a->lent = make_keeper(getpid());
	int own = syscall(SYS_pidfd_open, getpid(), 0);
	if (own < 0)
		die("pidfd_open");
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	posix_spawn_file_actions_init(&files);
	for (int i = 0; i < 3; i++)
		posix_spawn_file_actions_addopen(&files, i, "/dev/null", O_RDWR, 0);
	/* All above the numbers that they get; the program last. */
	int from[] = { fds[1], fds[2], fds[3], own, a->lent->pidfd, fds[0] }, above[6];
	for (int i = 0; i < 6; i++) {
		if ((above[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 8)) < 0)
			die("F_DUPFD_CLOEXEC");
		if (i < 5)
			posix_spawn_file_actions_adddup2(&files, above[i], 3 + i);
	}
	posix_spawn_file_actions_addchdir_np(&files, "/");
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID);
	snprintf(path, sizeof path, "/proc/self/fd/%d", above[5]);
	if ((errno = posix_spawn(&a->helper, path, &files, &attr, argv, env)))
		die("starting pfd's memory helper");
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	for (int i = 0; i < 6; i++)
		close(above[i]);
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	close(own);
}

/* send_mapped says that the memory is mapped, with the keeper's pidfd (2). */
static void send_mapped(struct attachment *a, unsigned char *m)
{
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { 0 };
	struct iovec iov = { m, HEADER };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.b, .msg_controllen = sizeof control.b };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &a->keeper->pidfd, sizeof(int));
	if (sendmsg(a->socket, &msg, MSG_NOSIGNAL) != HEADER)
		die("mapped");
}

/* answer takes pfd's next message of the handshake; a refusal ends the program (2).
 * Where pfd asks for a memory helper first, it is started. */
static void answer(struct attachment *a, unsigned char *m, int type, ssize_t size, int *fds, int want)
{
	int nfds;
	ssize_t n = receive(a->socket, m, TEXT_SIZE, fds, &nfds);
	if (n == HELPER_SIZE && get(m, 2) == HELPER && get(m + 2, 2) == VERSION && type == WELCOME) {
		start_helper(a, fds, nfds);
		n = receive(a->socket, m, TEXT_SIZE, fds, &nfds);
	}
	if (n < HEADER)
		die("no answer to hello");
	if (get(m + 2, 2) != VERSION) {
		fprintf(stderr, "pfd (%.63s) speaks version %d of the protocol, this program %d\n", m + 8, (int)get(m + 2, 2), VERSION);
		exit(1);
	}
	if (get(m, 2) == REFUSED && n == TEXT_SIZE) {
		fprintf(stderr, "refused, code %d: %.431s\n", (int)get(m + 72, 4), m + 80);
		exit(1);
	}
	if ((int)get(m, 2) != type || n != size || nfds != want) {
		fprintf(stderr, "pfd does not keep to the protocol\n");
		exit(1);
	}
}

/* attach says hello and maps what comes back (1, 2, 3). */
static void attach(struct attachment *a, const char *path, uint32_t node, const char *method)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	if ((size_t)snprintf(addr.sun_path, sizeof addr.sun_path, "%s.attach", path) >= sizeof addr.sun_path) {
		fprintf(stderr, "%s: too long for a socket\n", path);
		exit(2);
	}
	a->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (a->socket < 0 || connect(a->socket, (struct sockaddr *)&addr, sizeof addr))
		die(addr.sun_path);
	socklen_t len = sizeof a->pfd;
	if (getsockopt(a->socket, SOL_SOCKET, SO_PEERCRED, &a->pfd, &len))
		die("SO_PEERCRED");
	a->keeper = make_keeper(a->pfd.pid);

	unsigned char m[TEXT_SIZE] = { 0 };
	put(m, 2, HELLO);
	put(m + 2, 2, VERSION);
	put(m + 4, 4, HELLO_SIZE);
	strcpy((char *)m + 8, "exanet.c 1.0");
	put(m + 72, 4, node);
	m[76] = strcmp(method, "touch") ? 1 : 2;
	m[77] = 2;	/* PI4 */
	m[79] = 1;	/* the whole group may write here */
	strcpy((char *)m + 112, "c-example");
	put(m + 176, 8, (uintptr_t)a->keeper->proof);
	memcpy(m + 184, a->keeper->proof, sizeof a->keeper->proof);
	if (send(a->socket, m, HELLO_SIZE, MSG_NOSIGNAL) != HELLO_SIZE)
		die("hello");

	int fds[8];
	answer(a, m, MEMORY_OFFER, HEADER, fds, 3);
	struct stat st;
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	if (fstat(fds[0], &st) || st.st_size != MEMORY || (fcntl(fds[0], F_GET_SEALS) & seals) != seals) {
		fprintf(stderr, "pfd does not keep to the protocol\n");
		exit(1);
	}
	a->pages = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	if (a->pages == MAP_FAILED)
		die("mmap");
	close(fds[0]);
	a->eventfd = fds[1];
	a->netlink = fds[2];

	memset(m, 0, HEADER);	/* it is mapped: pfd may seal it */
	put(m, 2, MAPPED);
	put(m + 2, 2, VERSION);
	put(m + 4, 4, HEADER);
	strcpy((char *)m + 8, "exanet.c 1.0");
	send_mapped(a, m);
	answer(a, m, WELCOME, WELCOME_SIZE, fds, 0);
	a->slot = m[72];
	a->method = m[78];
	a->pdid = get(m + 76, 2);
	a->node = get(m + 80, 4);
	a->pfd_port = get(m + 84, 4);
	a->generation = get(m + 104, 4);
}

/* kick tells pfd that something was published (4). */
static void kick(struct attachment *a)
{
	const uint64_t one = 1;
	__atomic_fetch_add((uint32_t *)(a->pages + KICK), 1, __ATOMIC_SEQ_CST);
	if (load32(a->pages + ASLEEP) && write(a->eventfd, &one, sizeof one) < 0 && errno != EAGAIN)
		die("eventfd");
}

/* send_word sends one word to mailbox 1 of a node, by a packetizer channel that
 * one thread uses (3, Packetizer channel). false: refused. */
static bool send_word(struct attachment *a, int channel, uint32_t node, uint64_t word)
{
	unsigned char *c = a->pages + PACKETIZER + 0x400 * channel;
	while (load64(c + 0x48)) {	/* SEND: pfd has not taken the last one */
		if (load32(a->pages + STATE))
			return false;
		sched_yield();
	}
	store64(c, node | UINT64_C(1) << 24);
	store64(c + 8, word);
	store64(c + 0x50, 1);	/* STATUS: busy */
	store64(c + 0x48, 1);	/* SEND: one word */
	kick(a);
	while (load64(c + 0x48) && !load32(a->pages + STATE))
		sched_yield();
	return load64(c + 0x50) == 0;
}

/* wait_event sleeps until EVENT is not what it was, a millisecond at most: words
 * from another pfd, and a pfd that was killed, wake nobody (4, 5). */
static void wait_event(struct attachment *a, uint32_t was)
{
	const struct timespec ms = { 0, 1000000 };
	syscall(SYS_futex, a->pages + EVENT, FUTEX_WAIT, was, &ms, NULL, 0);
}

/* ended tells whether the attachment is over: by its page, or by its socket. */
static bool ended(struct attachment *a)
{
	char c;
	return load32(a->pages + STATE) || recv(a->socket, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static uint64_t hex(const char *s, int digits)
{
	uint64_t v = 0;
	while (digits--) {
		int c = *s++;
		v = v << 4 | (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
	}
	return v;
}

/* serve_faults pages in what pfd asks for (6), until the socket ends. */
static void *serve_faults(void *arg)
{
	struct attachment *a = arg;
	for (;;) {
		char text[256];
		union { char b[CMSG_SPACE(sizeof(struct ucred))]; struct cmsghdr align; } control;
		struct sockaddr_nl from;
		struct nlmsghdr h;
		struct iovec iov[2] = { { &h, sizeof h }, { text, sizeof text - 1 } };
		struct msghdr msg = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = iov, .msg_iovlen = 2,
				      .msg_control = control.b, .msg_controllen = sizeof control.b };
		struct pollfd p = { .fd = a->netlink, .events = POLLIN };
		poll(&p, 1, -1);	/* the socket does not block */
		ssize_t n = recvmsg(a->netlink, &msg, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS))
			continue;
		if (n < 0)
			die("netlink");
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		struct ucred cred = { 0 };
		if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS)
			memcpy(&cred, CMSG_DATA(c), sizeof cred);
		if (n < (ssize_t)sizeof h || from.nl_pid != a->pfd_port || cred.pid != a->pfd.pid || cred.uid != a->pfd.uid || h.nlmsg_type < 0x10)
			continue;	/* not pfd's: dropped */
		text[n - sizeof h] = 0;
		size_t digits = strlen(text);
		bool wide = digits >= 38 && !strncmp(text, "2:", 2);
		const char *t = wide ? text + 2 : text;
		if (!wide && digits < 27)
			continue;
		uint64_t node = hex(t, 6), transaction = hex(t + 6, 4), sequence = hex(t + 10, 4);
		t += wide ? 15 : 14;	/* the wide form has a process index */
		uint64_t page = hex(t, wide ? 12 : 8);
		t += wide ? 12 : 8;
		uint64_t pdid = hex(t, 4), write = hex(t + 4, 1), pages = wide ? hex(t + 5, 4) : 1;
		int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
		long size = sysconf(_SC_PAGESIZE);
		void *first = (void *)(uintptr_t)(page << 12);
		bool failed = madvise(first, size, advice);	/* only the first page decides */
		if (!failed && pages > 1)
			madvise((char *)first + size, (pages - 1) * size, advice);
		if (!pdid)
			continue;	/* nobody to tell */
		send_word(a, FAULT_CHANNEL, node, 2 | pdid << 2 | transaction << 18 | (sequence & 0xfff) << 32 | pdid << 44 |
			  (sequence >> 12) << 60 | (uint64_t)failed << 62);
	}
	return NULL;
}

/* transfer writes and waits (5). It gives the status, 0 where all is well. */
static int transfer(struct attachment *a, const void *src, uint32_t size, uint32_t node, uint16_t pdid, uint32_t generation,
		    uint64_t dst, uint64_t notify)
{
	const int channel = 0;
	unsigned char *d = a->pages + 64 * channel;
	store64(d, (uintptr_t)src);
	store64(d + 8, dst);
	store64(d + 16, notify);
	store64(d + 24, FIRST_WORD);
	store64(d + 32, LAST_WORD);
	store32(d + 40, size);
	store64(d + 48, node | (uint64_t)pdid << 32);
	store64(d + 56, (uint64_t)generation << 32);
	store32(d + 44, DONE_READY);	/* last */
	uint64_t none = 0;
	bool word = __atomic_compare_exchange_n((uint64_t *)(a->pages + DOORBELL), &none, channel + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	bool message = send_word(a, DOORBELL_CHANNEL, a->node, 3 | (uint64_t)a->pdid << 2 | (uint64_t)(64 * a->slot + channel) << 18);
	if (!word && !message)
		return -1;
	kick(a);
	int result = 10;	/* domain or node gone */
	__atomic_fetch_add((uint32_t *)(a->pages + WAITERS), 1, __ATOMIC_SEQ_CST);
	for (;;) {
		uint32_t was = load32(a->pages + EVENT), done = load32(d + 44);
		if (done == DONE_OK || done == DONE_FAILED) {
			result = done == DONE_OK ? 0 : load64(d + 56) & 0xff;
			break;
		}
		if (ended(a))
			break;
		wait_event(a, was);
	}
	__atomic_fetch_sub((uint32_t *)(a->pages + WAITERS), 1, __ATOMIC_SEQ_CST);
	return result;
}

/* leave ends the attachment and waits for ENDED (7). */
static void leave(struct attachment *a)
{
	unsigned char m[TEXT_SIZE];
	int fds[8], nfds;
	shutdown(a->socket, SHUT_WR);
	while (receive(a->socket, m, sizeof m, fds, &nfds) >= 72 && get(m, 2) != ENDED)
		;
	close(a->socket);
	if (a->helper) {
		kill(a->helper, SIGKILL);
		waitpid(a->helper, NULL, 0);
		end_keeper(a->lent);
	}
	end_keeper(a->keeper);
}

static unsigned char pattern(size_t i) { return i * 7 + (i >> 8) + (i >> 16); }

int main(int argc, char **argv)
{
	bool writer = argc == 11 && !strcmp(argv[1], "write");
	if ((!writer && (argc != 6 || strcmp(argv[1], "target"))) || (strcmp(argv[4], "gup") && strcmp(argv[4], "touch"))) {
		fprintf(stderr, "usage: exanet target SOCKET NODE gup|touch SIZE\n"
			"       exanet write SOCKET NODE gup|touch SIZE  NODE PDID GENERATION ADDRESS NOTIFY\n");
		return 2;
	}
	uint32_t size = strtoul(argv[5], NULL, 0);
	struct attachment a = { 0 };
	attach(&a, argv[2], strtoul(argv[3], NULL, 0), argv[4]);
	pthread_t server;
	if (a.method == 2 && (errno = pthread_create(&server, NULL, serve_faults, &a)))
		die("thread");
	/* The bytes, and a page for the completion words: nobody touches it here. */
	unsigned char *buf = mmap(NULL, size + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buf == MAP_FAILED)
		die("mmap");
	if (writer) {
		for (size_t i = 0; i < size; i++)
			buf[i] = pattern(i);
		int status = transfer(&a, buf, size, strtoul(argv[6], NULL, 0), strtoul(argv[7], NULL, 0), strtoul(argv[8], NULL, 0),
				      strtoull(argv[9], NULL, 0), strtoull(argv[10], NULL, 0));
		if (status)
			fprintf(stderr, "the transfer failed with status %d (docs/attach.md 3)\n", status);
		leave(&a);
		return status != 0;
	}
	uint64_t *words = (uint64_t *)(((uintptr_t)buf + size + 4095) & ~(uintptr_t)4095);
	printf("%" PRIu32 " %u %" PRIu32 " %p %p\n", a.node, a.pdid, a.generation, (void *)buf, (void *)words);
	fflush(stdout);
	__atomic_fetch_add((uint32_t *)(a.pages + WAITERS), 1, __ATOMIC_SEQ_CST);
	for (;;) {
		uint32_t was = load32(a.pages + EVENT);
		if (load64(words + 1) == LAST_WORD)
			break;
		if (ended(&a)) {
			fprintf(stderr, "the attachment ended before the bytes came\n");
			return 1;
		}
		wait_event(&a, was);
	}
	size_t wrong = words[0] != FIRST_WORD;
	for (size_t i = 0; i < size; i++)
		wrong += buf[i] != pattern(i);
	printf("%" PRIu32 " bytes came, %zu wrong\n", size, wrong);
	leave(&a);
	return wrong != 0;
}
