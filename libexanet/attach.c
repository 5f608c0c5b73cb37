/* Attaching, the messages on the socket, memory, and the end (docs/attach.md 1, 2, 7, 8, 10). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"

#ifndef MFD_NOEXEC_SEAL /* Linux 6.3 */
#define MFD_NOEXEC_SEAL 8U
#endif

static const char product[] = "libexanet " EXANET_VERSION;

static _Thread_local char text[640];

int fail(int code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (n >= 0 && (size_t)n < sizeof text && (code == EMFILE || code == ETOOMANYREFS))
		snprintf(text + n, sizeof text - n, code == EMFILE ? ": out of descriptors (ulimit -n)" :
			 ": this user has more descriptors under way in sockets than a process may have open (ulimit -n)");
	return -code;
}

int fail_often(int code, const char *words)
{
	strcpy(text, words);
	return -code;
}

const char *exanet_error(void) { return text; }

void message(unsigned char *m, int type, int size)
{
	memset(m, 0, size);
	put(m, 2, type);
	put(m + 2, 2, PROTOCOL);
	put(m + 4, 4, size);
	memcpy(m + 8, product, sizeof product);
}

/* message_send sends a message and up to two descriptors; -1: none. */
static int message_send(int socket, const unsigned char *m, size_t size, int fd, int second)
{
	const int fds[] = { fd, second };
	const size_t bytes = (fd < 0 ? 0 : second < 0 ? 1 : 2) * sizeof(int);
	union { char b[CMSG_SPACE(sizeof fds)]; struct cmsghdr align; } control = { 0 };
	struct iovec iov = { (void *)m, size };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	if (bytes) {
		msg.msg_control = control.b;
		msg.msg_controllen = CMSG_SPACE(bytes);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(c), fds, bytes);
	}
	ssize_t n;
	while ((n = sendmsg(socket, &msg, MSG_NOSIGNAL)) < 0 && errno == EINTR)
		;
	if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
		return fail(ENOTCONN, "send to pfd: %m: it has closed the connection");
	return n == (ssize_t)size ? 0 : fail(errno ? errno : EIO, "send to pfd: %m");
}

static void close_all(int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

enum { MOST_FDS = 8 };	/* of one message */

ssize_t message_receive(int socket, unsigned char *m, size_t size, int *fds, int *nfds)
{
	union { char b[CMSG_SPACE(MOST_FDS * sizeof(int))]; struct cmsghdr align; } control;
	struct iovec iov = { m, size };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.b, .msg_controllen = sizeof control.b };
	ssize_t n;
	*nfds = 0;
	while ((n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
		;
	if (n <= 0) {
		*nfds = 0;
		return n;
	}
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			*nfds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(c), *nfds * sizeof(int));
		}
	if (msg.msg_flags & MSG_CTRUNC && *nfds < MOST_FDS) {	/* there was room for another */
		close_all(fds, *nfds);
		*nfds = 0;
		errno = EMFILE;
		return -1;
	}
	return n;
}

static bool exists(const char *path)
{
	struct stat st;
	return !stat(path, &st);
}

/* helper_start starts the program that pfd sent (10), and closes the descriptors. */
int helper_start(exanet *e, int *fds, int nfds)
{
	struct program program;
	struct stat st;
	int own = -1, null = -1, above = -1, result = 0;
	if (nfds != 4) {
		close_all(fds, nfds);
		return fail(EPROTO, "pfd violates the protocol: it asks for a memory helper with %d descriptors, not 4", nfds);
	}
	if (fstat(fds[0], &st) || !rule_program(st.st_uid, st.st_mode, geteuid(), e->trust, e->ntrust)) {
		close_all(fds, nfds);
		return fail(EPERM, "pfd asks for a memory helper whose program cannot be trusted: it belongs to uid %u and has mode %#o: it must be root's, this user's own or that of a user in exanet_options.trust, writable by its owner only",
			    st.st_uid, st.st_mode & 07777);
	}
	for (int i = 0; i < PROGRAM_FILES; i++)
		program.files[i] = -1;
	if ((own = syscall(SYS_pidfd_open, getpid(), 0)) < 0 || (null = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0) {
		result = fail(errno, "%s for pfd's memory helper: %m", own < 0 ? "pidfd_open" : "open /dev/null");
		goto out;
	}
	const int from[] = { null, null, null, fds[1], fds[2], fds[3], own };
	for (int i = 0; i < PROGRAM_KEEPER; i++)	/* all above the numbers of the program's own */
		if ((program.files[i] = fcntl(from[i], F_DUPFD_CLOEXEC, PROGRAM_FILES)) < 0)
			break;
	if (program.files[PROGRAM_KEEPER - 1] < 0 || (above = fcntl(fds[0], F_DUPFD_CLOEXEC, PROGRAM_FILES)) < 0) {
		result = fail(errno, "descriptors for pfd's memory helper: %m");
		goto out;
	}
	snprintf(program.path, sizeof program.path, "/proc/self/fd/%d", above);
	if (!exists(program.path)) {
		result = fail(ENOENT, "pfd is another user's and needs a memory helper here, and that needs /proc: mount it (mount -t proc proc /proc)");
		goto out;
	}
	e->lent = keeper_make(getpid(), &program, &result);
out:
	for (int i = 0; i < PROGRAM_KEEPER; i++)
		if (program.files[i] >= 0)
			close(program.files[i]);
	const int rest[] = { own, null, above };
	for (int i = 0; i < 3; i++)
		if (rest[i] >= 0)
			close(rest[i]);
	close_all(fds, nfds);
	return result;
}

enum { REFUSED_PROTOCOL = 1 };	/* code of a message that pfd does not know */

/* refusal returns the error for a message that came instead of an answer. */
static int refusal(const unsigned char *m, ssize_t n)
{
	static const int codes[] = { EIO, EPROTO, EPROTO, EOPNOTSUPP, ENODEV, EAGAIN, EDQUOT, EAGAIN, EPERM, EINVAL, EAGAIN, EIO, EINVAL, ENOENT, EDQUOT };
	if (n < 0 && errno == EMFILE)
		return fail(EMFILE, "descriptors that pfd sent did not arrive (a security module may forbid them)");
	if (n <= 0)
		return fail(ENOTCONN, "pfd closed the connection, or does not answer: it ends, or it is another program");
	if (n < HEADER)
		return fail(EPROTO, "pfd violates the protocol");
	if (get(m + 2, 2) != PROTOCOL)
		return fail(EPROTO, "pfd (%.63s) speaks version %d of the protocol, this library %d: install both from one release", m + 8, (int)get(m + 2, 2), PROTOCOL);
	if (get(m, 2) == REFUSED && n == TEXT_SIZE) {
		size_t code = get(m + 72, 4);
		return fail(code < sizeof codes / sizeof codes[0] ? codes[code] : EIO, "pfd refused: %.431s", m + 80);
	}
	if (get(m, 2) == ENDED && n == TEXT_SIZE)
		return fail(ENOTCONN, "the attachment has ended: %.431s", m + 80);
	return fail(EPROTO, "pfd violates the protocol");
}

/* answer receives pfd's next message of the handshake. If pfd first asks for a memory helper, answer starts
 * it. */
static int answer(exanet *e, unsigned char *m, int type, ssize_t size, int *fds, int want)
{
	int nfds, error;
	ssize_t n = message_receive(e->socket, m, TEXT_SIZE, fds, &nfds);
	if (n == HELPER_SIZE && get(m, 2) == HELPER && get(m + 2, 2) == PROTOCOL && type == WELCOME) {
		if ((error = helper_start(e, fds, nfds)))
			return error;
		n = message_receive(e->socket, m, TEXT_SIZE, fds, &nfds);
	}
	if (n != size || (int)get(m, 2) != type || get(m + 2, 2) != PROTOCOL || nfds != want) {
		if (nfds > 0)
			close_all(fds, nfds);
		return refusal(m, n);
	}
	return 0;
}

int question(exanet *e, unsigned char *m, size_t size, int fd, int second, int *got)
{
	unsigned char a[TEXT_SIZE];
	int fds[8], nfds, result;
	int type = get(m, 2);
	const int want = got ? RINGED : SHARED;
	pthread_mutex_lock(&e->messages);
	if (!(result = message_send(e->socket, m, size, fd, second))) {
		ssize_t n = message_receive(e->socket, a, sizeof a, fds, &nfds);
		if (n != SHARED_SIZE || (int)get(a, 2) != want || (int)get(a + 88, 2) != type || nfds != !!got)
			result = refusal(a, n);
		if (got && !result)
			*got = fds[0];
		else
			close_all(fds, nfds);
	}
	pthread_mutex_unlock(&e->messages);
	return result;
}

int question_thread(exanet *e, unsigned char *m, unsigned char *a, int *got)
{
	unsigned char text[TEXT_SIZE];
	int fds[8], nfds, result;
	pthread_mutex_lock(&e->messages);
	if (!(result = message_send(e->socket, m, THREAD_SIZE, -1, -1))) {
		ssize_t n = message_receive(e->socket, text, sizeof text, fds, &nfds);
		if (n != THREADED_SIZE || get(text, 2) != THREADED || nfds != 1) {
			result = refusal(text, n);
			close_all(fds, nfds);
		} else {
			memcpy(a, text, THREADED_SIZE);
			*got = fds[0];
		}
	}
	pthread_mutex_unlock(&e->messages);
	return result;
}

/* stranger reports whether a user that this process does not trust serves the socket (1). */
static bool stranger(const exanet *e, const char *socket_path)
{
	struct stat st;
	if (lstat(machine_directory, &st) || !S_ISDIR(st.st_mode))
		st.st_uid = -1;	/* no user's */
	return !rule_server(e->pfd.uid, geteuid(), e->trust, e->ntrust, socket_path, st.st_uid);
}

/* unreached returns why connect(2) failed with error, as sockets.Why does for Go. */
static int unreached(int error, const char *attach, const char *control)
{
	char dir[PATH_SIZE];
	struct stat st;
	if (error == ECONNREFUSED)
		return fail(error, "no pfd answers on %s: nobody listens on the socket that is there: its pfd was killed or is just starting, and the next one replaces it; start one (pfd --socket %s), or name another socket", attach, control);
	for (size_t i = 1; attach[i]; i++) {
		if (attach[i] != '/')
			continue;
		snprintf(dir, sizeof dir, "%.*s", (int)i, attach);
		if (stat(dir, &st))
			break;
		if (error == EACCES && faccessat(AT_FDCWD, dir, X_OK, AT_EACCESS))
			return fail(error, "%s: this user may not enter directory %s, of uid %u with mode %#o: its owner can run chmod 755 %s", attach, dir, st.st_uid, st.st_mode & 07777, dir);
		if (error == ENOENT && !st.st_nlink)
			return fail(error, "no pfd answers on %s: directory %s was removed, and perhaps made again, after it was mounted here: start this container again", attach, dir);
	}
	errno = error;
	return error == EACCES || error == EPERM ?
		fail(error, "%s: %m: this user may not open the socket: ask for a pfd whose socket is open to it", attach) :
		fail(error, "no pfd answers on %s: %m: start one (pfd --socket %s), or name another socket", attach, control);
}

static int dial(exanet *e, const char *socket_path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char path[PATH_SIZE];
	if (socket_path)
		snprintf(path, sizeof path, "%s", socket_path);
	else if (!rule_find(path, sizeof path, geteuid(), getenv("RUNTIME_DIRECTORY"), getenv("XDG_RUNTIME_DIR"), exists))
		return fail(ENOENT, "no socket is named, and neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set: name pfd's socket (exanet_options.socket), or set XDG_RUNTIME_DIR to the directory that pfd has");
	if ((size_t)snprintf(addr.sun_path, sizeof addr.sun_path, "%s.attach", path) >= sizeof addr.sun_path)
		return fail(ENAMETOOLONG, "%s: too long for a socket", path);
	e->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (e->socket < 0)
		return fail(errno, "socket: %m");
	if (connect(e->socket, (struct sockaddr *)&addr, sizeof addr))
		return unreached(errno, addr.sun_path, path);
	socklen_t len = sizeof e->pfd;
	if (getsockopt(e->socket, SOL_SOCKET, SO_PEERCRED, &e->pfd, &len))
		return fail(errno, "SO_PEERCRED: %m");
	if (stranger(e, path))
		return fail(EPERM, "%s: another user serves the socket: uid %u would access the memory of this process: name it (exanet_options.trust) if it may", addr.sun_path, e->pfd.uid);
	const struct timeval patience = { .tv_sec = 10 };	/* pfd answers within 5 s */
	setsockopt(e->socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	return 0;
}

static int hello(exanet *e, const struct exanet_options *o)
{
	unsigned char m[TEXT_SIZE];
	const char *group = o->group ? o->group : "default";
	if (o->naccept > 16 || strlen(group) > 63 || !*group)
		return fail(EINVAL, "an attachment accepts 16 PDIDs at most, and a group's name has 1 to 63 characters");
	message(m, HELLO, HELLO_SIZE);
	put(m + 72, 4, o->node);
	m[76] = o->method;
	m[77] = o->policy;
	m[78] = o->naccept;
	m[79] = (o->flags & EXANET_ACCEPT_GROUP) | (o->flags & EXANET_THREADS ? 2 : 0) | (o->flags & EXANET_PLACE ? 4 : 0);
	for (int i = 0; i < o->naccept; i++)
		put(m + 80 + 2 * i, 2, o->accept[i]);
	memcpy(m + 112, group, strlen(group));
	put(m + 176, 8, (uintptr_t)keeper_proof(e->keeper));
	memcpy(m + 184, keeper_proof(e->keeper), 16);
	if (o->key)
		memcpy(m + 200, o->key, 32);
	return message_send(e->socket, m, HELLO_SIZE, -1, -1);
}

/* watch opens a userfaultfd of a range that is shared (8): through it pfd learns when the range is unmapped,
 * and fills its missing pages with method gup. Nothing is protected, so the kernel serves the process's own
 * accesses. The process keeps no copy: when pfd closes its own, the last, the registration ends. -1: this
 * kernel or a filter has none, the range is registered with another, or too many threads share memory now. */
static int watch(void *address, size_t size)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_EVENT_UNMAP };
	struct uffdio_register r = { .range = { (uintptr_t)address, size }, .mode = UFFDIO_REGISTER_MODE_WP };
	int fd = uffd_open(UFFD_USER_MODE_ONLY);
	if (fd >= 0 && (ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &r))) {
		uffd_close(fd);
		fd = -1;
	}
	return fd;
}

static int handshake(exanet *e, const struct exanet_options *o)
{
	unsigned char m[TEXT_SIZE] = { 0 };
	int fds[8], error;
	struct stat st;
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	if ((error = dial(e, o->socket)))
		return error;
	if (!(e->keeper = keeper_make(e->pfd.pid, NULL, &error)))
		return error;
	if ((error = hello(e, o)))
		return error;
	if ((error = answer(e, m, MEMORY_OFFER, HEADER, fds, 3))) {
		if (o->flags & EXANET_THREADS && error == -EPROTO && get(m, 2) == REFUSED && get(m + 72, 4) == REFUSED_PROTOCOL)
			return fail(ENOTSUP, "attach with threads: this pfd has none (%.63s): use one of this release, or attach without EXANET_THREADS", m + 8);
		return error;
	}
	e->size = o->flags & EXANET_THREADS ? MEMORY_THREADS : MEMORY;
	e->eventfd = fds[1];
	e->netlink = fds[2];
	bool right = !fstat(fds[0], &st) && st.st_size == (off_t)e->size && (fcntl(fds[0], F_GET_SEALS) & seals) == seals;
	void *pages = right ? mmap(NULL, e->size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) : MAP_FAILED;
	close(fds[0]);
	if (!right)
		return fail(EPROTO, "pfd violates the protocol");
	if (pages == MAP_FAILED)
		return fail(errno, "map the attachment's memory: %m");
	e->pages = pages;
	if (madvise(pages, e->size, MADV_DONTFORK))
		return fail(errno, "keep the attachment's memory from children: %m");
	message(m, MAPPED, HEADER);	/* pfd may seal it now */
	if ((error = message_send(e->socket, m, HEADER, keeper_pidfd(e->keeper), -1)) || (error = answer(e, m, WELCOME, WELCOME_SIZE, fds, 0)))
		return error;
	e->info = (struct exanet_info){
		.slot = m[72], .address_bits = m[75], .pdid = get(m + 76, 2), .method = m[78], .policy = m[79],
		.node = get(m + 80, 4), .generation = get(m + 104, 4), .sva = get(m + 96, 8) >> 27 & 1,
	};
	e->pfd_port = get(m + 84, 4);
	e->pfd_pid = get(m + 92, 4);
	const struct timeval none = { 0 };
	setsockopt(e->socket, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
	return 0;
}

/* time_offset returns what this time namespace adds to CLOCK_MONOTONIC, ns (time_namespaces(7)): stamps are
 * compared with those of processes in others, and with the kernel's. */
static int64_t time_offset(void)
{
	FILE *f = fopen("/proc/self/timens_offsets", "re");
	long long s = 0, ns = 0;
	if (!f)
		return 0;
	if (fscanf(f, "monotonic %lld %lld", &s, &ns) != 2)
		s = ns = 0;
	fclose(f);
	return (int64_t)s * INT64_C(1000000000) + ns;
}

int exanet_attach(exanet **out, const struct exanet_options *o)
{
	UNCANCELLED;
	static const struct exanet_options none;
	exanet *e = calloc(1, sizeof *e);
	*out = NULL;
	if (!e)
		return fail(ENOMEM, "no memory");
	if (o && o->flags & EXANET_TRUST) {
		e->trust = o->trust;
		e->ntrust = o->ntrust;
	}
	uffd_prepare();
	e->time_offset = time_offset();
	e->flags = o ? o->flags : 0;
	e->socket = e->eventfd = e->netlink = e->stop = -1;
	e->own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (e->own == MAP_FAILED || madvise(e->own, 4096, MADV_WIPEONFORK)) {
		const int error = fail(errno, "a page that fork empties: %m");
		if (e->own != MAP_FAILED)
			munmap(e->own, 4096);
		free(e);
		return error;
	}
	*e->own = 1;
	pthread_mutex_init(&e->lock, NULL);
	pthread_mutex_init(&e->messages, NULL);
	pthread_mutex_init(&e->serving, NULL);
	pthread_mutex_init(&e->sending, NULL);
	pthread_mutex_init(&e->streaming, NULL);
	int error = handshake(e, o ? o : &none);
	if (!error && (e->info.method == EXANET_TOUCH || e->info.method == EXANET_POPULATE)) {
		/* Not a pipe: closing its end would not wake the threads if a child has a copy of it. The
		 * threads block the program's signals. */
		sigset_t all, old;
		sigfillset(&all);
		e->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		pthread_mutex_lock(&e->serving);	/* the thread may start another one */
		if (e->stop < 0 || (errno = start_server(e)))
			error = fail(errno, "the page-fault thread: %m%s", errno == EAGAIN ? ": out of processes or of memory (ulimit -u, -v, -d; pids.max)" : "");
		pthread_mutex_unlock(&e->serving);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	if (error) {
		char why[sizeof text];	/* exanet_close may overwrite it */
		memcpy(why, text, sizeof why);
		exanet_close(e);
		memcpy(text, why, sizeof text);
		return error;
	}
	e->trust = NULL;	/* the caller's */
	e->ntrust = 0;
	*out = e;
	return 0;
}

struct buffer buffer_at(exanet *e, const void *address, bool drop)
{
	struct buffer found = { 0 };
	pthread_mutex_lock(&e->messages);
	struct buffer **at = &e->buffers, *b;
	while ((b = *at) && b->address != address)
		at = &b->next;
	if (b) {
		found = *b;
		if (drop) {
			*at = b->next;
			free(b);
		}
	}
	pthread_mutex_unlock(&e->messages);
	return found;
}

void unmap_shared(const exanet *e, void *address, size_t size)
{
	if (!e->accessed)
		munmap(address, size);
}

/* release frees the parts of an attachment that no other process has, and the attachment itself. */
static void release(exanet *e)
{
	for (struct buffer *b; (b = e->buffers); free(b))
		e->buffers = b->next;
	free_streams(e);
	forget_messages(e);
	free_rings(e);
	free_threads(e);
	munmap(e->own, 4096);
	free(e);
}

/* release_copy releases a forked child's copy of an attachment. It ends nothing of the parent's. */
static void release_copy(exanet *e)
{
	const int all[] = { e->socket, e->eventfd, e->netlink, e->stop };
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		if (all[i] >= 0)
			close(all[i]);
	keeper_forget(e->lent);
	keeper_forget(e->keeper);
	if (e->words)
		munmap(e->words, 4096);
	release(e);
}

/* pthread_timedjoin_np uses the time of day, which may be set, and thread sanitizers do not know
 * pthread_clockjoin_np. */
bool joined(pthread_t thread, int64_t end)
{
	int error;
	for (int64_t pause = 20000; (error = pthread_tryjoin_np(thread, NULL)) == EBUSY && now() < end; rest(&pause, 1000000))
		;
	return !error;
}

int exanet_close(exanet *e)
{
	UNCANCELLED;
	unsigned char m[TEXT_SIZE];
	int fds[8], nfds;
	ssize_t n;
	bool confirmed = false, sleeps;
	if (!e)
		return 0;
	if (inherited(e)) {
		release_copy(e);
		return 0;
	}
	sleeps = !end_streams(e);
	if (e->info.pdid) {	/* attached: after ENDED nothing is in flight */
		const struct timeval patience = { .tv_sec = 2 };	/* as package rdma: memory that hangs delays it */
		setsockopt(e->socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
		shutdown(e->socket, SHUT_WR);
		while (!confirmed && (n = message_receive(e->socket, m, sizeof m, fds, &nfds)) > 0) {
			close_all(fds, nfds);
			confirmed = n >= HEADER && get(m, 2) == ENDED;
		}
		/* pfd has ended, and its device; a reset: it had unread messages */
		confirmed = confirmed || n == 0 || (n < 0 && errno == ECONNRESET);
		e->accessed = !confirmed;
	}
	if (e->stop >= 0) {
		const uint64_t one = 1;
		shutdown(e->socket, SHUT_RDWR);	/* wakes threads that wait for a pfd that reads nothing */
		pthread_mutex_lock(&e->serving);
		const unsigned servers = e->nservers;
		e->nservers = 0;
		pthread_mutex_unlock(&e->serving);
		(void)!write(e->stop, &one, sizeof one);	/* cannot fail */
		const int64_t end = now() + INT64_C(2000000000);
		for (unsigned i = 0; i < servers; i++)
			if (!joined(e->servers[i].thread, end)) {
				pthread_detach(e->servers[i].thread);
				sleeps = true;
			} else {
				close(e->servers[i].epoll);
			}
	}
	const int all[] = { e->socket, e->eventfd, e->netlink, e->stop };
	for (size_t i = 0; i < sizeof all / sizeof all[0] && !sleeps; i++)
		if (all[i] >= 0)
			close(all[i]);
	const bool helped = keeper_end_helper(e->lent, 5000);	/* it is killed: a shorter wait could fail for want of a processor */
	keeper_end(e->lent);
	keeper_end(e->keeper);
	bool attached = e->info.pdid;
	if (e->words)
		unmap_shared(e, e->words, 4096);
	if (sleeps)	/* in a page that never arrives: keep what the thread uses when it wakes */
		goto out;
	if (e->pages)
		munmap(e->pages, e->size);
	pthread_mutex_destroy(&e->lock);
	pthread_mutex_destroy(&e->messages);
	pthread_mutex_destroy(&e->serving);
	pthread_mutex_destroy(&e->sending);
	pthread_mutex_destroy(&e->streaming);
	release(e);
out:
	if (!helped)
		return fail(ETIMEDOUT, "pfd's memory helper is killed and waits for a page of this process that is not paged in: it may still access memory of this process");
	return !attached || confirmed ? 0 : fail(ETIMEDOUT, "pfd did not confirm the end of the attachment: it may still access memory of this process");
}

void exanet_get_info(const exanet *e, struct exanet_info *info)
{
	*info = inherited(e) ? (struct exanet_info){ 0 } : e->info;
}

void exanet_get_stats(const exanet *e, struct exanet_stats *s)
{
	const unsigned char *p = e->pages + STAT_FAULTS;
	*s = (struct exanet_stats){ 0 };
	if (!inherited(e))
		*s = (struct exanet_stats){ load64(p), load64(p + 8), load64(p + 16), load64(p + 24) };
}

int bounds(exanet *e, int type, void *address, size_t size, int fd)
{
	UNCANCELLED;
	unsigned char m[BOUNDS_SIZE];
	if (inherited(e))
		return refuse_child(e);
	message(m, type, sizeof m);
	put(m + 72, 8, (uintptr_t)address);
	put(m + 80, 8, size);
	return question(e, m, sizeof m, fd, -1, NULL);
}

/* sooner returns the result of a request that only makes access to memory faster. A device that sees all
 * memory does not need it, and an older pfd need not support it. Memory that is refused with code 12
 * overlaps another share, which transfers would access. */
static int sooner(const exanet *e, int error) { return e->info.sva && error != -ENOTCONN && error != -EINVAL ? 0 : error; }

/* share is exanet_share of memory that comes in by folio pages; an older pfd makes it SINGLE_PFD. */
static int share(exanet *e, void *address, size_t size, int fd, uint64_t offset, int writable, int *folio)
{
	UNCANCELLED;
	unsigned char m[SHARE_SIZE];
	if (inherited(e))
		return refuse_child(e);
	message(m, SHARE, sizeof m);
	put(m + 72, 8, (uintptr_t)address);
	put(m + 80, 8, size);
	put(m + 88, 8, offset);
	/* Without sva method uffd registers the memory itself, and the kernel accepts one userfaultfd. */
	const bool may = (e->info.sva || e->info.method != EXANET_UFFD) && !(e->flags & EXANET_NO_USERFAULTFD);
	const int watched = may ? watch(address, size) : -1;
	put(m + 96, 4, (writable ? 1 : 0) | (watched < 0 ? 0 : 2));
	put(m + 100, 2, *folio > 1 ? *folio : 0);
	int error = question(e, m, sizeof m, fd, watched, NULL);
	if (error == -EPROTO && *folio > 1) {
		*folio = SINGLE_PFD;
		put(m + 100, 2, 0);
		error = question(e, m, sizeof m, fd, watched, NULL);
	}
	if (watched >= 0) {
		if (error)
			uffd_unregister(watched, address, size);
		uffd_close(watched);
		/* An older pfd does not read a userfaultfd's events, and an munmap would wait for that. */
		if (error == -EPROTO) {
			put(m + 96, 4, writable ? 1 : 0);
			error = question(e, m, sizeof m, fd, -1, NULL);
		}
	}
	error = sooner(e, error);
	if (!error && !(e->flags & EXANET_DUMP))
		madvise(address, size, MADV_DONTDUMP);	/* a dump would page in all of it */
	return error;
}

int exanet_share(exanet *e, void *address, size_t size, int fd, uint64_t offset, int writable)
{
	int folio = 0;
	return share(e, address, size, fd, offset, writable, &folio);
}

int exanet_unshare(exanet *e, void *address, size_t size)
{
	const int error = bounds(e, UNSHARE, address, size, -1);
	if (!error && !(e->flags & EXANET_DUMP))
		madvise(address, size, MADV_DODUMP);
	return error;
}

int exanet_invalidate(exanet *e, void *address, size_t size)
{
	const int error = bounds(e, INVALIDATE, address, size, -1);
	return inherited(e) ? error : sooner(e, error);
}

int exanet_register(exanet *e, void *address, size_t size)
{
	UNCANCELLED;
	if (inherited(e))
		return refuse_child(e);
	if (e->info.method != EXANET_UFFD)
		return fail(EINVAL, "exanet_register is for method uffd: attach with it");
	/* On a kernel without write-protect faults (arm64 before 6.10) missing pages wait for pfd, with the
	 * privilege also those of system calls. */
	int fd = uffd_open(0);
	if (fd < 0)
		fd = uffd_open(UFFD_USER_MODE_ONLY);
	if (fd < 0 && errno == EAGAIN)
		return fail(EAGAIN, "userfaultfd: too many threads register memory at this moment: try again");
	if (fd < 0)
		return fail(errno, "userfaultfd: %m: a seccomp filter or a security module refuses it, as Docker's default profile does: attach with another method, such as EXANET_GUP, or allow userfaultfd there");
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register r = { .range = { (uintptr_t)address, size }, .mode = UFFDIO_REGISTER_MODE_WP };
	int error = ioctl(fd, UFFDIO_API, &api);
	if (!error && (error = ioctl(fd, UFFDIO_REGISTER, &r))) {
		r.mode = UFFDIO_REGISTER_MODE_MISSING;
		error = ioctl(fd, UFFDIO_REGISTER, &r);
	}
	int result;
	if (error)
		result = fail(errno, "register %zu bytes at %p with a userfaultfd: %m", size, address);
	else if ((result = bounds(e, REGISTER, address, size, fd)))
		uffd_unregister(fd, address, size);
	uffd_close(fd);
	return result;
}

int exanet_unregister(exanet *e, void *address, size_t size) { return bounds(e, UNREGISTER, address, size, -1); }

static size_t whole(size_t size) { return (size + 4095) & ~(size_t)4095; }

/* unshared reports whether memory of exanet_alloc is private: pfd fills its missing pages, and the device
 * needs no share. */
static bool unshared(const exanet *e) { return e->info.sva && e->info.method == EXANET_UFFD; }

/* make_memory returns a memfd for exanet_share, or a negative errno. It checks the limit of file sizes first,
 * because the kernel would send SIGXFSZ. */
static int make_memory(size_t size)
{
	struct rlimit files;
	if (!getrlimit(RLIMIT_FSIZE, &files) && files.rlim_cur != RLIM_INFINITY && size > files.rlim_cur)
		return fail(EFBIG, "memory to share: %zu bytes are more than the limit of file sizes, %llu (ulimit -f)", size, (unsigned long long)files.rlim_cur);
	const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd = memfd_create("exanet-buffer", flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("exanet-buffer", flags);
	if (fd >= 0 && !ftruncate(fd, size) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return fd;
	const int error = fail(errno, "memory to share: %m");
	if (fd >= 0)
		close(fd);
	return error;
}

static void *alloc(exanet *e, size_t size, bool folios)
{
	UNCANCELLED;
	int fd = -1, error = 0;
	void *p;
	if (inherited(e)) {
		refuse_child(e);
		return NULL;
	}
	size = whole(size);
	if (!size) {
		fail(EINVAL, "a buffer of 0 bytes");
		return NULL;
	}
	struct buffer *b = calloc(1, sizeof *b);
	if (!b) {
		fail(ENOMEM, "no memory");
		return NULL;
	}
	/* Without a memfd, by a limit or a filter, a device with sva still accesses the memory, only more
	 * slowly. */
	if (!unshared(e) && (fd = make_memory(size)) < 0 && !e->info.sva) {
		free(b);
		return NULL;
	}
	b->private = fd < 0 && !unshared(e);
	if (folios)
		b->folio = e->info.method == EXANET_UFFD ? SINGLE_UFFD : !e->info.sva ? SINGLE_DEVICE : fd < 0 ? SINGLE_PRIVATE : 1;
	p = b->folio > 0 ? map_folios(size, fd) :
		mmap(NULL, size, PROT_READ | PROT_WRITE, (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED) {
		fail(errno, "a buffer of %zu bytes: %m", size);
		p = NULL;
	} else {
		buffer_at(e, p, true);	/* the caller unmapped it itself */
		if (b->folio > 0)
			b->folio = folio_of(p, size, fd);
		if (fd >= 0)
			error = share(e, p, size, fd, 0, 1, &b->folio);
	}
	if (fd >= 0)
		close(fd);	/* the mapping and pfd keep the file */
	if (p && !error && e->info.method == EXANET_UFFD && (error = exanet_register(e, p, size)) && fd >= 0)
		exanet_unshare(e, p, size);
	if (p && error) {
		munmap(p, size);
		p = NULL;
	}
	if (p && !(e->flags & EXANET_DUMP))
		madvise(p, size, MADV_DONTDUMP);
	if (!p || !(b->private || b->folio)) {
		free(b);
		return p;
	}
	b->address = p;
	pthread_mutex_lock(&e->messages);
	b->next = e->buffers;
	e->buffers = b;
	pthread_mutex_unlock(&e->messages);
	return p;
}

void *exanet_alloc(exanet *e, size_t size) { return alloc(e, size, e->flags & EXANET_FOLIOS); }

int exanet_free(exanet *e, void *p, size_t size)
{
	UNCANCELLED;
	if (inherited(e))
		return munmap(p, whole(size)) ? fail(errno, "free a buffer: %m") : 0;
	int error = e->info.method == EXANET_UFFD ? exanet_unregister(e, p, whole(size)) : 0;
	if (!error && !unshared(e) && !buffer_at(e, p, false).private)
		error = exanet_unshare(e, p, whole(size));
	if (error && error != -ENOTCONN)	/* an attachment that has ended no longer shares it */
		return error;
	buffer_at(e, p, true);
	return munmap(p, whole(size)) ? fail(errno, "free a buffer: %m") : 0;
}

int make_shared(exanet *e, size_t size, void **made)
{
	int folio = 0, fd = make_memory(size);
	if (fd < 0)
		return fd;
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	int error = p == MAP_FAILED ? fail(errno, "memory to share: %m") : share(e, p, size, fd, 0, 1, &folio);
	close(fd);
	if (error && p != MAP_FAILED)
		munmap(p, size);
	*made = p;
	return error;
}

/* make_words allocates the completion words of reads, under the lock. */
int make_words(exanet *e)
{
	if (e->words)
		return 0;
	if (unshared(e))
		e->words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	else
		e->words = alloc(e, 4096, false);
	if (e->words == MAP_FAILED || !e->words) {
		e->words = NULL;
		return -ENOMEM;
	}
	memset(e->words, 0, 4096);	/* touched, so that the words do not fault */
	return 0;
}
