/* Userfaultfds from open to close, while the library sends them to pfd (docs/attach.md 8). A child that is
 * forked meanwhile has copies, with which memory of the parent stays registered: an munmap there waits until
 * the event is read, and nothing reads it once pfd has ended. So a child closes them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

enum { MOST = 256 };	/* at one time, of all threads */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* fork holds it; it is never held during a request to pfd */
static int open_ones[MOST];	/* under lock: descriptor + 1, 0 free */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool handled;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void in_child(void)
{
	for (int i = 0; i < MOST; i++)
		if (open_ones[i]) {
			close(open_ones[i] - 1);
			open_ones[i] = 0;
		}
	pthread_mutex_unlock(&lock);
}

static void handle_forks(void) { handled = !pthread_atfork(before_fork, after_fork, in_child); }

/* hold takes the lock with signals blocked, because a handler may fork. */
static void hold(sigset_t *old)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, old);
	pthread_mutex_lock(&lock);
}

static void let_go(const sigset_t *old)
{
	pthread_mutex_unlock(&lock);
	pthread_sigmask(SIG_SETMASK, old, NULL);
}

void uffd_prepare(void) { pthread_once(&once, handle_forks); }

int uffd_open(int flags)
{
	sigset_t old;
	int i = 0, fd = -1;
	uffd_prepare();
	hold(&old);
	while (i < MOST && open_ones[i])
		i++;
	if (!handled || i == MOST)
		errno = EAGAIN;
	else if ((fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags)) >= 0)
		open_ones[i] = fd + 1;
	let_go(&old);
	return fd;
}

void uffd_close(int fd)
{
	const int error = errno;
	sigset_t old;
	hold(&old);
	for (int i = 0; i < MOST; i++)
		if (open_ones[i] == fd + 1)
			open_ones[i] = 0;
	close(fd);
	let_go(&old);
	errno = error;
}

void uffd_unregister(int fd, void *address, size_t size)
{
	struct uffdio_range r = { (uintptr_t)address, size };
	ioctl(fd, UFFDIO_UNREGISTER, &r);
}
