#include <stdio.h>
#include <string.h>
#include <exanet.h>

/* put REMOTE: writes a line into memory of the process that printed REMOTE. */
int main(int argc, char **argv)
{
	static char line[64] = "hello, absent page\n";
	struct exanet_transfer t = { .local = line, .size = sizeof line };
	exanet *e;
	int n, status;

	if (argc != 2 || exanet_remote_parse(argv[1], &t.remote) || exanet_attach(&e, NULL)) {
		fprintf(stderr, "put: %s\n", argc == 2 ? exanet_error() : "usage: put REMOTE");
		return 1;
	}
	n = exanet_write(e, &t);
	status = n < 0 ? n : exanet_wait(e, n, 1000);
	if (status)
		fprintf(stderr, "put: %s\n", status < 0 ? exanet_error() : exanet_status(status));
	exanet_close(e);
	return status != 0;
}
