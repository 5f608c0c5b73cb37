/* alloc SOCKET COUNT: prefetches too much, and allocates and frees buffers of method uffd, whose addresses
 * are not reused. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <exanet.h>

int main(int argc, char **argv)
{
	struct exanet_options o = { .socket = argv[1], .method = EXANET_UFFD };
	exanet *e;
	int error = argc == 3 ? exanet_attach(&e, &o) : 1;
	if (!error && !exanet_prefetch(e, &o, SIZE_MAX, 0)) {
		printf("a prefetch of the whole address space is done\n");
		return 1;
	}
	for (int i = 0; !error && i < atoi(argv[2]); i++) {
		char *p = exanet_alloc(e, 4096);
		error = !p || exanet_free(e, p, 4096) ||
			mmap(p, 4096, PROT_NONE, MAP_PRIVATE | 0x20 /* MAP_ANONYMOUS */, -1, 0) != p;
	}
	if (error)
		printf("%s\n", exanet_error());
	return error || exanet_close(e);
}
