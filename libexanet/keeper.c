/* The keeper: a task that names the process's memory and can do nothing else
 * (docs/attach.md 9). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
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
	_Alignas(16) unsigned char stack[8192];
	int pid, pidfd, hold;	/* hold: a file that this process has locked */
	int ptracer;
	uint32_t ready;
	unsigned char proof[16];
	_Alignas(4096) unsigned char absent[4096];	/* the page after the proof's, which stays absent (9) */
};

/* call is syscall(2), but leaves errno alone: it is that of the thread which made the keeper. */
static inline long call(long number, long a, long b, long c)
{
#if defined __x86_64__
	register long d asm("r10") = 0, e asm("r8") = 0;
	asm volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(d), "r"(e) : "rcx", "r11", "memory");
	return number;
#elif defined __aarch64__
	register long n asm("x8") = number, x asm("x0") = a, y asm("x1") = b, z asm("x2") = c, d asm("x3") = 0, e asm("x4") = 0;
	asm volatile("svc 0" : "+r"(x) : "r"(n), "r"(y), "r"(z), "r"(d), "r"(e) : "memory");
	return x;
#endif
}

/* keep is the keeper: system calls alone. */
__attribute__((no_sanitize("address"))) static int keep(void *arg)
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
	bool bound = (!k->hold || !call(SYS_close_range, 0, k->hold - 1, 0)) && !call(SYS_close_range, k->hold + 1, ~0U, 0);
	call(SYS_prctl, PR_SET_NAME, (long)"exanet-keeper", 0);
	call(SYS_prctl, PR_SET_PTRACER, k->ptracer, 0);	/* EINVAL: no Yama */
	bound = bound && !call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0);
	bound = bound && !call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program);
	if (bound) {
		store32(&k->ready, 1);
		call(SYS_fcntl, k->hold, F_SETLKW, (long)&whole);
	}
	call(SYS_exit, !bound, 0, 0);
	return 0;
}

/* Bound at the start: where valgrind does not look, the dynamic linker cannot run. */
__typeof__(clone) clone __attribute__((noplt));

static int start(struct keeper *k)
{
	return clone(keep, k->stack + sizeof k->stack, CLONE_VM | CLONE_PIDFD, k, &k->pidfd);
}

/* valgrind ends a program that makes a task like this. It does not see what it does not
 * simulate. */
#if __has_include(<valgrind/valgrind.h>)
static long unseen(long thread, struct keeper *k)
{
	(void)thread;
	return start(k);
}
#else
#define RUNNING_ON_VALGRIND 0
#define VALGRIND_NON_SIMD_CALL1(function, keeper) 0
#endif

struct keeper *keeper_make(pid_t ptracer)
{
	int ends[2] = { -1, -1 };
	const struct flock whole = { .l_type = F_WRLCK };
	const uint64_t all = ~UINT64_C(0);
	uint64_t old;
	struct keeper *k = mmap(NULL, sizeof *k, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (k == MAP_FAILED) {
		fail(errno, "memory for a keeper: %m");
		return NULL;
	}
	/* A mapping of its own, so that no huge page brings it in, and without the page that
	 * mlockall(2) has brought in: what fails here matters where kcmp(2) is refused only. */
	mprotect(k->absent, sizeof k->absent, PROT_READ);
	munlock(k->absent, sizeof k->absent);
	madvise(k->absent, sizeof k->absent, MADV_DONTNEED);
	if (pipe2(ends, O_CLOEXEC) || getrandom(k->proof, sizeof k->proof, 0) != sizeof k->proof)
		goto broken;
	close(ends[0]);		/* before the lock is taken: any close of the file gives it up */
	k->hold = ends[1];
	if (fcntl(k->hold, F_SETLK, &whole))
		goto broken;
	k->ptracer = ptracer;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof all);
	k->pid = RUNNING_ON_VALGRIND ? (int)VALGRIND_NON_SIMD_CALL1(unseen, k) : start(k);
	int why = errno;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof old);
	errno = why;
	if (k->pid < 0)
		goto broken;
	while (!load32(&k->ready)) {
		if (waitpid(k->pid, NULL, __WCLONE | WNOHANG)) {
			close(k->pidfd);
			close(k->hold);
			munmap(k, sizeof *k);
			fail(EPERM, "a keeper cannot be bound: close_range or seccomp is forbidden here");
			return NULL;
		}
		sched_yield();
	}
	return k;
broken:
	fail(errno, "making a keeper: %m");
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
	munmap(k, sizeof *k);
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
	munmap(k, sizeof *k);
}

int keeper_pidfd(const struct keeper *k) { return k->pidfd; }

const unsigned char *keeper_proof(const struct keeper *k) { return k->proof; }
