/* Memory windows (docs/attach.md 8). */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>

#include "internal.h"

void window_message(unsigned char *m, int type, uint64_t address, uint64_t bytes, uint16_t peer, int rights)
{
	message(m, type, WINDOW_SIZE);
	put(m + 72, 8, address);
	put(m + 80, 8, bytes);
	put(m + 88, 2, peer);
	put(m + 90, 1, rights);
}

static int window(exanet *e, int type, const void *address, size_t size, uint16_t peer, int rights)
{
	UNCANCELLED;
	unsigned char m[WINDOW_SIZE];
	const int all = EXANET_RIGHT_READ | EXANET_RIGHT_WRITE | EXANET_RIGHT_ATOMIC | EXANET_RIGHT_MESSAGES;
	if (inherited(e))
		return refuse_child(e);
	if (!size || size - 1 > UINT64_MAX - (uintptr_t)address)
		return fail(EINVAL, "a memory window of %zu bytes at %p: it is empty, or passes the end of the address space", size, address);
	if (!rights || rights & ~all)
		return fail(EINVAL, "a memory window with rights %#x: give one or more of EXANET_RIGHT_READ (1), EXANET_RIGHT_WRITE (2), EXANET_RIGHT_ATOMIC (4) and EXANET_RIGHT_MESSAGES (8)", rights);
	window_message(m, type, (uintptr_t)address, size, peer, rights);
	return question(e, m, sizeof m, -1, -1, NULL);
}

int exanet_window(exanet *e, const void *address, size_t size, uint16_t peer, int rights)
{
	return window(e, WINDOW, address, size, peer, rights);
}

int exanet_window_close(exanet *e, const void *address, size_t size, uint16_t peer, int rights)
{
	return window(e, UNWINDOW, address, size, peer, rights);
}
