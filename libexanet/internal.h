/* Declarations shared by the parts of libexanet. Numbers in comments are sections of docs/attach.md. */
#ifndef EXANET_INTERNAL_H
#define EXANET_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "exanet.h"

/* Messages (2). */
enum { HELLO = 1, WELCOME, REFUSED, ENDED, SHARE, UNSHARE, SHARED, REGISTER, UNREGISTER, MEMORY_OFFER, MAPPED, HELPER, INVALIDATE = 14, WINDOW, UNWINDOW, RING, RINGED, UNRING, THREAD, THREADED, UNTHREAD };
enum { HEADER = 72, HELLO_SIZE = 232, WELCOME_SIZE = 112, SHARE_SIZE = 104, BOUNDS_SIZE = 88, SHARED_SIZE = 96,
       HELPER_SIZE = 80, RING_SIZE = 104, WINDOW_SIZE = 96, THREAD_SIZE = 96, THREADED_SIZE = 104, UNTHREAD_SIZE = 80, TEXT_SIZE = 512, PROTOCOL = 2 };

/* The memory (3). */
enum { DOORBELL = 0x1000, PACKETIZER = 0x2000, PACKETIZER_CHANNEL = 0x400, PACKETIZER_SEND = 0x48, PACKETIZER_STATUS = 0x50,
       ASLEEP = 0x3000, KICK = 0x3004, EVENT = 0x3008, WAITERS = 0x300c, STATE = 0x3010, SERVED = 0x3018, SERVED_ERRNO = 0x301c,
       STAT_FAULTS = 0x3040, WATCHED = 0x3060, RUNG = 0x3064, MAIL_TAIL = 0x3100, MAIL_HEAD = 0x3104, MAIL = 0x3140, MAIL_SIZE = 0x50,
       MAIL_SLOTS = 32, STAMPS = 0x3c00, MEMORY = 0x4000 };

/* Ports: a packetizer and a mailbox, the process's own from PACKETIZER on, those of threads behind MEMORY (12). */
enum { PORT = 0x2000, THREADS = 8, MEMORY_THREADS = MEMORY + THREADS * PORT };

/* Descriptors (3). */
enum { DESCRIPTOR = 64, DONE = 44, ROUTE = 48, RESULT = 56 };
#define DONE_NEVER 0xffffffffu
enum { DONE_READY = 0, DONE_OK = 1, DONE_FAILED = 3 };

enum { STATUS_ADDRESS = 2, STATUS_ABORTED = 9, STATUS_GONE = 10 };

/* Packetizer channels: a fault never waits for a doorbell, and a message for none of them. */
enum { SEND_DOORBELL, SEND_FAULT, SEND_READ, SEND_MESSAGE };

/* Rings (11). */
enum { RINGS = 1024, MAIL_RINGS = 8 };
struct rings;

enum { CHANNELS = 32, READS = 32, MAILBOX_PROCESS = 16, SLOTS = 16 };

struct keeper;
struct streams;
struct threads;

/* What is recorded of memory of exanet_alloc. */
struct buffer {
	struct buffer *next;
	void *address;
	bool private;	/* it could not be shared */
	int folio;	/* pages that come in together, or why single ones do; 0: folios were not requested */
};

/* Reasons for single pages. Values are defined by this project. */
enum { SINGLE_KERNEL = -1, SINGLE_SETTING = -2, SINGLE_UFFD = -3, SINGLE_PRIVATE = -4, SINGLE_PFD = -5, SINGLE_DEVICE = -6 };

struct read {
	bool open, cancelled;
	bool sent;		/* its request, and whether pfd refuses that is not known yet */
	uint16_t tag;
	uint32_t use, node;
	uint64_t last, words[7];
	int64_t due, pause;	/* ns: when it is requested again */
};

/* A handler of the messages of a kind is called by any thread that empties the mailbox, with the lock held:
 * it must call no function of an attachment. A message without words is the refusal of one of this process's. */
typedef void exanet_handler(void *arg, const struct exanet_message *);
enum { KINDS = 4 };	/* 0, 12, 13 and 14 */
struct kind {
	exanet_handler *handler;
	void *arg;
	struct exanet_message *queue;	/* of a kind without a handler */
	unsigned head, count;
	uint32_t last;		/* number of the message that was sent last: atomic */
};

/* A page-fault thread. A message wakes an idle one, the first one if it is idle. If none is left idle,
 * another is started, so that a page that never arrives delays only itself. */
enum { SERVERS = 8 };
struct server {
	exanet *e;
	pthread_t thread;
	int epoll;
	uint64_t page;		/* number of the page that it pages in, 0: idle */
	int64_t since;
};

struct exanet {
	pthread_mutex_t lock;	/* guards channels, reads, and the callers' two packetizer channels */
	pthread_mutex_t messages;	/* one request on the socket at a time */
	struct keeper *keeper, *lent;	/* for pfd, for the helper */
	uint32_t *own;		/* a page that fork empties: 1 in the process that attached, 0 in its children */
	struct buffer *buffers;	/* under messages */
	const uint32_t *trust;	/* of the options, while it attaches */
	unsigned ntrust;
	int socket, eventfd, netlink;
	unsigned char *pages;
	struct ucred pfd;
	uint32_t pfd_port;
	pid_t pfd_pid;		/* in pfd's own namespace, as in its fault messages: SO_PEERCRED returns another in another pid namespace */
	struct exanet_info info;
	int stop;		/* an eventfd that ends the page-fault threads */
	unsigned flags;		/* of the options */
	pthread_mutex_t serving;	/* guards servers, and their packetizer channel */
	unsigned nservers;	/* 0: none, and no more are started */
	struct server servers[SERVERS];
	uint32_t use[CHANNELS];
	uint32_t busy;		/* channels with a transfer of this attachment */
	struct read reads[READS];
	struct read *asking;	/* the read whose request is in the packetizer or was sent last */
	struct kind kinds[KINDS];	/* messages of other processes */
	uint32_t kept;		/* messages in all queues: written under lock, atomic */
	uint64_t dropped;	/* messages without room or of a reserved kind */
	pthread_mutex_t sending;	/* guards left, and the packetizer channel of messages; taken before lock */
	struct exanet_message left;	/* number, node, kind's index (count) of a message that pfd may not have read */
	bool accessed;		/* pfd has not confirmed the end */
	struct rings *rings;	/* NULL: there was none yet */
	pthread_mutex_t streaming;	/* guards streams while they are made; taken before all others */
	struct streams *streams;	/* NULL: none yet */
	size_t size;		/* of pages */
	struct threads *threads;	/* of GSAS, under lock; NULL: none yet */
	uint64_t *words;	/* completion words of reads, 16 bytes each */
	int64_t time_offset;	/* of CLOCK_MONOTONIC in the time namespace, ns */
	uint64_t last;
	uint64_t crowded;	/* until then no waiting thread yields */
	int64_t unread;		/* until then doorbell_free does not wait: under lock */
	uint64_t looked;	/* when gone checked the socket: a killed pfd writes nothing to the memory */
};

/* Each access to a word of the memory is one atomic access of its width (3). */
static inline uint32_t load32(const void *p) { return __atomic_load_n((const uint32_t *)p, __ATOMIC_SEQ_CST); }
static inline uint64_t load64(const void *p) { return __atomic_load_n((const uint64_t *)p, __ATOMIC_SEQ_CST); }
static inline void store32(void *p, uint32_t v) { __atomic_store_n((uint32_t *)p, v, __ATOMIC_SEQ_CST); }
static inline void store64(void *p, uint64_t v) { __atomic_store_n((uint64_t *)p, v, __ATOMIC_SEQ_CST); }

/* Numbers on the socket are little-endian and need not be aligned. */
static inline void put(unsigned char *m, int size, uint64_t v)
{
	for (int i = 0; i < size; i++)
		m[i] = v >> 8 * i;
}

static inline uint64_t get(const unsigned char *m, int size)
{
	uint64_t v = 0;
	for (int i = size - 1; i >= 0; i--)
		v = v << 8 | m[i];
	return v;
}

static inline int cancel_never(void)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void cancel_as_before(int *before) { pthread_setcancelstate(*before, NULL); }

/* In a function: a thread that is cancelled there ends after the function has returned, and holds no lock. */
#define UNCANCELLED __attribute__((cleanup(cancel_as_before))) int cancel_before = cancel_never()

/* fail stores the text for exanet_error and returns -code. */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* fail_often does the same with a constant text, for what a program that polls does all the time. */
int fail_often(int code, const char *words);

/* inherited reports whether this process is a forked child of the one that attached. The attachment is the
 * parent's: the child must not use it, and its pages are not mapped here. */
static inline bool inherited(const exanet *e) { return !load32(e->own); }
/* refuse_child returns 0, or -EPERM in such a child. */
static inline int refuse_child(const exanet *e)
{
	return inherited(e) ? fail(EPERM, "the attachment is that of the process that forked this one: attach here") : 0;
}

enum { PATH_SIZE = 256 };	/* a socket's path has at most 107 bytes; a caller's stack may be small */
extern const char machine_directory[];

/* Rules that package rdma has, too. rule_find returns the control socket of a client that names none: the
 * first that exists in the directories of RUNTIME_DIRECTORY, in XDG_RUNTIME_DIR (not for root) and in the
 * machine's directory; else the one that a pfd would create. false: there is none. */
bool rule_find(char *path, size_t size, uid_t euid, const char *runtime, const char *user, bool (*exists)(const char *));
/* rule_same reports whether two user ids certainly mean one user. */
bool rule_same(uid_t a, uid_t b);
/* rule_server reports whether a server of user uid may access this process's memory. owner is the owner of
 * machine_directory. */
bool rule_server(uid_t uid, uid_t euid, const uint32_t *trust, unsigned ntrust, const char *socket, uid_t owner);
/* rule_program reports whether a memory helper's program may be executed. */
bool rule_program(uid_t owner, mode_t mode, uid_t euid, const uint32_t *trust, unsigned ntrust);

/* A program that a keeper starts as its own child, with files as its descriptors 0, 1, ... */
enum { PROGRAM_KEEPER = 7, PROGRAM_FILES = 8 };	/* PROGRAM_KEEPER: a pidfd of the keeper, which the keeper opens */
struct program {
	char path[32];
	int files[PROGRAM_FILES];	/* each PROGRAM_FILES or more */
};
/* keeper_make creates a keeper, which starts program unless that is NULL. NULL: *why is a negative errno,
 * and fail has the text. */
struct keeper *keeper_make(pid_t ptracer, struct program *program, int *why);
/* keeper_end_helper kills the keeper's child and reports whether it has ended in time. */
bool keeper_end_helper(struct keeper *, int ms);
void keeper_end(struct keeper *);
/* keeper_forget releases a forked child's copy of a keeper. */
void keeper_forget(struct keeper *);
int keeper_pidfd(const struct keeper *);
const unsigned char *keeper_proof(const struct keeper *);

/* uffd_open opens a non-blocking userfaultfd that no forked child keeps, until uffd_close closes it. -1 and
 * errno; EAGAIN: too many threads have one now. uffd_prepare does the first one's setup earlier. */
void uffd_prepare(void);
int uffd_open(int flags);
void uffd_close(int fd);
/* uffd_unregister ends a registration for every copy of the descriptor. */
void uffd_unregister(int fd, void *address, size_t size);

/* buffer_at returns what is recorded of memory of exanet_alloc, zeros if nothing is. drop removes the record. */
struct buffer buffer_at(exanet *, const void *address, bool drop);
/* map_folios maps a memfd at an address at which folios fit, as mmap(2) does. */
void *map_folios(size_t size, int fd);
/* folio_of advises a new memfd's mapping to use folios, and returns how many pages come in together, or why
 * single ones do. The memory stays absent. */
int folio_of(void *address, size_t size, int fd);

int helper_start(exanet *, int *fds, int nfds);

void message(unsigned char *m, int type, int size);
ssize_t message_receive(int socket, unsigned char *m, size_t size, int *fds, int *nfds);

/* question sends a message after WELCOME, with up to two descriptors (-1: none), and waits for its answer. got
 * is for the descriptor of RINGED, NULL for another answer. bounds is a question of a range. */
int question(exanet *, unsigned char *m, size_t size, int fd, int second, int *got);
/* question_thread is question for a THREAD, whose answer it copies to a, of THREADED_SIZE. */
int question_thread(exanet *, unsigned char *m, unsigned char *a, int *got);
int bounds(exanet *, int type, void *address, size_t size, int fd);
/* unmap_shared unmaps memory of the library when the attachment ends. If pfd has not confirmed the end, the memory
 * stays: something may be written into it, and the munmap would wait for pfd, which may be stopped. */
void unmap_shared(const exanet *, void *address, size_t size);
/* make_shared makes new memory and shares it, if pfd shares any with this process. */
int make_shared(exanet *, size_t size, void **made);

/* ring_message writes RING. */
void ring_message(unsigned char *m, uint64_t address, uint64_t bytes, uint64_t arm);
/* window_message writes WINDOW or UNWINDOW. */
void window_message(unsigned char *m, int type, uint64_t address, uint64_t bytes, uint16_t peer, int rights);
/* free_rings closes this process's descriptors of all rings. */
void free_rings(exanet *);

/* start_thread starts a thread with a small stack: 0, or an errno. */
int start_thread(pthread_t *, void *(*run)(void *), void *arg);
/* joined waits for a thread's end, and reports whether it ended before end. */
bool joined(pthread_t, int64_t end);
/* start_server starts a page-fault thread, with serving held: 0, or an errno. */
int start_server(exanet *);
void kick(exanet *);
bool gone(exanet *);
/* over reports whether the attachment has ended. It asks the kernel only if nobody did within the last ns. */
bool over(exanet *, int64_t ns);
/* wait_event sleeps until EVENT of a port is not was, or for ns, and reports whether it was woken before. tell_waiters
 * wakes the threads that sleep so on the process's own port, as pfd does. */
void tell_waiters(exanet *);
bool wait_event(unsigned char *port, uint32_t was, int64_t ns);
int64_t now(void);
/* rest sleeps for a pause (ns, below a second) and lengthens it by a quarter, up to most: a wait that checks
 * after each pause lasts at most a quarter too long. */
void rest(int64_t *pause, int64_t most);
int make_words(exanet *);
/* A flag of exanet_write: -EBUSY if pfd does not read the doorbell, as if all channels had a transfer. */
enum { WRITE_SOON = 1 << 30 };
enum { SPIN = 20000 };	/* ns: a wait checks without sleep for that long */
/* offer offers the processor to others in a wait that has lasted since began and is at a time now. It returns false
 * if others use the processor: the caller should sleep. */
bool offer(exanet *, int64_t began, int64_t at);
/* sleep_until calls done until it returns another value than EXANET_ONGOING, or the timeout has passed.
 * Words from another pfd, and the end of a killed pfd, wake no thread, so it checks by itself after a
 * millisecond, and then after a part of the time that it has waited, up to most. */
int sleep_until(exanet *, int timeout, int64_t most, int (*done)(exanet *, const void *), const void *arg);
/* sleep_on is sleep_until for what comes to a port. */
int sleep_on(exanet *, unsigned char *port, int timeout, int64_t most, int (*done)(exanet *, const void *), const void *arg);

unsigned char *packetizer(exanet *, int channel);
/* publish_in writes words to a free packetizer channel of a port; publish also kicks. */
void publish_in(unsigned char *port, int channel, uint64_t destination, const uint64_t *words, int n, uint32_t number);
void publish(exanet *, int channel, uint64_t destination, const uint64_t *words, int n, uint32_t number);
/* refused reports whether the last message of a channel, which pfd has read, was refused. */
bool refused(exanet *, int channel);

int take_mail(exanet *, struct read *mine);
/* keep_message takes a message of the mailbox, under the lock, unless it is a firmware's answer to a read. */
bool keep_message(exanet *, uint64_t source, const unsigned char *words);
void forget_messages(exanet *);
/* exanet_handle sets the handler of a kind other than the program's. */
int exanet_handle(exanet *, int kind, exanet_handler *, void *arg);
/* post_message is exanet_send without a wait: -EBUSY if pfd has not read the message before. A refusal is always
 * reported later, to the kind's handler. */
int post_message(exanet *, const struct exanet_remote *, const uint64_t *words, int n);
/* collect_messages hands the messages that have arrived to their handlers and queues. */
void collect_messages(exanet *);

/* free_threads frees what the attachment has for threads of GSAS. */
void free_threads(exanet *);

/* end_streams ends the thread of the streams; false: it has not ended in time. free_streams frees all of them. */
bool end_streams(exanet *);
void free_streams(exanet *);

#endif
