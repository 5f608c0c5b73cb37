/* Shared by probe.c and the readers of its maps: docs/tracing.md. */

/* The parts of kernel structures that are read here, found by BTF (CO-RE). */
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

/* The registers of a user program that stops at the point. */
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
	record_client, /* a process that is attached; with flag_final: was */
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
	__u64 obeyed; /* of a block: when its request for retransmission was executed */
	__u64 reserved1;
};

/* Set in fabric if the process with that pid serves the nodes. */
#define SERVED (1ULL << 63)

/* Indices of a fault's times, and of a block's: rung, kicked, sent, ended, published, seen. */
enum {
	fault_interrupt, fault_drained, fault_started, fault_resident, fault_answered,
	block_rung = 0, block_kicked, block_sent, block_ended, block_published, block_seen,
};

/* The stages of a fault. Each ends where the next begins, and total is their sum. */
enum stage {
	ring,     /* from the process's ring until pfd saw the doorbell */
	send,     /* until the block was sent */
	raise,    /* until the interrupt half ran */
	drain,    /* until the FIFO entry was read */
	queue,    /* until the page-in began */
	page_in,  /* until the page was present */
	answer,   /* until the request for retransmission was sent, or the process was asked */
	resend,   /* until the block was acknowledged */
	complete, /* until the transfer's done was published */
	seen,     /* until the process saw it */
	total,
	/* Parts of page_in, of each call of pfd, and their causes: */
	kernel_enter,    /* until the kernel allocates a page for it */
	kernel_populate, /* until the page is zeroed, charged and mapped */
	kernel_leave,    /* until pfd runs again */
	reclaim,         /* direct reclaim in between */
	lock_wait,       /* waiting for the mmap_lock of the process in between */
	lock_other,      /* waiting for other locks in between */
	/* Of a fault, from doorbell seen to done published: */
	preempted,       /* pfd's thread was runnable but not running */
	slept,           /* pfd's thread slept */
	/* Each time that pfd's thread was woken: */
	wake_pfd,        /* until it ran */
	/* Each time that pfd woke a thread of an attached process: */
	wake_client,     /* until it ran */
	/* Of a fault that its process must serve: */
	delegate_run,    /* until a thread of the process ran */
	delegate_touch,  /* until its access or its madvise faulted */
	delegate_answer, /* until its answer arrived */
	STAGES,
};

enum method { unknown, gup, touch, uffd, populate };
enum kind { none, minor, major, permission };
enum outcome { pending, resolved, failed, delegated, unsent, removed };

enum counter {
	batches,       /* hits of the point */
	records,       /* in these */
	bad_records,   /* with an invalid kind or value */
	unreadable,    /* records that could not be copied */
	faults,
	failures,      /* faults whose page cannot be paged in */
	rapfs,         /* requests for retransmission */
	rapf_fails,    /* requests for blocks that cannot be served */
	page_ins,      /* that made a page present */
	pages,         /* that the page-ins made resident */
	blocks,        /* refused blocks that have ended */
	refusals,      /* of these blocks; each waits for one request */
	joined,        /* refusals whose faults are known */
	joined_faults, /* the faults of joined refusals */
	lone,          /* refusals without a known fault */
	bare,          /* faults that name no block */
	crowded,       /* faults omitted because one refusal has more than eight */
	full,          /* a map was full */
	stamp_bad,     /* impossible time stamps of processes */
	events_lost,   /* not read in time */
	kernel_page_ins, /* page-ins of which the kernel's part is known */
	kernel_missed,   /* page-ins that made a page resident, with an unknown kernel part */
	halves,          /* faults of a device elsewhere whose blocks are not traced */
	shared_faults,   /* faults during which a process ran on the processor of pfd's thread */
	iommu_faults,    /* faults that the machine's IOMMUs reported, for any device */
	COUNTERS,
};

/* Histograms: each value below 8 ns has its own bucket; above, a power of two has eight
   buckets. */
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
	__u64 preempted_ns; /* part of sum_ns: pfd's thread was runnable but not running */
	__u64 slept_ns;     /* part of sum_ns: it slept */
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

/* Which parts of a fault are known. For a device elsewhere this may be one half. */
enum half { whole, driver_half, sender_half };

/* One fault with its stages; unknown stages are -1. In a sender's half, resend begins when
   the block was sent. */
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
	__u32 shared; /* 1: a process ran on the processor of pfd's thread during the fault */
	__u32 reserved;
	__s64 stages[total];
	__u32 preempted_ns[total]; /* of pfd's thread, in each stage */
	__u32 slept_ns[total];
};

/* Which events are requested; all ones: any. */
struct settings {
	__u32 events; /* 1: a reader exists */
	__u32 node;
	__u32 pdid;
	__u32 kind;
	__u64 slower_ns;
	__u64 slowest_floor; /* the least of fault_slowest; private to probe.c */
};
#define ANY (~0U)

/* The sources; each is attached separately. */
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

/* The traced processes: every pfd that has shown a batch. */
struct pfd {
	__u32 thread;    /* that showed the last batch: the current thread of the engine */
	__u32 processor; /* where it ran last, plus one */
	__u64 batches;
	__u64 first_ns;
	__u64 last_ns;
	__u64 shared_n;
	__u64 shared_ns[SHARED]; /* the last times when an attached process ran there, too */
};

/* An attached process. */
struct client {
	__u32 pfd; /* to which it is attached */
	__u32 reserved;
	__u64 ran_n;
	__u64 ran_ns[RAN]; /* the last times when a thread ran that pfd had woken */
};

/* Joins the refusal of a block with its faults. */
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
	__u32 thread;  /* of its engine */
	__u32 process; /* that owns the page */
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

/* The kernel's work in a page-in of pfd. The key is the page in the arguments of the system
   call, because Go moves the engine between threads. */
struct call_key {
	__u32 pid;
	__u32 reserved;
	__u64 page;
};

/* A block of nodes that are served elsewhere: its faults may be shown after it. */
struct waiting_block {
	struct record block;
	__u64 joined;
};

/* The last times when an attached process touched a page. There are several because a call
   for several pages names only the first. */
#define TOUCHES 16

struct touches {
	__u64 n;
	__u64 ns[TOUCHES];
};

/* The last ones: a batch can contain several page-ins of one page. */
#define ALLOCATED 32
#define POPULATED 16
#define WAITS 8

struct call_marks {
	__u64 allocated_n, populated_n, waits_n;
	__u64 allocated_ns[ALLOCATED]; /* a page was allocated */
	__u64 populated_ns[POPULATED]; /* the copy was refused: the page is present */
	struct {
		__u64 ended_ns;
		__u64 ns;
		__u64 stage; /* reclaim, lock_wait or lock_other */
	} waits[WAITS];
};

/* The current activity of a thread of pfd. */
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
	struct fault_event event; /* the event that the thread is composing */
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
