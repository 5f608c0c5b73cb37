/* What probe.c shares with those who read its maps: docs/tracing.md. */

/* Of a kernel only what is read here, found by its BTF (CO-RE). */
struct bpf_iter_meta {
	void *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *map;
	void *key;
	void *value;
};

/* The registers of a user's program that holds at the point. */
struct pt_regs {
#if defined(__TARGET_ARCH_x86)
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
#elif defined(__TARGET_ARCH_arm64)
	unsigned long regs[31];
	unsigned long sp, pc, pstate;
#endif
};

#if defined(__TARGET_ARCH_x86)
#define THIRD(c) ((c)->dx)
#define FOURTH(c) ((c)->r10)
#define NUMBER(c) ((c)->orig_ax)
#define SYS_ioctl 16
#define SYS_process_vm_readv 310
#define SYS_process_vm_writev 311
#define FIRST(c) ((c)->di)
#define SECOND(c) ((c)->si)
#elif defined(__TARGET_ARCH_arm64)
#define THIRD(c) ((c)->regs[2])
#define FOURTH(c) ((c)->regs[3])
#define NUMBER(c) ((c)->regs[8])
#define SYS_ioctl 29
#define SYS_process_vm_readv 270
#define SYS_process_vm_writev 271
#define FIRST(c) ((c)->regs[0])
#define SECOND(c) ((c)->regs[1])
#endif

/* trace.Record, version 1. */
#define BATCH 32

enum record_kind {
	record_fault = 1,
	record_page_in,
	record_block,
};

enum record_flags {
	flag_write = 1,
	flag_has_block = 2,
	flag_answers = 4,
	flag_final = 8,
	flag_first = 16,
	flag_brought = 32,
};

struct record {
	__u8 kind;
	__u8 flags;
	__u8 method;
	__u8 fault_kind;
	__u8 outcome;
	__u8 policy;
	__u8 slot;
	__u8 channel;
	__u32 node;
	__u32 source;
	__u16 pdid;
	__u16 transaction;
	__u16 sequence;
	__u16 status;
	__u32 pages;
	__u32 again;
	__u64 fabric;
	__u64 page;
	__u32 span;
	__u32 reserved[3];
	__u64 times[6];
	__u64 reserved1[2];
};

/* Of a fault's times; of a block's: rung, kicked, sent, ended, published, seen. */
enum {
	fault_interrupt, fault_drained, fault_started, fault_resident, fault_answered,
	block_rung = 0, block_kicked, block_sent, block_ended, block_published, block_seen,
};

/* The stages of a fault: each ends where the next begins, and total is their sum. */
enum stage {
	ring,     /* the process rang, until pfd saw the doorbell */
	send,     /* until the block was out */
	raise,    /* until the interrupt half ran */
	drain,    /* until the FIFO entry was read */
	queue,    /* until the page-in began */
	page_in,  /* until the page was there */
	answer,   /* until the request for retransmission was out, or the process asked */
	resend,   /* until the block was acknowledged */
	complete, /* until the transfer's done was published */
	seen,     /* until the process saw it */
	total,
	/* Parts of page_in, of each call of pfd's, with what took the time: */
	kernel_enter,    /* until the kernel takes a page for it */
	kernel_populate, /* until that is zeroed, charged and mapped */
	kernel_leave,    /* until pfd runs again */
	reclaim,         /* direct reclaim in between */
	lock_wait,       /* waiting for locks in between */
	/* Of a fault, from the doorbell seen to done published: */
	preempted,       /* pfd's thread wanted the processor and did not have it */
	slept,           /* pfd's thread slept */
	/* Each time that pfd's thread was woken: */
	wake_pfd,        /* until it ran */
	STAGES,
};

enum method { unknown, gup, touch, uffd, populate };
enum kind { none, minor, major, permission };
enum outcome { pending, resolved, failed, delegated, unsent, removed };

enum counter {
	batches,       /* hits of the point */
	records,       /* in these */
	bad_records,   /* of a kind or with values that no record has */
	unreadable,    /* records that could not be copied */
	faults,
	failures,      /* faults whose page will never be there */
	rapfs,         /* requests for retransmission */
	rapf_fails,    /* of blocks that cannot be served */
	page_ins,      /* that brought a page */
	pages,         /* that they made resident */
	blocks,        /* that were refused and have ended */
	refusals,      /* of these blocks: at each one wait for one request */
	joined,        /* refusals whose faults are known */
	joined_faults, /* these faults */
	lone,          /* refusals without a known fault */
	bare,          /* faults that name no block */
	crowded,       /* faults left out: more than eight of one refusal */
	full,          /* a map was full */
	stamp_bad,     /* stamps of processes that cannot be */
	events_lost,   /* nobody read them in time */
	kernel_page_ins, /* page-ins of which the kernel's part is known */
	kernel_missed,   /* page-ins that made a page resident, and it is not */
	COUNTERS,
};

/* Histograms: values below 8 ns are their own bucket, then eight a power of two. */
#define BUCKETS 280

struct latency_key {
	enum stage stage;
	enum method method;
	enum kind kind;
};

struct latency {
	__u64 count;
	__u64 sum_ns;
	__u64 max_ns;
	__u64 buckets[BUCKETS];
};

struct domain_key {
	__u32 pid; /* pfd's */
	__u32 node;
	__u32 pdid;
};

struct domain {
	__u64 faults;
	__u64 failures;
	__u64 pages;
	__u64 worst_ns;
	__u64 worst_page;
};

/* One fault with its stages; a stage that is not known is -1. */
struct fault_event {
	__u64 total_ns;
	__u64 start_ns; /* CLOCK_MONOTONIC */
	__u64 page;
	__u32 pid;
	__u32 node;
	__u32 source;
	__u16 pdid;
	__u16 transaction;
	__u16 sequence;
	__u16 status;
	__u8 slot;
	__u8 channel;
	__u8 flags;
	__u8 outcome;
	enum method method;
	enum kind kind;
	__u32 again;
	__u32 reserved;
	__u64 preempted_ns; /* of pfd's thread, meanwhile */
	__u64 slept_ns;
	__s64 stages[total];
};

/* Which events are wanted; all ones: any. */
struct settings {
	__u32 events; /* 1: somebody reads them */
	__u32 node;
	__u32 pdid;
	__u32 kind;
	__u64 slower_ns;
	__u64 slowest_floor; /* the least of fault_slowest, probe.c's own */
};
#define ANY (~0U)

/* What is attached: each by itself. */
enum source {
	fault_source, /* the records of pfd's probe point */
	latency_table,
	page_source,
	fault_address_source,
	reclaim_source,
	lock_source,
	processor_source,
	SOURCES,
};

struct source_state {
	__u32 attached;
	__u32 nop; /* bytes */
	char reason[240];
};

/* Who is watched: every pfd that has shown a batch. */
struct pfd {
	__u32 thread; /* that showed the last one: the engine's, as Go has it */
	__u32 reserved;
	__u64 batches;
	__u64 first_ns;
	__u64 last_ns;
};

/* What joins a block's refusal to its faults. */
struct refusal_key {
	__u64 fabric;
	__u32 source;
	__u16 transaction;
	__u16 sequence;
};

#define WAITING 8

struct waiting_fault {
	__u64 page;
	__u64 times[5];
	__u32 node;
	__u16 pdid;
	__u8 slot;
	__u8 flags;
	__u8 method;
	__u8 fault_kind;
	__u8 outcome;
	__u8 reserved[5];
};

struct waiting {
	__u64 n;
	struct waiting_fault faults[WAITING];
};

/* What the kernel did in a page-in of pfd's: found by the page that the system call
   names, since Go moves the engine between threads. */
struct call_key {
	__u32 pid;
	__u32 reserved;
	__u64 page;
};

/* The last ones: a batch can have several page-ins of one page. */
#define ALLOCATED 32
#define POPULATED 16
#define WAITS 8

struct call_marks {
	__u64 allocated_n, populated_n, waits_n;
	__u64 allocated_ns[ALLOCATED]; /* a page was taken */
	__u64 populated_ns[POPULATED]; /* the copy was refused: the page is in */
	struct {
		__u64 ended_ns;
		__u64 ns;
		__u64 stage; /* reclaim or lock_wait */
	} waits[WAITS];
};

/* What a thread of pfd's is about. */
struct thread {
	__u64 reclaim_began;
	__u64 lock_began;
	__u64 lock;
	__u64 woken;
	__u64 off_began;
	__u32 off_preempted;
	__u32 n;
	struct {
		__u64 from, to;
	} off[16]; /* to's lowest bit: 1 preempted, 0 slept */
};

struct task_struct {
	int pid;
	int tgid;
} __attribute__((preserve_access_index));

struct raw_args {
	__u64 args[4];
};

struct iovec_user {
	__u64 base;
	__u64 len;
};
