//go:build ignore

// May be used under this project's license or under the GPL, version 2: the kernel offers some
// functions to GPL programs only.

// The probe: it reads the records that a pfd shows at its probe point, joins the two halves of
// a fault, and keeps histograms, counters and the slowest faults in maps. It consists of global
// functions because the verifier checks these one at a time.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "probe.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct latency_key);
	__type(value, struct latency);
} fault_latency SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct domain_key);
	__type(value, struct domain);
} fault_domains SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct fault_event);
} fault_slowest SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH); /* the key of an array cannot be an enum */
	__uint(max_entries, COUNTERS);
	__type(key, enum counter);
	__type(value, __u64);
} fault_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} fault_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} fault_settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, enum source);
	__type(value, struct source_state);
} fault_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct pfd);
} fault_pfds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct refusal_key);
	__type(value, struct waiting);
} fault_waiting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct call_key);
	__type(value, struct call_marks);
} fault_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct thread);
} fault_threads SEC(".maps");

/* Attached processes by pid. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct client);
} fault_clients SEC(".maps");

/* When an attached process touched one of its pages. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct call_key);
	__type(value, struct touches);
} fault_touched SEC(".maps");

/* Locks that are known to be a process's mmap_lock. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u32);
} fault_mmap_locks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct refusal_key);
	__type(value, struct waiting_block);
} fault_blocks SEC(".maps");

/* Empty values for maps whose values do not fit on a stack. */
struct empty {
	struct latency latency;
	struct waiting waiting;
	struct thread thread;
	struct call_marks marks;
	struct waiting_block block;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct empty);
} fault_empty SEC(".maps");

#define nothing ((struct empty *)bpf_map_lookup_elem(&fault_empty, &(__u32){0}))

static __always_inline void count(enum counter c, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(&fault_counters, &c);

	if (v)
		__sync_fetch_and_add(v, n);
}

__noinline int raise_to(__u64 *at, __u64 v)
{
	if (!at)
		return 0;
	/* A few attempts: if a larger value wins the race, nothing is left to do. */
	for (int i = 0; i < 4; i++) {
		__u64 old = *(volatile __u64 *)at;

		if (old >= v || __sync_val_compare_and_swap(at, old, v) == old)
			return 0;
	}
	return 0;
}

__noinline __u32 bucket(__u64 ns)
{
	__u32 e = 0;
	__u64 v = ns;

	if (ns < 8)
		return ns;
	for (int s = 32; s > 0; s >>= 1)
		if (v >> s) {
			v >>= s;
			e += s;
		}
	if (e > 36)
		return BUCKETS - 1;
	return (e - 2) * 8 + ((ns >> (e - 3)) & 7);
}

__noinline int observe(__u32 stage, __u32 method, __u32 kind, __u64 ns)
{
	struct latency_key k = { .stage = stage, .method = method, .kind = kind };
	struct latency *l = bpf_map_lookup_elem(&fault_latency, &k);
	__u32 b;

	if (!l) {
		struct empty *zero = nothing;

		if (!zero)
			return 0;
		bpf_map_update_elem(&fault_latency, &k, &zero->latency, BPF_NOEXIST);
		l = bpf_map_lookup_elem(&fault_latency, &k);
		if (!l) {
			count(full, 1);
			return 0;
		}
	}
	__sync_fetch_and_add(&l->count, 1);
	__sync_fetch_and_add(&l->sum_ns, ns);
	raise_to(&l->max_ns, ns);
	b = bucket(ns);
	if (b < BUCKETS)
		__sync_fetch_and_add(&l->buckets[b], 1);
	return 0;
}

static __always_inline struct thread *thread_of(__u32 tid)
{
	struct thread *t = bpf_map_lookup_elem(&fault_threads, &tid);
	struct empty *zero;

	if (t)
		return t;
	zero = nothing;
	if (!zero)
		return 0;
	bpf_map_update_elem(&fault_threads, &tid, &zero->thread, BPF_NOEXIST);
	return bpf_map_lookup_elem(&fault_threads, &tid);
}

/* fresh_event returns the buffer of the current thread for an event: a stack is too small. */
static __always_inline struct fault_event *fresh_event(void)
{
	struct thread *t = thread_of(bpf_get_current_pid_tgid());

	if (!t)
		return 0;
	__builtin_memset(&t->event, 0, sizeof(t->event));
	return &t->event;
}

static __always_inline __u32 current_pid(void) { return bpf_get_current_pid_tgid() >> 32; }

static __always_inline struct domain *domain_of(__u32 pid, __u32 node, __u32 pdid)
{
	struct domain_key k = { .pid = pid, .node = node, .pdid = pdid };
	struct domain *d = bpf_map_lookup_elem(&fault_domains, &k);
	struct domain zero = {};

	if (d)
		return d;
	bpf_map_update_elem(&fault_domains, &k, &zero, BPF_NOEXIST);
	d = bpf_map_lookup_elem(&fault_domains, &k);
	if (!d)
		count(full, 1);
	return d;
}

/* faster returns which of two of the slowest faults took less time. */
__noinline __u32 faster(__u32 i, __u32 j)
{
	struct fault_event *a = bpf_map_lookup_elem(&fault_slowest, &i);
	struct fault_event *b = bpf_map_lookup_elem(&fault_slowest, &j);

	return a && b && a->total_ns < b->total_ns ? i : j;
}

/* keep adds a fault to the slowest, replacing the fastest of them. */
__noinline int keep(struct fault_event *e)
{
	struct settings *s = bpf_map_lookup_elem(&fault_settings, &(__u32){0});
	struct fault_event *o;
	__u64 least;
	__u32 at = 0;

	if (!e || !s || e->total_ns <= s->slowest_floor)
		return 0;
	for (__u32 i = 1; i < 64; i++)
		at = faster(i, at);
	o = bpf_map_lookup_elem(&fault_slowest, &at);
	if (!o)
		return 0;
	least = o->total_ns;
	s->slowest_floor = least;
	if (e->total_ns <= least)
		return 0;
	/* If another fault has taken the place, it keeps it. */
	if (__sync_val_compare_and_swap(&o->total_ns, least, e->total_ns) == least)
		*o = *e;
	return 0;
}

__noinline int tell(struct fault_event *e)
{
	struct settings *s = bpf_map_lookup_elem(&fault_settings, &(__u32){0});

	if (!e || !s || !s->events || e->total_ns < s->slower_ns)
		return 0;
	if ((s->node != ANY && s->node != e->node) || (s->pdid != ANY && s->pdid != e->pdid) || (s->kind != ANY && s->kind != e->kind))
		return 0;
	if (bpf_ringbuf_output(&fault_events, e, sizeof(*e), 0))
		count(events_lost, 1);
	return 0;
}

/* overlap returns twice the ns of one absence from the processor within a period, plus one
   if the thread was preempted. 0: no overlap; 1: the absence ended before the period. */
__noinline __u64 overlap(struct thread *t, __u64 i, __u64 from, __u64 to)
{
	__u64 a, b, kind;

	if (!t || i >= 16)
		return 0;
	a = t->off[i].from;
	b = t->off[i].to;
	kind = b & 1;
	if (b <= from)
		return 1;
	if (a < from)
		a = from;
	if (b > to)
		b = to;
	return a < b ? (b - a) << 1 | kind : 0;
}

/* saturated returns a time in the width of an event's field. */
static __always_inline __u32 saturated(__u64 ns) { return ns > ~0U ? ~0U : ns; }

/* absent returns a thread if it was ever seen off its processor, else 0. */
static __always_inline __u32 absent(__u32 tid)
{
	struct thread *t = bpf_map_lookup_elem(&fault_threads, &tid);

	return t && t->n ? tid : 0;
}

/* off_processor adds up how long a thread of pfd was off its processor during a stage. */
__noinline int off_processor(struct fault_event *e, __u64 stage, __u64 from, __u64 to, __u32 tid)
{
	struct thread *t = bpf_map_lookup_elem(&fault_threads, &tid);
	__u64 ran = 0, asleep = 0, v, is;
	struct latency_key k = { .stage = stage };
	struct latency *l;
	__u32 n;

	if (!e || !t || stage >= total)
		return 0;
	n = t->n;
	for (__u32 i = 1; i <= 16; i++) {
		v = overlap(t, (n - i) & 15, from, to);
		if (v == 1)
			break;
		is = -(v & 1); /* all ones: preempted */
		ran += (v >> 1) & is;
		asleep += (v >> 1) & ~is;
	}
	if (!ran && !asleep)
		return 0;
	e->preempted_ns[stage] = saturated(ran);
	e->slept_ns[stage] = saturated(asleep);
	k.method = e->method;
	k.kind = e->kind;
	l = bpf_map_lookup_elem(&fault_latency, &k);
	if (l) {
		__sync_fetch_and_add(&l->preempted_ns, ran);
		__sync_fetch_and_add(&l->slept_ns, asleep);
	}
	return 0;
}

/* add records one stage from the time from to t, if t is known. tid is the thread that
   performed it, or 0 if the thread was never off its processor. add returns when the next
   stage begins. */
__noinline __u64 add(struct fault_event *e, __u64 stage, __u64 t, __u64 from, __u32 tid)
{
	__u64 ns;

	if (!e || !t || stage >= total)
		return from;
	/* A round that an earlier interrupt woke may have read the entry, and an earlier fault
	   may have started the page-in: then the stage took no time. */
	ns = t > from ? t - from : 0;
	e->stages[stage] = ns;
	if (e->half == sender_half)
		return from + ns; /* its resend is measured differently */
	observe(stage, e->method, e->kind, ns);
	if (ns && tid)
		off_processor(e, stage, from, t, tid);
	return from + ns;
}

/* absences adds up the absences from doorbell seen to done published. */
__noinline int absences(struct fault_event *e)
{
	__u64 ran = 0, asleep = 0;

	if (!e)
		return 0;
	for (int i = send; i <= complete; i++) {
		ran += e->preempted_ns[i];
		asleep += e->slept_ns[i];
	}
	if (ran)
		observe(preempted, e->method, e->kind, ran);
	if (asleep)
		observe(slept, e->method, e->kind, asleep);
	return 0;
}

/* earlier and later choose between two times; the second counts only if it lies in the
   period. */
__noinline __u64 earlier(__u64 a, __u64 b, __u64 began, __u64 ended)
{
	return b >= began && b <= ended && b < a ? b : a;
}

__noinline __u64 later(__u64 a, __u64 b, __u64 began, __u64 ended)
{
	return b >= began && b <= ended && b > a ? b : a;
}

/* shared_in reports whether an attached process ran on the processor of pfd's thread in a
   period. */
__noinline int shared_in(__u32 pid, __u64 began, __u64 ended)
{
	struct pfd *p = bpf_map_lookup_elem(&fault_pfds, &pid);
	__u64 t = 0;

	if (!p || !p->shared_n)
		return 0;
	for (int i = 0; i < SHARED; i++)
		t = later(t, p->shared_ns[i], began, ended);
	return t != 0;
}

/* since returns the length of a period, or 0 if it ends before it begins. */
static __always_inline __u64 since(__u64 from, __u64 to) { return to > from ? to - from : 0; }

/* delegate_part records the stages of a fault that its process serves, after began. The
   process may run, and do more, before pfd has finished the request. */
__noinline int delegate_part(struct waiting_fault *w, __u64 began, __u64 asked, __u64 answered)
{
	struct call_key k = {};
	struct client *c;
	struct touches *t;
	__u64 ran = ~0ULL, touched = ~0ULL;

	if (!w || !asked || !answered)
		return 0;
	c = bpf_map_lookup_elem(&fault_clients, &(__u32){w->process});
	if (!c)
		return 0;
	for (int i = 0; i < RAN; i++)
		ran = earlier(ran, c->ran_ns[i], began, answered);
	if (ran != ~0ULL) {
		observe(delegate_run, w->method, w->fault_kind, since(asked, ran));
		if (ran > asked)
			asked = ran;
	}
	k.pid = w->process;
	k.page = w->page & ~4095ULL;
	t = bpf_map_lookup_elem(&fault_touched, &k);
	if (!t)
		return 0;
	for (int i = 0; i < TOUCHES; i++)
		touched = earlier(touched, t->ns[i], began, answered);
	if (touched == ~0ULL)
		return 0;
	observe(delegate_touch, w->method, w->fault_kind, since(asked, touched));
	if (touched > asked)
		asked = touched;
	observe(delegate_answer, w->method, w->fault_kind, since(asked, answered));
	return 0;
}

/* rang returns when a block's process rang, by its own statement; 0 if that is impossible. */
static __always_inline __u64 rang(struct record *b, __u64 now)
{
	__u64 rung = b->times[block_rung];

	if (!rung)
		return 0;
	if (rung <= b->times[block_kicked] && rung + 1000000000 >= now)
		return rung;
	count(stamp_bad, 1);
	return 0;
}

/* saw returns when the process saw the end. */
static __always_inline __u64 saw(struct record *b, __u64 now)
{
	__u64 at = b->times[block_seen];

	if (!at)
		return 0;
	if (at <= now && at >= b->times[block_published])
		return at;
	count(stamp_bad, 1);
	return 0;
}

static __always_inline void name_block(struct fault_event *e, struct record *b)
{
	e->source = b->source;
	e->transaction = b->transaction;
	e->sequence = b->sequence;
	e->status = b->status;
	e->channel = b->channel;
	e->again = b->again;
}

/* until_sent records the stages before a block's refusal, and returns when they end. */
static __always_inline __u64 until_sent(struct fault_event *e, struct record *b, __u64 now, __u32 tid)
{
	__u64 from = b->times[block_sent], rung = 0;

	if (b->flags & flag_first && b->times[block_kicked]) {
		from = b->times[block_kicked];
		rung = rang(b, now);
		if (rung)
			from = rung;
	}
	e->start_ns = from;
	if (!(b->flags & flag_first))
		return from;
	if (rung)
		from = add(e, ring, b->times[block_kicked], from, tid);
	return add(e, send, b->times[block_sent], from, tid);
}

/* worst records a fault that is the slowest of its domain. It is a separate function because
   of its stack: Linux 6.12 has 512 bytes for all frames of a call. */
__noinline int worst(struct fault_event *e)
{
	struct domain *d;

	if (!e)
		return 0;
	d = domain_of(e->pid, e->node, e->pdid);
	if (d && e->total_ns > d->worst_ns) {
		d->worst_ns = e->total_ns;
		d->worst_page = e->page;
	}
	return 0;
}

/* finish completes one fault. b is the refusal of its block, or NULL if the fault names no
   block or the block is not traced. */
static __always_inline void finish(struct fault_event *e, struct waiting_fault *w, struct record *b)
{
	__u64 from = 0, now = bpf_ktime_get_ns();
	__u32 tid = absent(bpf_get_current_pid_tgid()), driver = absent(w->thread);

	e->page = w->page;
	e->pid = w->pid;
	e->node = w->node;
	e->pdid = w->pdid;
	e->slot = w->slot;
	e->flags = w->flags;
	e->outcome = w->outcome;
	e->method = w->method;
	e->kind = w->fault_kind;
	for (int i = 0; i < total; i++)
		e->stages[i] = -1;
	if (b) {
		name_block(e, b);
		from = until_sent(e, b, now, tid);
	}
	if (!from)
		from = w->times[fault_interrupt];
	if (!from)
		from = w->times[fault_drained];
	if (!e->start_ns)
		e->start_ns = from;
	if (b)
		from = add(e, raise, w->times[fault_interrupt], from, tid);
	from = add(e, drain, w->times[fault_drained], from, driver);
	from = add(e, queue, w->times[fault_started], from, driver);
	from = add(e, page_in, w->times[fault_resident], from, driver);
	from = add(e, answer, w->times[fault_answered], from, driver);
	if (w->method == populate)
		delegate_part(w, w->times[fault_started], w->times[fault_started], w->times[fault_resident]);
	if (b) {
		if (w->outcome == delegated)
			delegate_part(w, w->times[fault_drained], w->times[fault_answered], b->obeyed);
		from = add(e, resend, b->times[block_ended], from, tid);
		from = add(e, complete, b->times[block_published], from, tid);
		from = add(e, seen, saw(b, now), from, tid);
	}
	if (tid || driver)
		absences(e);
	e->shared = shared_in(w->pid, e->start_ns, from);
	if (e->shared)
		count(shared_faults, 1);
	e->total_ns = from - e->start_ns;
	observe(total, e->method, e->kind, e->total_ns);
	worst(e);
	keep(e);
	tell(e);
}

static __always_inline void fill(struct waiting_fault *w, struct record *r)
{
	w->page = r->page;
	for (int i = 0; i < 5; i++)
		w->times[i] = r->times[i];
	w->node = r->node;
	w->pid = current_pid();
	w->thread = bpf_get_current_pid_tgid();
	w->process = r->process;
	w->pdid = r->pdid;
	w->slot = r->slot;
	w->flags = r->flags;
	w->method = r->method;
	w->fault_kind = r->fault_kind;
	w->outcome = r->outcome;
}

static __always_inline struct refusal_key key_of(struct record *r)
{
	return (struct refusal_key){
		.fabric = r->fabric, .source = r->source, .transaction = r->transaction, .sequence = r->sequence,
	};
}

/* join joins a fault with its block's refusal, or with its own record if it names no block
   or the block is not traced. */
__noinline int join(struct record *r, struct waiting_fault *w)
{
	struct fault_event *e = fresh_event();

	if (!r || !w || !e)
		return 0;
	if (r->kind == record_block) {
		count(joined_faults, 1);
	} else if (r->flags & flag_has_block) {
		e->half = driver_half;
		name_block(e, r);
	}
	finish(e, w, r->kind == record_block ? r : 0);
	return 0;
}

/* seen_apart reports whether the blocks of a fault's nodes are traced. Blocks of a device
   outside a process, and of a server without a tracer, are not. */
static __always_inline int seen_apart(__u64 fabric)
{
	__u32 server = fabric;

	return !(fabric & SERVED) || bpf_map_lookup_elem(&fault_pfds, &server);
}

/* shown_before returns the block of a fault that was shown before it, or NULL. */
static __always_inline struct record *shown_before(struct record *r)
{
	struct refusal_key k = key_of(r);
	struct waiting_block *b = bpf_map_lookup_elem(&fault_blocks, &k);

	/* A block that ended before the fault has the same numbers from an earlier life of the
	   node. */
	if (!b || b->block.times[block_ended] < r->times[fault_drained])
		return 0;
	if (!__sync_lock_test_and_set(&b->joined, 1)) {
		count(joined, 1);
		count(lone, -1);
	}
	return &b->block;
}

/* joined_with returns the record to join a fault with at once, or NULL if the fault must
   wait for its block. */
static __always_inline struct record *joined_with(struct record *r)
{
	if (!(r->flags & flag_has_block)) {
		count(bare, 1);
		return r;
	}
	if (!r->fabric || !seen_apart(r->fabric)) {
		count(halves, 1);
		return r;
	}
	return r->fabric & SERVED ? shown_before(r) : 0;
}

/* client records an attached process. */
__noinline int client(struct record *r)
{
	__u32 pid;
	struct client fresh = { .pfd = current_pid() };

	if (!r)
		return 0;
	pid = r->process;
	if (r->kind == record_client && r->flags & flag_final)
		bpf_map_delete_elem(&fault_clients, &pid);
	else if (!bpf_map_lookup_elem(&fault_clients, &pid))
		bpf_map_update_elem(&fault_clients, &pid, &fresh, BPF_NOEXIST);
	return 0;
}

__noinline int fault(struct record *r)
{
	struct refusal_key k;
	struct record *with;
	struct waiting *w;
	struct domain *d;
	__u64 i;

	if (!r)
		return 0;
	count(faults, 1);
	if (r->process)
		client(r);
	d = domain_of(current_pid(), r->node, r->pdid);
	if (d)
		__sync_fetch_and_add(&d->faults, 1);
	if (r->outcome == failed) {
		count(failures, 1);
		if (d)
			__sync_fetch_and_add(&d->failures, 1);
	}
	if (r->flags & flag_answers)
		count(r->outcome == failed ? rapf_fails : rapfs, 1);
	with = joined_with(r);
	k = key_of(r);
	if (with)
		k.fabric = ~bpf_get_current_pid_tgid(); /* matches no block: it waits for none */
	w = bpf_map_lookup_elem(&fault_waiting, &k);
	if (!w) {
		struct empty *zero = nothing;

		if (!zero)
			return 0;
		bpf_map_update_elem(&fault_waiting, &k, &zero->waiting, BPF_NOEXIST);
		w = bpf_map_lookup_elem(&fault_waiting, &k);
		if (!w) {
			count(full, 1);
			return 0;
		}
	}
	i = __sync_fetch_and_add(&w->n, 1);
	if (i >= WAITING) {
		count(crowded, 1);
		return 0;
	}
	fill(&w->faults[i], r);
	if (with) {
		join(with, &w->faults[i]);
		bpf_map_delete_elem(&fault_waiting, &k);
	}
	return 0;
}

/* lone_block records a block's half of a fault. */
__noinline int lone_block(struct record *b)
{
	struct fault_event *e = fresh_event();
	__u64 now = bpf_ktime_get_ns(), from;
	__u32 tid = absent(bpf_get_current_pid_tgid());

	if (!b || !e)
		return 0;
	e->half = sender_half;
	e->pid = current_pid();
	e->node = b->node;
	e->slot = b->slot;
	for (int i = 0; i < total; i++)
		e->stages[i] = -1;
	name_block(e, b);
	from = until_sent(e, b, now, tid);
	from = add(e, resend, b->times[block_ended], from, tid);
	from = add(e, complete, b->times[block_published], from, tid);
	from = add(e, seen, saw(b, now), from, tid);
	e->total_ns = from - e->start_ns;
	return tell(e);
}

__noinline int block(struct record *r)
{
	struct refusal_key k;
	struct waiting *w;
	struct empty *zero;
	struct waiting_block *b;

	if (!r)
		return 0;
	count(refusals, 1);
	if (r->flags & flag_final)
		count(blocks, 1);
	k = key_of(r);
	w = bpf_map_lookup_elem(&fault_waiting, &k);
	if (r->fabric & SERVED) {
		zero = nothing;
		if (!zero)
			return 0;
		bpf_map_update_elem(&fault_blocks, &k, &zero->block, BPF_ANY);
		b = bpf_map_lookup_elem(&fault_blocks, &k);
		if (b) {
			b->joined = w != 0;
			__builtin_memcpy(&b->block, r, sizeof(*r));
		}
	}
	if (!w) {
		count(lone, 1);
		return lone_block(r);
	}
	count(joined, 1);
	for (int i = 0; i < WAITING; i++) {
		if (i >= w->n)
			break;
		join(r, &w->faults[i]);
	}
	bpf_map_delete_elem(&fault_waiting, &k);
	return 0;
}

/* wait_in returns the length of a wait of this kind that ended in a period, or 0. */
__noinline __u64 wait_in(struct call_marks *c, __u64 i, __u64 stage, __u64 began, __u64 ended)
{
	if (!c || i >= WAITS || c->waits[i].stage != stage || c->waits[i].ended_ns < began || c->waits[i].ended_ns > ended)
		return 0;
	return c->waits[i].ns;
}

/* waited adds up a page-in's waits of one kind. */
__noinline __u64 waited(struct call_marks *c, __u64 stage, __u64 began, __u64 ended)
{
	__u64 ns = 0;

	if (!c)
		return 0;
	for (__u64 i = 0; i < WAITS; i++)
		ns += wait_in(c, i, stage, began, ended);
	return ns;
}

/* first_in returns when the first page was allocated in a period, or all ones. */
__noinline __u64 first_in(struct call_marks *c, __u64 began, __u64 ended)
{
	__u64 t = ~0ULL;

	if (!c)
		return t;
	for (int i = 0; i < ALLOCATED; i++)
		t = earlier(t, c->allocated_ns[i], began, ended);
	return t;
}

/* last_in returns when the copy was refused in a period, or 0. */
__noinline __u64 last_in(struct call_marks *c, __u64 began, __u64 ended)
{
	__u64 t = 0;

	if (!c)
		return 0;
	for (int i = 0; i < POPULATED; i++)
		t = later(t, c->populated_ns[i], began, ended);
	return t;
}

/* kernel_part records what the kernel did in a page-in. */
__noinline int kernel_part(struct record *r)
{
	struct call_key k = { .pid = bpf_get_current_pid_tgid() >> 32 };
	__u64 began, ended, allocated = ~0ULL, populated, ns;
	struct source_state *on;
	struct call_marks *c;

	if (!r || r->method == populate)
		return 0; /* the process's own page-in is not attributed to pfd */
	k.page = r->page;
	began = r->times[0];
	ended = r->times[1];
	c = bpf_map_lookup_elem(&fault_calls, &k);
	if (c)
		allocated = first_in(c, began, ended);
	if (!c || allocated == ~0ULL) {
		on = bpf_map_lookup_elem(&fault_sources, &(enum source){page_source});
		if (on && on->attached && r->pages)
			count(kernel_missed, 1);
		return 0;
	}
	count(kernel_page_ins, 1);
	observe(kernel_enter, r->method, r->fault_kind, allocated - began);
	populated = last_in(c, allocated, ended);
	if (populated) {
		observe(kernel_populate, r->method, r->fault_kind, populated - allocated);
		observe(kernel_leave, r->method, r->fault_kind, ended - populated);
	}
	ns = waited(c, reclaim, began, ended);
	if (ns)
		observe(reclaim, r->method, r->fault_kind, ns);
	ns = waited(c, lock_wait, began, ended);
	if (ns)
		observe(lock_wait, r->method, r->fault_kind, ns);
	ns = waited(c, lock_other, began, ended);
	if (ns)
		observe(lock_other, r->method, r->fault_kind, ns);
	return 0;
}

__noinline int paged_in(struct record *r)
{
	struct domain *d;

	if (!r)
		return 0;
	if (r->flags & flag_brought)
		count(page_ins, 1);
	count(pages, r->pages);
	kernel_part(r);
	d = domain_of(current_pid(), r->node, r->pdid);
	if (d)
		__sync_fetch_and_add(&d->pages, r->pages);
	return 0;
}

/* take processes one record. It checks every value that it uses as an index: any program can
   forge records. */
__noinline int take(struct record *r)
{
	if (!r)
		return 0;
	if (r->method > populate || r->fault_kind > permission || r->outcome > removed) {
		count(bad_records, 1);
		return 0;
	}
	switch (r->kind) {
	case record_fault:
		return fault(r);
	case record_page_in:
		return paged_in(r);
	case record_block:
		return block(r);
	case record_client:
		return client(r);
	}
	count(bad_records, 1);
	return 0;
}

static __always_inline void hit(__u64 n)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u64 now = bpf_ktime_get_ns();
	struct pfd *p = bpf_map_lookup_elem(&fault_pfds, &pid);

	count(batches, 1);
	count(records, n);
	if (p) {
		__sync_fetch_and_add(&p->batches, 1);
		p->last_ns = now;
		p->thread = bpf_get_current_pid_tgid();
	} else {
		struct pfd fresh = { .thread = bpf_get_current_pid_tgid(), .batches = 1, .first_ns = now, .last_ns = now };

		bpf_map_update_elem(&fault_pfds, &pid, &fresh, BPF_NOEXIST);
	}
}

/* shown processes a batch; copy returns a record of it. */
static __always_inline int shown(struct pt_regs *ctx, long (*const copy)(void *, __u32, const void *))
{
	__u64 at = FIRST(ctx), n = SECOND(ctx);

	if (n > BATCH) {
		count(bad_records, 1);
		return 0;
	}
	hit(n);
	for (__u64 i = 0; i < BATCH; i++) {
		struct record r;

		if (i >= n)
			break;
		if (copy(&r, sizeof(r), (void *)(at + i * sizeof(r))))
			count(unreadable, 1);
		else
			take(&r);
	}
	return 0;
}

static __always_inline long copy_sleeping(void *to, __u32 size, const void *from)
{
	return bpf_copy_from_user(to, size, from);
}

SEC("uprobe.multi.s")
int pfd_faults(struct pt_regs *ctx) { return shown(ctx, copy_sleeping); }

static __always_inline long copy_plain(void *to, __u32 size, const void *from)
{
	return bpf_probe_read_user(to, size, from);
}

/* For kernels that refuse the other program. */
SEC("uprobe")
int pfd_faults_plain(struct pt_regs *ctx) { return shown(ctx, copy_plain); }

/* The kernel's work for pfd, from its tracepoints. Each source is attached separately. */

static __always_inline int watched(void)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;

	return bpf_map_lookup_elem(&fault_pfds, &pid) != 0;
}

/* call_of returns the marks of the page-in that the current thread of pfd performs: the
   arguments of its system call contain the page. */
static __always_inline struct call_marks *call_of(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct call_key k = { .pid = bpf_get_current_pid_tgid() >> 32 };
	struct call_marks *c;
	struct empty *zero;
	__u64 at;

	switch (NUMBER(regs)) {
	case SYS_process_vm_readv:
	case SYS_process_vm_writev:
		at = FOURTH(regs); /* the remote iovec, whose base is first */
		break;
	case SYS_ioctl:
		at = THIRD(regs); /* UFFDIO_COPY and UFFDIO_ZEROPAGE begin with the address */
		break;
	default:
		return 0;
	}
	if (bpf_probe_read_user(&k.page, sizeof(k.page), (void *)at))
		return 0;
	k.page &= ~4095ULL;
	c = bpf_map_lookup_elem(&fault_calls, &k);
	if (c)
		return c;
	zero = nothing;
	if (!zero)
		return 0;
	bpf_map_update_elem(&fault_calls, &k, &zero->marks, BPF_NOEXIST);
	return bpf_map_lookup_elem(&fault_calls, &k);
}

/* wait_over records a wait of the current thread's page-in. */
static __always_inline void wait_over(__u64 stage, __u64 began)
{
	struct call_marks *c = call_of();
	__u64 now = bpf_ktime_get_ns(), i;

	if (!c)
		return;
	i = c->waits_n++ % WAITS;
	c->waits[i].ended_ns = now;
	c->waits[i].ns = now - began;
	c->waits[i].stage = stage;
}

SEC("raw_tp/mm_page_alloc")
int page_alloc(struct raw_args *ctx)
{
	struct call_marks *c;

	if (!watched())
		return 0;
	c = call_of();
	if (c)
		c->allocated_ns[c->allocated_n++ % ALLOCATED] = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tp/page_fault_kernel")
int copy_refused(struct raw_args *ctx)
{
	struct call_marks *c;

	if (!watched())
		return 0;
	c = call_of();
	if (c && c->allocated_n)
		c->populated_ns[c->populated_n++ % POPULATED] = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tp/mm_vmscan_direct_reclaim_begin")
int reclaim_begin(struct raw_args *ctx)
{
	struct thread *t;

	if (!watched())
		return 0;
	t = thread_of(bpf_get_current_pid_tgid());
	if (t)
		t->reclaim_began = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int reclaim_over(void)
{
	struct thread *t;

	if (!watched())
		return 0;
	t = thread_of(bpf_get_current_pid_tgid());
	if (t && t->reclaim_began) {
		wait_over(reclaim, t->reclaim_began);
		t->reclaim_began = 0;
	}
	return 0;
}

SEC("raw_tp/mm_vmscan_direct_reclaim_end")
int reclaim_end(struct raw_args *ctx)
{
	return reclaim_over();
}

SEC("raw_tp/mm_vmscan_memcg_reclaim_begin")
int reclaim_cgroup_begin(struct raw_args *ctx)
{
	struct thread *t;

	if (!watched())
		return 0;
	t = thread_of(bpf_get_current_pid_tgid());
	if (t)
		t->reclaim_began = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tp/mm_vmscan_memcg_reclaim_end")
int reclaim_cgroup_end(struct raw_args *ctx)
{
	return reclaim_over();
}

/* mmap_lock reports whether a lock is the mmap_lock of another process: of the task that
   holds it, if the lock lies there. It remembers such locks. */
static __always_inline int mmap_lock(__u64 lock, __u64 flags)
{
	struct rw_semaphore *sem = (void *)lock;
	struct task_struct *holder = 0;
	struct mm_struct *mm = 0, *own = 0;
	__u64 owner = 0;

	if (flags != LCB_F_READ && flags != LCB_F_WRITE)
		return 0;
	if (bpf_map_lookup_elem(&fault_mmap_locks, &lock))
		return 1;
	if (!bpf_core_field_exists(sem->owner))
		return 0; /* PREEMPT_RT */
	bpf_probe_read_kernel(&owner, sizeof(owner), __builtin_preserve_access_index(&sem->owner));
	holder = (void *)(owner & ~OWNER_FLAGS);
	if (!holder)
		return 0;
	bpf_probe_read_kernel(&mm, sizeof(mm), __builtin_preserve_access_index(&holder->mm));
	if (!mm || (__u64)__builtin_preserve_access_index(&mm->mmap_lock) != lock)
		return 0;
	holder = (void *)bpf_get_current_task();
	bpf_probe_read_kernel(&own, sizeof(own), __builtin_preserve_access_index(&holder->mm));
	if (own == mm)
		return 0;
	bpf_map_update_elem(&fault_mmap_locks, &lock, &(__u32){1}, BPF_ANY);
	return 1;
}

SEC("raw_tp/contention_begin")
int lock_begin(struct raw_args *ctx)
{
	struct thread *t;

	if (!watched())
		return 0;
	t = thread_of(bpf_get_current_pid_tgid());
	if (t) {
		t->lock_began = bpf_ktime_get_ns();
		t->lock = ctx->args[0];
		t->lock_stage = mmap_lock(t->lock, ctx->args[1] & 0xffffffff) ? lock_wait : lock_other;
	}
	return 0;
}

SEC("raw_tp/contention_end")
int lock_end(struct raw_args *ctx)
{
	struct thread *t;

	if (!watched())
		return 0;
	t = thread_of(bpf_get_current_pid_tgid());
	if (t && t->lock_began && t->lock == ctx->args[0]) {
		wait_over(t->lock_stage, t->lock_began);
		t->lock_began = 0;
	}
	return 0;
}

static __always_inline __u32 tgid_of(struct task_struct *p)
{
	__u32 v = 0;

	bpf_probe_read_kernel(&v, sizeof(v), __builtin_preserve_access_index(&p->tgid));
	return v;
}

static __always_inline __u32 tid_of(struct task_struct *p)
{
	__u32 v = 0;

	bpf_probe_read_kernel(&v, sizeof(v), __builtin_preserve_access_index(&p->pid));
	return v;
}

/* engine returns the pfd whose record-showing thread a task is. */
static __always_inline struct pfd *engine(__u32 tgid, __u32 tid)
{
	struct pfd *w = bpf_map_lookup_elem(&fault_pfds, &tgid);

	return w && w->thread == tid ? w : 0;
}

static __always_inline struct client *client_of(__u32 tgid)
{
	return bpf_map_lookup_elem(&fault_clients, &tgid);
}

static __always_inline void share(struct pfd *p, __u64 now)
{
	p->shared_ns[p->shared_n++ % SHARED] = now;
}

/* leaves records that a thread of pfd leaves its processor. */
__noinline int leaves(__u32 tid, __u64 now, __u32 was_preempted)
{
	struct thread *t = thread_of(tid);

	if (t) {
		t->off_began = now;
		t->off_preempted = was_preempted;
	}
	return 0;
}

/* comes records that a thread runs again: one of pfd, or one that pfd has woken. */
__noinline __u64 comes(__u32 tid, __u64 now)
{
	struct thread *t = bpf_map_lookup_elem(&fault_threads, &tid);
	__u64 woken;
	__u32 i;

	if (!t)
		return 0;
	if (t->off_began) {
		i = t->n & 15;
		t->off[i].from = t->off_began;
		t->off[i].to = (now & ~1ULL) | (t->off_preempted & 1);
		t->off_began = 0;
		t->n++;
	}
	woken = t->woken;
	t->woken = 0;
	return woken;
}

SEC("raw_tp/sched_switch")
int switched(struct raw_args *ctx)
{
	struct task_struct *prev = (void *)ctx->args[1], *next = (void *)ctx->args[2];
	__u32 processor = bpf_get_smp_processor_id() + 1, tgid = tgid_of(prev), tid = tid_of(prev);
	struct client *c, *before = client_of(tgid);
	__u64 now = bpf_ktime_get_ns(), woken;
	struct pfd *p;

	/* The state in which the thread leaves: 0 means that it is still runnable. */
	if (engine(tgid, tid))
		leaves(tid, now, ctx->args[0] || !(ctx->args[3] & 0xffffffff));
	tgid = tgid_of(next);
	tid = tid_of(next);
	p = engine(tgid, tid);
	if (p) {
		p->processor = processor;
		if (before && before->pfd == tgid)
			share(p, now);
		woken = comes(tid, now);
		if (woken)
			observe(wake_pfd, 0, 0, now - woken);
		return 0;
	}
	c = client_of(tgid);
	if (!c)
		return 0;
	woken = comes(tid, now);
	if (woken) {
		observe(wake_client, 0, 0, now - woken);
		c->ran_ns[c->ran_n++ % RAN] = now;
	}
	p = bpf_map_lookup_elem(&fault_pfds, &c->pfd);
	if (p && p->processor == processor)
		share(p, now);
	return 0;
}

SEC("raw_tp/sched_waking")
int waking(struct raw_args *ctx)
{
	struct task_struct *p = (void *)ctx->args[0];
	__u32 tgid = tgid_of(p), tid = tid_of(p);
	struct thread *t;

	if (!engine(tgid, tid) && !(client_of(tgid) && watched()))
		return 0;
	t = thread_of(tid);
	if (t && !t->woken)
		t->woken = bpf_ktime_get_ns();
	return 0;
}

/* An attached process that must page in touches the page, or makes the kernel populate it. */

static __always_inline void touch_of(__u32 pid, __u64 address)
{
	struct call_key k = { .pid = pid, .page = address & ~4095ULL };
	struct touches *t = bpf_map_lookup_elem(&fault_touched, &k);
	struct touches fresh = {};

	if (!t) {
		bpf_map_update_elem(&fault_touched, &k, &fresh, BPF_NOEXIST);
		t = bpf_map_lookup_elem(&fault_touched, &k);
	}
	if (t)
		t->ns[t->n++ % TOUCHES] = bpf_ktime_get_ns();
}

SEC("raw_tp/page_fault_user")
int touched(struct raw_args *ctx)
{
	__u32 pid = current_pid();

	if (client_of(pid))
		touch_of(pid, ctx->args[0]);
	return 0;
}

SEC("raw_tp/mm_page_alloc")
int populated(struct raw_args *ctx)
{
	struct pt_regs *regs;
	__u32 pid = current_pid();

	if (!client_of(pid))
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	if (NUMBER(regs) == SYS_madvise)
		touch_of(pid, FIRST(regs));
	return 0;
}

SEC("raw_tp/io_page_fault")
int iommu_fault(struct raw_args *ctx)
{
	count(iommu_faults, 1);
	return 0;
}

/* The table of fault_latency for cat. */

static const char stage_names[STAGES][16] = {
	"ring", "send", "raise", "drain", "queue", "page_in", "answer", "resend", "complete", "seen", "total",
	"kernel_enter", "kernel_populate", "kernel_leave", "reclaim", "lock_wait", "lock_other", "preempted", "slept",
	"wake_pfd", "wake_client", "delegate_run", "delegate_touch", "delegate_answer",
};
static const char method_names[5][12] = { "unknown", "gup", "touch", "uffd", "populate" };
static const char kind_names[4][12] = { "none", "minor", "major", "permission" };

static const char header[] = "STAGE           METHOD    KIND        COUNT      P50_NS      P99_NS      MAX_NS\n";
static const char row[] = "%-15s %-9s %-10s %6llu %11llu %11llu %11llu\n";

/* place returns the value that part of a bucket's n values do not exceed, assuming that they
   are evenly distributed. */
__noinline __u64 place(__u32 b, __u64 part, __u64 n)
{
	__u32 e = b / 8 + 2;

	if (b < 8)
		return b;
	return (1ULL << e) + (b % 8) * (1ULL << (e - 3)) + (1ULL << (e - 3)) * part / n;
}

/* percentile returns the value that percent of the values do not exceed. */
__noinline __u64 percentile(struct latency *l, __u64 percent)
{
	__u64 sum = 0, rank, n;

	if (!l)
		return 0;
	rank = (l->count * percent + 99) / 100;
	for (__u32 b = 0; b < BUCKETS; b++) {
		n = l->buckets[b];
		sum += n;
		if (sum >= rank)
			return place(b, n - (sum - rank), n);
	}
	return l->max_ns;
}

SEC("iter/bpf_map_elem")
int fault_table(struct bpf_iter__bpf_map_elem *ctx)
{
	struct bpf_iter_meta *meta = ctx->meta;
	struct seq_file *seq = meta->seq;
	struct latency_key *k = ctx->key;
	struct latency *l = ctx->value;
	__u64 args[7];

	if (!k || !l)
		return 0;
	if (!meta->seq_num)
		bpf_seq_printf(seq, header, sizeof(header), 0, 0);
	if (k->stage >= STAGES || k->method > populate || k->kind > permission)
		return 0;
	args[0] = (__u64)stage_names[k->stage];
	args[1] = (__u64)method_names[k->method];
	args[2] = (__u64)kind_names[k->kind];
	args[3] = l->count;
	args[4] = percentile(l, 50);
	args[5] = percentile(l, 99);
	args[6] = l->max_ns;
	for (int i = 4; i < 6; i++)
		if (args[i] > args[6])
			args[i] = args[6];
	bpf_seq_printf(seq, row, sizeof(row), args, sizeof(args));
	return 0;
}
