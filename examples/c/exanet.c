/* A client of pfd in C, written against docs/attach.md and nothing else. The
 * numbers in comments are its sections.
 *
 *   exanet target SOCKET NODE METHOD SIZE
 *     lets others write SIZE bytes into memory that nobody has touched; prints
 *     "NODE PDID ADDRESS NOTIFY", waits for the completion words, checks the bytes
 *   exanet write SOCKET NODE METHOD SIZE  NODE PDID ADDRESS NOTIFY
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
#include <linux/futex.h>
#include <linux/netlink.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { HELLO = 1, WELCOME, REFUSED, ENDED };		/* 2 */
enum { HELLO_SIZE = 176, WELCOME_SIZE = 112, TEXT_SIZE = 512, VERSION = 1 };
enum { DOORBELL = 0x1000, PACKETIZER = 0x2000, ASLEEP = 0x3000, KICK = 0x3004,
       EVENT = 0x3008, WAITERS = 0x300c, STATE = 0x3010, MEMORY = 0x4000 };	/* 3 */
enum { DONE_READY = 0, DONE_OK = 1, DONE_FAILED = 3 };
enum { DOORBELL_CHANNEL = 0, FAULT_CHANNEL = 1 };	/* of the packetizer */
#define FIRST_WORD UINT64_C(0x1122334455667788)
#define LAST_WORD UINT64_C(0x99aabbccddeeff00)

struct attachment {
	int socket, eventfd, netlink;
	unsigned char *pages;	/* 3 */
	uint8_t slot, method;
	uint16_t pdid;
	uint32_t node, pfd_port;
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
	if (prctl(PR_SET_PTRACER, a->pfd.pid, 0, 0, 0) && errno != EINVAL)	/* EINVAL: no Yama */
		die("PR_SET_PTRACER");

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
	if (send(a->socket, m, HELLO_SIZE, MSG_NOSIGNAL) != HELLO_SIZE)
		die("hello");

	int fds[8], nfds;
	ssize_t n = receive(a->socket, m, sizeof m, fds, &nfds);
	if (n < 72)
		die("no answer to hello");
	if (get(m + 2, 2) != VERSION) {
		fprintf(stderr, "pfd (%.63s) speaks version %d of the protocol, this program %d\n", m + 8, (int)get(m + 2, 2), VERSION);
		exit(1);
	}
	if (get(m, 2) == REFUSED && n == TEXT_SIZE) {
		fprintf(stderr, "refused, code %d: %.431s\n", (int)get(m + 72, 4), m + 80);
		exit(1);
	}
	struct stat st;
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	if (get(m, 2) != WELCOME || n != WELCOME_SIZE || nfds != 3 || fstat(fds[0], &st) || st.st_size != MEMORY ||
	    (fcntl(fds[0], F_GET_SEALS) & seals) != seals) {
		fprintf(stderr, "pfd does not keep to the protocol\n");
		exit(1);
	}
	a->slot = m[72];
	a->method = m[78];
	a->pdid = get(m + 76, 2);
	a->node = get(m + 80, 4);
	a->pfd_port = get(m + 84, 4);
	a->pages = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	if (a->pages == MAP_FAILED)
		die("mmap");
	close(fds[0]);
	a->eventfd = fds[1];
	a->netlink = fds[2];
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
static int transfer(struct attachment *a, const void *src, uint32_t size, uint32_t node, uint16_t pdid, uint64_t dst, uint64_t notify)
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
	store64(d + 56, 0);
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
}

static unsigned char pattern(size_t i) { return i * 7 + (i >> 8) + (i >> 16); }

int main(int argc, char **argv)
{
	bool writer = argc == 10 && !strcmp(argv[1], "write");
	if (!writer && (argc != 6 || strcmp(argv[1], "target"))) {
		fprintf(stderr, "usage: exanet target SOCKET NODE gup|touch SIZE\n"
			"       exanet write SOCKET NODE gup|touch SIZE  NODE PDID ADDRESS NOTIFY\n");
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
		int status = transfer(&a, buf, size, strtoul(argv[6], NULL, 0), strtoul(argv[7], NULL, 0), strtoull(argv[8], NULL, 0), strtoull(argv[9], NULL, 0));
		if (status)
			fprintf(stderr, "the transfer failed with status %d (docs/attach.md 3)\n", status);
		leave(&a);
		return status != 0;
	}
	uint64_t *words = (uint64_t *)(((uintptr_t)buf + size + 4095) & ~(uintptr_t)4095);
	printf("%" PRIu32 " %u %p %p\n", a.node, a.pdid, (void *)buf, (void *)words);
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
