// A process that executes itself while a helper made by clone(CLONE_VM) keeps
// its old address space alive. It prints the address of one filled page with an
// untouched one behind it, and the helper's pid. It executes itself at the first
// line of input, and prints at the second how many bytes of the new image's page,
// at the same address, are still its own.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static int wait_for_line(void)
{
	char c = 0;
	while (c != '\n')
		if (read(0, &c, 1) != 1)
			return 0;
	return 1;
}

static int helper(void *arg)
{
	(void)arg;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (pause())
		;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 1) {
		unsigned char *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			return 1;
		memset(p, 1, PAGE);
		char *stack = malloc(65536);
		int pid = stack ? clone(helper, stack + 65536, CLONE_VM | SIGCHLD, NULL) : -1;
		if (pid < 0)
			return 1;
		char a[32], b[32];
		snprintf(a, sizeof a, "%lu", (unsigned long)p);
		snprintf(b, sizeof b, "%d", pid);
		printf("%s\n%s\n", a, b);
		fflush(stdout);
		int ok = wait_for_line();
		if (ok)
			execl("/proc/self/exe", argv[0], a, b, (char *)NULL);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return ok;
	}
	unsigned char *want = (unsigned char *)strtoul(argv[1], NULL, 10);
	int pid = atoi(argv[2]);
	unsigned char *p = mmap(want, 2 * PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	long n = -1;
	if (p == want) {
		memset(p, 0x5a, PAGE);
		n = 0;
	}
	printf("%ld\n", n);
	fflush(stdout);
	if (wait_for_line() && n == 0) {
		for (int i = 0; i < PAGE; i++)
			n += p[i] == 0x5a;
		printf("%ld\n", n);
		fflush(stdout);
		wait_for_line();
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return 0;
}
