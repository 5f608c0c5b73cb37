/* The keeper: a task that identifies the process's memory and can do nothing else
 * (docs/attach.md 9). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#endif

#include "internal.h"

#if defined __x86_64__
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define OWN_ARCH AUDIT_ARCH_AARCH64
#endif

struct keeper {
	_Alignas(16) unsigned char stack[8192], second[4096];	/* second: of the task that executes the program */
	int pid, pidfd, hold;	/* hold: a file that this process has locked */
	int helper;		/* a pidfd, or -1 */
	const struct program *program;	/* for the keeper to start, or NULL */
	int32_t started;	/* its pid, or a negative errno; 0: not yet */
	uint32_t adopted;	/* 1 once this process has a pidfd of it */
	int ptracer;
	uint32_t ready;
	const char *failed;	/* what the keeper could not do; it ends with the errno */
	unsigned char proof[16];
	_Alignas(4096) unsigned char absent[4096];	/* the page after the proof's, which stays absent (9) */
};

/* call is syscall(2), but leaves errno alone, which belongs to the thread that made the keeper. */
static inline long call4(long number, long a, long b, long c, long fourth)
{
#if defined __x86_64__
	register long d asm("r10") = fourth, e asm("r8") = 0;
	asm volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(d), "r"(e) : "rcx", "r11", "memory");
	return number;
#elif defined __aarch64__
	register long n asm("x8") = number, x asm("x0") = a, y asm("x1") = b, z asm("x2") = c, d asm("x3") = fourth, e asm("x4") = 0;
	asm volatile("svc 0" : "+r"(x) : "r"(n), "r"(y), "r"(z), "r"(d), "r"(e) : "memory");
	return x;
#endif
}

static inline long call(long number, long a, long b, long c) { return call4(number, a, b, c, 0); }

#define RAW __attribute__((no_sanitize("address", "thread", "undefined")))	/* no code that uses a thread's memory */

static long start(struct keeper *k, long flags, unsigned char *top, int *pidfd, void (*run)(struct keeper *));

static const struct flock whole = { .l_type = F_WRLCK };

/* execute is the keeper's child until it executes the program. The keeper waits meanwhile (CLONE_VFORK). */
RAW __attribute__((noreturn)) static void execute(struct keeper *k)
{
	static char *const argv[] = { "pfd", "memory-helper", NULL }, *const env[] = { NULL };
	static const uint64_t none;
	const struct program *p = k->program;
	long error = call(SYS_setpgid, 0, 0, 0);
	for (int i = 0; i < PROGRAM_FILES && error >= 0; i++)
		error = call(SYS_dup3, p->files[i], i, 0);
	if (error >= 0)
		error = call(SYS_chdir, (long)"/", 0, 0);
	if (error >= 0)
		error = call4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none);
	if (error >= 0)
		error = call(SYS_execve, (long)p->path, (long)argv, (long)env);
	__atomic_store_n(&k->started, error, __ATOMIC_SEQ_CST);
	for (;;)
		call(SYS_exit, 1, 0, 0);
}

/* action sets what a signal does in the keeper: SIG_DFL or SIG_IGN. */
RAW static inline void action(int signal, long handler)
{
	const long as[4] = { handler };	/* struct sigaction of the kernel: no flags, no mask */
	call4(SYS_rt_sigaction, signal, (long)as, 0, sizeof(uint64_t));
}

/* launch starts the program as a child of the keeper, so that no wait of the process returns it. Nothing
 * reaps the child before the process has a pidfd of it; then the kernel does. It returns a negative errno,
 * or 0: it runs. */
RAW static long launch(struct keeper *k)
{
	static const struct timespec pause = { .tv_nsec = 50000000 };
	struct program *p = (struct program *)k->program;
	for (int i = 1; i <= 64; i++)	/* no handler of the process may run here or in the child */
		action(i, (long)SIG_DFL);
	long fd = call(SYS_pidfd_open, call(SYS_getpid, 0, 0, 0), 0, 0);
	if (fd >= 0)
		fd = call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, PROGRAM_FILES);
	if (fd < 0)
		return fd;
	p->files[PROGRAM_KEEPER] = fd;
	const long pid = start(k, CLONE_VM | CLONE_VFORK | SIGCHLD, k->second + sizeof k->second, NULL, execute);
	if (pid < 0 || k->started < 0)
		return pid < 0 ? pid : k->started;
	__atomic_store_n(&k->started, pid, __ATOMIC_SEQ_CST);
	while (!load32(&k->adopted)) {
		if (!call(SYS_fcntl, k->hold, F_SETLK, (long)&whole))
			return -ESRCH;	/* the process has another address space now */
		call4(SYS_futex, (long)&k->adopted, FUTEX_WAIT, 0, (long)&pause);
	}
	action(SIGCHLD, (long)SIG_IGN);
	call(SYS_wait4, -1, 0, WNOHANG);	/* it may have ended before */
	return 0;
}

/* keep is the keeper. It makes only system calls, and no compiler may add code that uses a thread's memory. */
__attribute__((noreturn, no_sanitize("address", "thread", "undefined")))
static void keep(struct keeper *k)
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
	long error = 0;
	call(SYS_prctl, PR_SET_NAME, (long)"exanet-keeper", 0);
	call(SYS_prctl, PR_SET_PTRACER, k->ptracer, 0);	/* EINVAL: no Yama */
	k->failed = "starting pfd's memory helper";
	if (k->program && (error = launch(k)))
		goto out;
	k->failed = "close_range";
	if (k->hold)
		error = call(SYS_close_range, 0, k->hold - 1, 0);
	if (error || (error = call(SYS_close_range, k->hold + 1, ~0U, 0)))
		goto out;
	k->failed = "PR_SET_NO_NEW_PRIVS";
	if ((error = call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0)))
		goto out;
	k->failed = "its seccomp filter";
	if ((error = call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program)))
		goto out;
	__atomic_store_n(&k->ready, 1, __ATOMIC_SEQ_CST);
	call(SYS_fcntl, k->hold, F_SETLKW, (long)&whole);
out:
	for (;;)
		call(SYS_exit, -error, 0, 0);
}

/* start creates a task by the system call itself, because a sanitizer may replace the C library's clone with
 * one that runs its own code in the child. It returns the pid, or a negative errno. */
__attribute__((no_sanitize("address", "thread", "undefined"), noinline))
static long start(struct keeper *k, long flags, unsigned char *top, int *pidfd, void (*run)(struct keeper *))
{
#if defined __x86_64__
	register long n asm("rax") = SYS_clone, ctid asm("r10") = 0, tls asm("r8") = 0;
	register struct keeper *own asm("r12") = k;
	asm volatile("syscall\n\t"
		     "test %%rax, %%rax\n\t"
		     "jnz 1f\n\t"
		     "mov %%r12, %%rdi\n\t"
		     "call *%[run]\n"
		     "1:"
		     : "+r"(n) : "D"(flags), "S"(top), "d"(pidfd), "r"(ctid), "r"(tls),
		       "r"(own), [run] "b"(run) : "rcx", "r11", "cc", "memory");
	return n;
#elif defined __aarch64__
	register long n asm("x8") = SYS_clone, x asm("x0") = flags, tls asm("x3") = 0, ctid asm("x4") = 0;
	register unsigned char *stack asm("x1") = top;
	register int *out asm("x2") = pidfd;
	register struct keeper *own asm("x19") = k;
	register void (*code)(struct keeper *) asm("x20") = run;
	asm volatile("svc 0\n\t"
		     "cbnz x0, 1f\n\t"
		     "mov x0, x19\n\t"
		     "blr x20\n"
		     "1:"
		     : "+r"(x) : "r"(n), "r"(stack), "r"(out), "r"(tls), "r"(ctid), "r"(own), "r"(code) : "memory", "cc");
	return x;
#endif
}

static long start_keeper(struct keeper *k)
{
	return start(k, CLONE_VM | CLONE_PIDFD, k->stack + sizeof k->stack, &k->pidfd, keep);
}

/* valgrind ends a program that creates a task like this. It does not see code that it does not simulate. */
#if __has_include(<valgrind/valgrind.h>)
static long unseen(long thread, struct keeper *k)
{
	(void)thread;
	return start_keeper(k);
}
#else
#define RUNNING_ON_VALGRIND 0
#define VALGRIND_NON_SIMD_CALL1(function, keeper) 0
#endif

/* ended waits for the keeper's end; its exit status is the errno. */
static int ended(struct keeper *k, int options)
{
	int status = 0, pid;
	while ((pid = waitpid(k->pid, &status, __WCLONE | options)) < 0 && errno == EINTR)
		;
	if (!pid)
		return 0;
	if (pid > 0 && WIFSIGNALED(status))
		return fail(EPERM, "a keeper cannot be confined: signal %d ended it: a seccomp policy forbids %s here", WTERMSIG(status), k->failed ? k->failed : "it");
	const int error = pid > 0 ? WEXITSTATUS(status) : ESRCH;
	return fail(error == EMFILE ? EMFILE : EPERM, "a keeper cannot be confined: %s: %s", k->failed ? k->failed : "it ended", strerror(error));
}

/* How long a keeper may take (ns): the first one, then twice as long for each further one. */
enum { READY_FIRST = 100000000, READY_MOST = 1600000000, READY_PAUSE = 20000, READY_PAUSE_MOST = 1000000 };

/* ready waits until the keeper's seccomp filter is in place: 0, or a negative errno; -EAGAIN: not in time. */
static int ready(struct keeper *k, int64_t limit)
{
	const int64_t end = now() + limit;
	for (int64_t pause = READY_PAUSE; !load32(&k->ready); rest(&pause, READY_PAUSE_MOST)) {
		int error = ended(k, WNOHANG);
		if (error)
			return error;
		if (now() > end)
			return fail(EAGAIN, "a keeper is not ready after %d ms: closing a descriptor takes long (SO_LINGER)", (int)(limit / 1000000));
	}
	return 0;
}

/* adopt opens a pidfd of the keeper's child, and lets the keeper continue: 0, or a negative errno. */
static int adopt(struct keeper *k)
{
	int error;
	for (int64_t pause = READY_PAUSE; __atomic_load_n(&k->started, __ATOMIC_SEQ_CST) <= 0; rest(&pause, READY_PAUSE_MOST))
		if ((error = ended(k, WNOHANG)))
			return error;
	k->helper = syscall(SYS_pidfd_open, k->started, 0);
	if (k->helper < 0) {
		error = fail(errno, "watch pfd's memory helper: pidfd_open: %m");
		kill(k->started, SIGKILL);	/* the number is the child's until the keeper continues or ends */
		return error;
	}
	store32(&k->adopted, 1);
	syscall(SYS_futex, &k->adopted, FUTEX_WAKE, 1, NULL, NULL, 0);
	return 0;
}

bool keeper_end_helper(struct keeper *k, int ms)
{
	struct pollfd p = { .events = POLLIN };
	if (!k || k->helper < 0)
		return true;
	p.fd = k->helper;
	syscall(SYS_pidfd_send_signal, k->helper, SIGKILL, NULL, 0);
	const int64_t end = now() + (int64_t)ms * 1000000;
	int n;
	while ((n = poll(&p, 1, ms)) < 0 && errno == EINTR)
		ms = now() < end ? (int)((end - now()) / 1000000) : 0;
	return n > 0;
}

/* make creates a keeper that is ready in time, or returns NULL and why. */
static struct keeper *make(pid_t ptracer, struct program *program, int64_t limit, int *why)
{
	int ends[2] = { -1, -1 };
	const uint64_t all = ~UINT64_C(0);
	uint64_t old;
	struct keeper *k = mmap(NULL, sizeof *k, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (k == MAP_FAILED) {
		*why = fail(errno, "memory for a keeper: %m");
		return NULL;
	}
	/* A separate mapping, so that no huge page covers it, and without the page that mlockall(2) has
	 * paged in. A failure here matters only if kcmp(2) is refused. */
	mprotect(k->absent, sizeof k->absent, PROT_READ);
	munlock(k->absent, sizeof k->absent);
	madvise(k->absent, sizeof k->absent, MADV_DONTNEED);
	if (pipe2(ends, O_CLOEXEC) || getrandom(k->proof, sizeof k->proof, 0) != sizeof k->proof)
		goto broken;
	close(ends[0]);		/* before taking the lock: any close of the file releases it */
	k->hold = ends[1];
	if (fcntl(k->hold, F_SETLK, &whole))
		goto broken;
	k->helper = -1;
	k->program = program;
	k->ptracer = ptracer;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof all);
	const long pid = RUNNING_ON_VALGRIND ? (long)VALGRIND_NON_SIMD_CALL1(unseen, k) : start_keeper(k);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof old);
	if (pid < 0) {
		errno = -pid;
		goto broken;
	}
	k->pid = pid;
	if (!(program && (*why = adopt(k))) && !(*why = ready(k, limit)))
		return k;
	keeper_end_helper(k, 0);
	keeper_end(k);
	return NULL;
broken:
	*why = fail(errno, "making a keeper: %m%s", errno == EAGAIN ? ": out of processes (ulimit -u, pids.max)" : "");
	if (ends[1] >= 0)
		close(ends[1]);
	munmap(k, sizeof *k);
	return NULL;
}

void keeper_forget(struct keeper *k)
{
	if (!k)
		return;
	close(k->hold);		/* the lock is the parent's and stays */
	close(k->pidfd);
	if (k->helper >= 0)
		close(k->helper);
	munmap(k, sizeof *k);
}

/* Another thread may now close a descriptor whose last copy the keeper has, and a lingering socket takes
 * long to close. Such a keeper is ended, which drops the copy at once, and the next one has none. */
struct keeper *keeper_make(pid_t ptracer, struct program *program, int *why)
{
	struct keeper *k;
	for (int64_t limit = READY_FIRST; !(k = make(ptracer, program, limit, why)) && *why == -EAGAIN && limit < READY_MOST; limit *= 2)
		;
	return k;
}

void keeper_end(struct keeper *k)
{
	if (!k)
		return;
	close(k->hold);
	syscall(SYS_pidfd_send_signal, k->pidfd, SIGKILL, NULL, 0);
	while (waitpid(k->pid, NULL, __WCLONE) < 0 && errno == EINTR)
		;
	close(k->pidfd);
	if (k->helper >= 0)
		close(k->helper);
	munmap(k, sizeof *k);
}

int keeper_pidfd(const struct keeper *k) { return k->pidfd; }

const unsigned char *keeper_proof(const struct keeper *k) { return k->proof; }
