/* cancel SOCKET: threads are cancelled while they wait. Their locks and channels are released. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <exanet.h>

static exanet *e;
static char from[4096], *to;

static int transfer(int reading)
{
	struct exanet_transfer t = { .local = from, .size = sizeof from };
	exanet_export(e, to, sizeof from, &t.remote);
	int number = reading ? exanet_read(e, &t) : exanet_write(e, &t);
	return number < 0 ? number : exanet_wait(e, number, -1);
}

static void *transfers(void *arg)
{
	for (;; pthread_testcancel())
		if (transfer((long)arg)) {
			printf("%s\n", exanet_error());
			return NULL;
		}
}

int main(int argc, char **argv)
{
	struct exanet_options o = { .socket = argv[1] };
	if (argc != 2 || exanet_attach(&e, &o))
		return 1;
	to = exanet_alloc(e, sizeof from);
	alarm(60);
#ifdef ONCE
	enum { TIMES = 0 };
#else
	enum { TIMES = 100 };
#endif
	for (long i = 0; i < TIMES; i++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, transfers, (void *)(i & 1)))
			return 1;
		usleep(i * 20);
		pthread_cancel(thread);
		void *how;
		pthread_join(thread, &how);
		if (how != PTHREAD_CANCELED)
			return 1;
	}
	return transfer(0) || transfer(1) || exanet_close(e);
}
