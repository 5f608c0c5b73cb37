#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <exanet_gsas.h>

/* counter begin: makes a word on node 0, and prints the token of its tree.
 * counter add TOKEN N: adds N ones from node 1, and prints the sum. */
int main(int argc, char **argv)
{
	const struct exanet_options o = { .node = argc == 4, .flags = EXANET_THREADS };
	exanet_gsas *g = NULL;
	exanet *e = NULL;
	char token[EXANET_GSAS_TOKEN];
	uint64_t word, sum = 0;
	if (argc != 2 && argc != 4) {
		fprintf(stderr, "usage: counter begin | add TOKEN N\n");
		return 2;
	}
	int status = exanet_attach(&e, &o);
	if (!status)
		status = argc == 4 ? exanet_gsas_join(e, argv[2], &g) : exanet_gsas_begin(e, &g);
	if (!status && argc == 4) {
		for (int n = atoi(argv[3]); n > 0 && !status; n--)
			status = exanet_gsas_fetch_add(g, exanet_gsas_directory(g), 1, &sum);
		if (!status)
			printf("%" PRIu64 "\n", sum + 1);
	} else if (!status && !(status = exanet_gsas_alloc(g, 0, 1, exanet_gsas_directory(g), &word))) {
		exanet_gsas_token(g, token, sizeof token);
		puts(token);
		fflush(stdout);
		pause();	/* the tree lives as long as its last thread */
	}
	if (status)
		fprintf(stderr, "counter: %s\n", exanet_error());
	exanet_close(e);
	return status != 0;
}
