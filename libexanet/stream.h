/* Streams (docs/streams.md): declarations shared by their parts. The protocol is a machine without I/O, as in Go's
 * package stream: stream_wire.c, stream_end.c and stream_host.c. stream_io.c is its outside, and stream.c has the
 * program's calls. One lock guards all of it but the bytes in rings and copies. */
#ifndef EXANET_STREAMS_H
#define EXANET_STREAMS_H

#include "exanet_stream.h"
#include "internal.h"

/* Sizes, and places in the words of one end. Values are defined by docs/streams.md. */
enum { SPANS = 64, SHORT = 48, RING_LEAST = 64 << 10, RING_MOST = 16 << 20 };
enum { SPAN_WORDS = 16, CREDIT_AT = SPANS * SPAN_WORDS, BEAT_AT = CREDIT_AT + 16, WORDS_SIZE = BEAT_AT + 16, FIN = 1 };
enum { SPAN_NUMBER = (1 << 24) - 1 };	/* the part of a span's number that its slot holds */
enum { REFRESH = 1 << 22 };	/* of so many spans the last SPANS go into their slots, even short ones */

/* Operations of a connection's message; flags of a shutdown; reasons of a reject (docs/streams.md). */
enum { OP_CONNECT = 1, OP_ACCEPT, OP_REJECT, OP_SHUTDOWN };
enum { FLAG_ANSWER = 1, FLAG_RESET = 2, FLAG_DOUBTFUL = 4, FLAG_UNKNOWN = 8, REASON_PORT = 1, REASON_ROOM = 2 };
enum { KIND_STREAM = 12, KIND_CONNECTION = 13 };

/* Times, ns, and limits. Values are defined by docs/streams.md, those of the last line by this project. */
#define ASK_AGAIN INT64_C(20000000)
#define ASK_FOR INT64_C(5000000000)
#define REFUSED_FOR INT64_C(250000000)
#define CREDIT_WITHIN INT64_C(8000000)
#define BEAT_EVERY INT64_C(1000000000)
#define NEVER INT64_MAX
#define TOMBSTONE INT64_C(10000000000)
#define BUSY_AGAIN INT64_C(100000)
enum { ENDS = 4096, BACKLOG = 128, UNSENT = 128, TOMBS = 1024, SILENT = 60 };	/* SILENT: beats without an answer */

struct words { uint64_t first, last; };	/* two completion words */

struct slot {
	uint64_t offset;
	uint32_t length, number;	/* number: the span's + 1, 24 bits; 0 in a slot that was never written */
	uint8_t flags;
};
struct credit {
	uint64_t bytes, spans;
	bool reset;
};
struct short_span {
	uint32_t to, number;
	int length;
	unsigned char data[SHORT];
};
struct connection_message {
	uint32_t from, to, generation, size;
	uint64_t ring, words, caller[3];
	uint8_t op, flags;
};

struct words encode_slot(struct slot);
struct slot decode_slot(struct words);
struct words encode_credit(struct credit);
struct credit decode_credit(struct words);
bool same_credit(struct credit, struct credit);
/* encode_short returns the number of words. The data after length bytes must be zero. */
int encode_short(const struct short_span *, uint64_t *words);
/* decode_short and decode_connection return false for a message that cannot be; the ids are decoded if there are
 * words enough. */
bool decode_short(const uint64_t *words, int n, struct short_span *);
void encode_connection(const struct connection_message *, uint64_t *words);
bool decode_connection(const uint64_t *words, int n, struct connection_message *);

/* The process at the other end, as its node names it; the generation is its own word, and a wrong one harms only
 * its connections. */
struct peer {
	uint32_t node, generation;
	uint16_t pdid;
	uint8_t interface;
};
bool same_peer(const struct peer *, const struct peer *);
bool same_process(const struct peer *, const struct peer *);	/* whatever its generation */

struct span {
	uint64_t offset;
	uint32_t length;
	uint8_t flags;
	bool flying;	/* a write of it is in flight */
	int64_t due;	/* when it is written into its slot; NEVER: it is */
};
/* The sending direction. Bytes wait in a copy of the peer's ring until they may be overwritten: when the receiver
 * has consumed them and no write of them is in flight, which could still read them and write them once more. */
struct sender {
	uint64_t window, sent, next, oldest;	/* bytes; bytes so far; numbers of the next span and the first in flight */
	struct span spans[SPANS];
	struct credit credit;	/* the newest */
	bool fin, stopped;	/* the last span was sent; the receiver takes no more, or the connection was reset */
	int64_t due;		/* the first of the spans' */
};
struct receiver {
	unsigned char *ring;
	uint64_t size, next, taken, read, done;	/* next span; bytes of the spans so far; bytes, spans consumed */
	uint64_t ends[SPANS];
	bool fin, stop;		/* the last span was taken; nothing more is taken */
	bool flying;		/* the credit told: one at a time is in flight, because writes are not ordered */
	struct credit told;
	int64_t due;
	struct short_span *early;	/* that arrived by message before their turn; length 0: none */
};

/* Memory of an end that its peer writes. */
struct area {
	uint64_t ring, words;
	uint32_t size;
};

/* The life of a peer. Its silence is counted in beats of this process that have ended since: while pfd or this
 * process is stopped there are none, and the silence says nothing of the peer. */
struct life {
	struct life *next;
	struct peer peer;
	unsigned ends, silent;
	int64_t beat;		/* when this process shows the next sign of life */
	struct end *by;
	uint32_t last;		/* the end that wrote the last beat */
};

struct end {
	struct host *host;
	uint32_t id, peer_id, port;	/* peer_id: 0 while it dials; port: dialed, or the listener's */
	struct peer peer;
	struct life *life;
	struct area own, remote;
	unsigned char *copy;
	uint64_t copy_size;
	struct sender s;
	struct receiver r;
	int64_t asked, ask_due;	/* connect or shutdown: the first, the next */
	unsigned asks, refusals;	/* of connect */
	int error;		/* an errno: why the connection was reset */
	const char *why;
	bool accepted, closed;	/* closed: by the program */
	bool doubtful;		/* a write failed and may still land */
	bool acked;		/* the peer has answered the shutdown */
	bool peer_shut, lost;	/* the peer has nothing in flight and writes no more; it never said so */
	bool peer_doubtful;
	bool deaf;		/* a credit has failed */
	bool vanished;		/* a write failed because the peer has ended */
	bool changed;		/* since out_changed */
	uint64_t beats;		/* the last beat */
	struct end *queued;	/* the next one in a listener's queue */
};

static inline bool end_dials(const struct end *e) { return !e->peer_id; }

uint64_t sender_room(const struct sender *, uint64_t want);
/* receiver_available returns the bytes that can be read without a wrap, and where they are. */
uint64_t receiver_available(const struct receiver *, const unsigned char **at);

/* end_poll takes all that has arrived and ended, and does what is due. After each other call that takes a time
 * host_poll must be called. */
void end_poll(struct end *, int64_t now);
void end_opened(struct end *, uint32_t id, const struct area *remote);
void end_dial(struct end *, int64_t now);
/* end_send sends n bytes, which are in the copy. */
void end_send(struct end *, int64_t now, uint64_t n);
void end_of_stream(struct end *, int64_t now);
void end_consume(struct end *, int64_t now, uint64_t n);
void end_close(struct end *, int64_t now);
/* end_fail resets the connection. Bytes that were taken before can still be read. */
void end_fail(struct end *, int error, const char *why);
void end_gone(struct end *, const char *why);
void end_ask_refused(struct end *);
void end_refused(struct end *, const char *why);
void end_short_refused(struct end *, int64_t now, uint64_t n);
bool end_message(struct end *, const struct short_span *);
void end_peer_shutdown(struct end *, uint8_t flags);
/* end_beat reports whether a beat was written. */
bool end_beat(struct end *, int64_t now);
/* end_over reports whether the end can be forgotten; end_flushed, whether all that was sent is in the peer's
 * memory, or never will be. */
bool end_over(const struct end *);
bool end_flushed(const struct end *);
int64_t end_deadline(const struct end *);
struct connection_message end_connection(const struct end *, uint8_t op, uint8_t flags);

struct listener {
	struct listener *next;
	uint32_t port;
	unsigned waiting;
	struct end *first, *last;
};

/* All connections of an attachment. */
struct host {
	struct peer own;
	struct end *ends[ENDS];	/* by the low bits of their ids */
	unsigned used;		/* places of ends that were ever used */
	uint32_t count;		/* of ends so far */
	struct listener *listeners;
	struct life *lives;
	struct tomb { struct peer peer; uint32_t id; int64_t until; } tombs[TOMBS];
	unsigned tomb;
	struct answer { struct peer to; struct connection_message m; } unsent[UNSENT];
	unsigned first, unsents;
	int64_t beat;		/* the next of a life's */
	int64_t due;		/* the earliest deadline that came since host_step */
	bool again;		/* an end has to be polled that was passed */
};

struct listener *host_listener(const struct host *, uint32_t port);
struct end *host_end(const struct host *, uint32_t id);
struct end *host_dial(struct host *, int64_t now, uint32_t node, uint8_t interface, uint32_t port);
/* host_poll polls an end, and removes it once it is finished. */
void host_poll(struct host *, int64_t now, struct end *);
/* host_step polls all ends and returns when to call it again. */
int64_t host_step(struct host *, int64_t now);
void host_connection(struct host *, int64_t now, const struct peer *from, const uint64_t *words, int n);
void host_short(struct host *, int64_t now, const struct peer *from, const uint64_t *words, int n);
void host_answer(struct host *, const struct peer *, const struct connection_message *);
/* host_gone ends the connections to a peer that has ended, NULL: all. */
void host_gone(struct host *, const struct life *, const char *why);

/* What the machine cannot do by itself. No call waits: out_post, out_short, out_write and out_credit return false
 * if no channel is free. */
enum landed { FLYING, LANDED, FAILED, VANISHED };	/* VANISHED: the peer has ended */
bool out_post(struct host *, const struct peer *, uint32_t id, const struct connection_message *);
bool out_short(struct end *, uint64_t n, const uint64_t *words, int count);
/* out_write writes size bytes of the copy, from offset of the stream, into the peer's ring, with completion words
 * in the slot of span n. Without bytes it writes the words alone. */
bool out_write(struct end *, uint64_t n, uint64_t offset, uint32_t size, struct words);
enum landed out_landed(struct end *, uint64_t n);
bool out_credit(struct end *, struct words);
enum landed out_credited(struct end *);
struct words out_slot(const struct end *, unsigned i);
struct words out_credits(const struct end *, uint64_t *beat);
void out_abort(struct end *);
/* out_add returns a new end with its memory and a place, NULL: there is none. out_put takes the memory back;
 * retired: something may still be written into it. */
struct end *out_add(struct host *, unsigned *place);
void out_put(struct end *, bool retired);
void out_changed(struct end *);
void out_arrived(struct listener *);

/* The outside. */
enum { END_RING = 1 << 20, SLAB_ENDS = 8, KEPT_RINGS = 8, INBOX = 512, SENT = 256 };	/* defined by this project */

struct waiter {
	pthread_cond_t cond;
	unsigned parked;	/* threads that wait for cond */
};

struct exanet_stream {
	struct end end;		/* first */
	struct streams *s;
	unsigned char *rings, *words;	/* the ring and the copy; the words and this end's own beat */
	int writes[SPANS], credit;	/* transfers, or the negative errno of one that could not begin */
	int status;		/* of one that has failed */
	bool reading, writing;	/* a thread copies bytes without the lock */
	bool held, over;	/* the handle is in use; the end is no more */
	struct waiter w;
};

struct exanet_listener {
	struct listener l;	/* first */
	struct streams *s;
	struct waiter w;
};

/* Messages of a kind that have arrived: written under the attachment's lock, taken under that of the streams. */
struct inbox {
	struct exanet_message list[INBOX];
	uint32_t head, tail;
};

struct sent { uint32_t number, id; uint64_t n; };	/* a message: its end, its span */

struct streams {
	exanet *e;
	pthread_mutex_t lock;
	struct host host;
	struct inbox inbox[2];	/* kinds 12 and 13 */
	struct sent sent[2][SENT];
	unsigned parked;	/* threads that sleep */
	struct waiter *watcher;	/* of the one that sleeps for arrivals, NULL: none does */
	unsigned watches;	/* how often one did */
	int watch;		/* an eventfd that wakes it */
	bool spinning;		/* a thread spins */
	int error;		/* why the attachment has ended */

	/* The words of all ends lie side by side. Rings are made in slabs, absent until they are used, and used again
	 * when nothing can be written into them any more. */
	unsigned char *words;
	unsigned used, nplaces, nslabs, nrings, nstale;
	uint16_t places[ENDS];
	unsigned char *slabs[ENDS / SLAB_ENDS], *rings[ENDS];
	struct stale { unsigned char *rings; bool retired; } stale[ENDS];	/* to be discarded, which asks pfd */

	pthread_t thread;
	bool runs, stop;
	int wake, ring;		/* an eventfd, a ring of the mailbox: of the thread */
	int64_t planned;	/* when the thread wakes, 0: it is awake */
	bool arrivals;		/* it also wakes when something arrives */

	int fd, fd_ring, fd_event;	/* of exanet_stream_fd: -1: none */
	bool armed;
};

extern const char ended_text[];
/* wake_program makes exanet_stream_fd readable. */
void wake_program(struct streams *);
void drain_eventfd(int fd);
bool waiter_init(struct waiter *);
void wake_waiter(const struct streams *, struct waiter *);

/* What a thread waits for. */
struct wait {
	struct streams *s;
	struct waiter *w;
	exanet_stream *x;	/* NULL: a listener */
	bool (*ready)(const void *);
	const void *arg;
};
/* until waits until ready returns true; false: the timeout has passed before. The lock is held before and after.
 * One thread of the process may spin; the others leave the work to the library's thread. */
bool until(const struct wait *, int timeout);
/* plan wakes the library's thread if it sleeps for longer than e may wait (NULL: no end changed), or does not wait
 * for arrivals and a thread of the program does. */
void plan(struct streams *, const struct end *e);
/* streams_of returns the streams of an attachment with their lock held, and makes them if there are none. NULL:
 * *error says why. */
struct streams *streams_of(exanet *, int *error);
void free_stream(exanet_stream *);
/* receive_messages takes the messages that have arrived. */
void receive_messages(struct streams *);
/* discard returns the pages of stale rings to the kernel. It is called with the lock held, and releases it meanwhile. */
void discard(struct streams *);
void free_memory(struct streams *);
/* deliver is the handler of a kind; its argument is the inbox. */
exanet_handler deliver;

#endif
