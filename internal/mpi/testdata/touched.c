/* A preloaded library: all memory of the program is brought in as soon as it has it, and stays there. */
#include <stdio.h>
#include <sys/mman.h>

__attribute__((constructor)) static void touch(void)
{
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		perror("touched: mlockall");
}
