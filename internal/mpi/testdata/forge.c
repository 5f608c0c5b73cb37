/* forge SOCKET GROUP NODE PDID GENERATION INTERFACE ADDRESS: a process, in the test of another user, that tries to reach
 * a rank of a job. It attaches with the name of the rank's group, which is another group if the user is another one,
 * connects to the rank's ports, and reads and writes 4096 bytes of its memory. It prints "forge: refused" if nothing of
 * that succeeds. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "exanet.h"
#include "exanet_stream.h"

int main(int argc, char **argv)
{
	static unsigned char mine[4096];
	exanet_stream *s;
	exanet *e;
	if (argc != 8)
		return 2;
	const struct exanet_options o = { .socket = argv[1], .node = (uint32_t)atoi(argv[3]), .group = argv[2], .flags = EXANET_ACCEPT_GROUP };
	struct exanet_transfer t = { .local = mine, .size = sizeof mine,
		.remote = { .node = o.node, .pdid = (uint16_t)atoi(argv[4]), .generation = (uint32_t)strtoul(argv[5], NULL, 0),
			.interface = (unsigned char)atoi(argv[6]), .address = strtoull(argv[7], NULL, 0), .length = sizeof mine } };
	if (exanet_attach(&e, &o)) {
		printf("forge: exanet_attach: %s\n", exanet_error());
		return 1;
	}
	for (int port = 1; port <= 3; port++) {
		char text[64];
		snprintf(text, sizeof text, "exanet:%u/%s/%d", o.node, argv[6], port);
		const int error = exanet_connect(e, text, &s, -1);
		if (error != -ECONNREFUSED && error != -ETIMEDOUT) {
			printf("forge: connected to %s: %d\n", text, error);
			return 1;
		}
	}
	for (int read = 1; read >= 0; read--) {
		int n = read ? exanet_read(e, &t) : exanet_write(e, &t);
		if (n >= 0)
			n = exanet_wait(e, n, -1);
		if (!n) {
			printf("forge: the memory was %s\n", read ? "read" : "written");
			return 1;
		}
	}
	exanet_close(e);
	printf("forge: refused\n");
	return 0;
}
