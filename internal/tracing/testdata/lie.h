/* Makes the example's clock wrong by LIE nanoseconds. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

static int lie(clockid_t which, struct timespec *t)
{
	int r = clock_gettime(which, t);
	t->tv_sec += strtoll(getenv("LIE"), NULL, 10) / 1000000000;
	return r;
}

#define clock_gettime lie
