#include <stdio.h>
#include <string.h>
#include <exanet.h>

/* put REMOTE TEXT: writes TEXT into the memory of a putget target, which prints it. */
int main(int argc, char **argv)
{
	struct exanet_transfer t = { .offset = 4096 };	/* the page after the completion words */
	exanet *e;
	int n, status;

	if (argc != 3) {
		fprintf(stderr, "usage: put REMOTE TEXT\n");
		return 2;
	}
	if (exanet_remote_parse(argv[1], &t.remote) || exanet_attach(&e, NULL)) {
		fprintf(stderr, "put: %s\n", exanet_error());
		return 1;
	}
	t.local = argv[2];
	t.size = strlen(argv[2]);
	t.notify = t.remote.address;	/* two words, written after every byte of the line */
	t.first = t.size;
	t.last = 1;
	n = exanet_write(e, &t);
	status = n < 0 ? n : exanet_wait(e, n, -1);
	if (status)
		fprintf(stderr, "put: %s\n", status < 0 ? exanet_error() : exanet_status(status));
	exanet_close(e);
	return status != 0;
}
