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
#define SYS_madvise 28
#define SYS_process_vm_readv 310
#define SYS_process_vm_writev 311
#define FIRST(c) ((c)->di)
#define SECOND(c) ((c)->si)
#elif defined(__TARGET_ARCH_arm64)
#define THIRD(c) ((c)->regs[2])
#define FOURTH(c) ((c)->regs[3])
#define NUMBER(c) ((c)->regs[8])
#define SYS_ioctl 29
#define SYS_madvise 233
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
	record_client, /* a process that is attached, or with flag_final was */
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
	__u32 process; /* of the slot */
	__u32 reserved[2];
	__u64 times[6];
	__u64 obeyed; /* of a block: the request for retransmission */
	__u64 reserved1;
};

/* Set in fabric where the nodes are served by the process with that pid. */
#define SERVED (1ULL << 63)

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
	lock_wait,       /* waiting for the mmap_lock of the process in between */
	lock_other,      /* waiting for other locks in between */
	/* Of a fault, from the doorbell seen to done published: */
	preempted,       /* pfd's thread wanted the processor and did not have it */
	slept,           /* pfd's thread slept */
	/* Each time that pfd's thread was woken: */
	wake_pfd,        /* until it ran */
	/* Each time that pfd woke a thread of an attached process: */
	wake_client,     /* until it ran */
	/* Of a fault that the process is asked to serve: */
	delegate_run,    /* until a thread of the process ran */
	delegate_touch,  /* until its access or its madvise faulted */
	delegate_answer, /* until its answer was there */
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
	halves,          /* faults of a device elsewhere whose blocks are not seen */
	shared_faults,   /* faults in which a process ran on the processor of pfd's thread */
	iommu_faults,    /* that the machine's IOMMUs reported, of any device */
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
	__u64 preempted_ns; /* of sum_ns: pfd's thread wanted the processor and did not have it */
	__u64 slept_ns;     /* it slept */
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

/* What of a fault is known: of a device elsewhere perhaps one half. */
enum half { whole, driver_half, sender_half };

/* One fault with its stages; a stage that is not known is -1. Of a sender's half resend
   begins when the block was out. */
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
	enum half half;
	__u32 shared; /* 1: a process ran on the processor of pfd's thread meanwhile */
	__u32 reserved;
	__s64 stages[total];
	__u32 preempted_ns[total]; /* of pfd's thread, in each stage */
	__u32 slept_ns[total];
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
	touch_source,
	populate_source,
	iommu_source,
	SOURCES,
};

struct source_state {
	__u32 attached;
	__u32 nop; /* bytes */
	char reason[240];
};

#define SHARED 8
#define RAN 16

/* Who is watched: every pfd that has shown a batch. */
struct pfd {
	__u32 thread;    /* that showed the last one: the engine's, as Go has it */
	__u32 processor; /* on which it ran last, plus one */
	__u64 batches;
	__u64 first_ns;
	__u64 last_ns;
	__u64 shared_n;
	__u64 shared_ns[SHARED]; /* the last times when a process of its ran there, too */
};

/* An attached process. */
struct client {
	__u32 pfd; /* whose it is */
	__u32 reserved;
	__u64 ran_n;
	__u64 ran_ns[RAN]; /* the last times that a thread ran which pfd had woken */
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
	__u32 pid;     /* pfd's */
	__u32 thread;  /* its engine's */
	__u32 process; /* whose page it is */
	__u16 pdid;
	__u8 slot;
	__u8 flags;
	__u8 method;
	__u8 fault_kind;
	__u8 outcome;
	__u8 reserved;
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

/* A block of nodes served elsewhere: its faults may be shown after it. */
struct waiting_block {
	struct record block;
	__u64 joined;
};

/* When a page of an attached process was touched by the process: the last times, since
   a call that is asked for several pages names the first. */
#define TOUCHES 16

struct touches {
	__u64 n;
	__u64 ns[TOUCHES];
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
		__u64 stage; /* reclaim, lock_wait or lock_other */
	} waits[WAITS];
};

/* What a thread of pfd's is about. */
struct thread {
	__u64 reclaim_began;
	__u64 lock_began;
	__u64 lock;
	__u64 lock_stage;
	__u64 woken;
	__u64 off_began;
	__u32 off_preempted;
	__u32 n;
	struct {
		__u64 from, to;
	} off[16]; /* to's lowest bit: 1 preempted, 0 slept */
	struct fault_event event; /* that the thread is making */
};

struct atomic_word {
	long counter;
};

struct rw_semaphore {
	struct atomic_word owner;
} __attribute__((preserve_access_index));

struct mm_struct {
	struct rw_semaphore mmap_lock;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
	int tgid;
	struct mm_struct *mm;
} __attribute__((preserve_access_index));

/* Flags of lock:contention_begin (linux/trace/events/lock.h). */
#define LCB_F_READ 2
#define LCB_F_WRITE 4
/* Low bits of rw_semaphore.owner, which is a task (kernel/locking/rwsem.c). */
#define OWNER_FLAGS 7UL

struct raw_args {
	__u64 args[4];
};

struct iovec_user {
	__u64 base;
	__u64 len;
};
