package sandbox

// Runtime returns the system calls of the Go runtime, and of the C library below a build for
// the race detector, once the program runs: memory, threads, signals, time, and polled files.
// None of them starts a program.
func Runtime() []string {
	return []string{
		"arch_prctl", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "clone", "clone3", "close", "dup3",
		"epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "eventfd2", "exit", "exit_group", "fcntl",
		"fstat", "futex", "get_robust_list", "getcpu", "getpid", "getppid", "getrandom", "getrusage", "gettid",
		"gettimeofday", "lseek", "madvise", "membarrier", "mincore", "mmap", "mprotect", "mremap", "munmap",
		"nanosleep", "newfstatat", "openat", "pipe2", "poll", "ppoll", "pread64", "prlimit64", "pwrite64", "read",
		"readlinkat", "readv", "restart_syscall", "rseq", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
		"rt_sigtimedwait", "sched_getaffinity", "sched_yield", "set_robust_list", "setitimer", "sigaltstack", "statx",
		"sysinfo", "tgkill", "timer_create", "timer_delete", "timer_settime", "uname", "write", "writev",
	}
}
