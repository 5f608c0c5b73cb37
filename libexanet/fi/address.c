/* Addresses: sockaddr_in in 240.0.0.0/4, which no network routes. Bits [27:0] are the node; the port is the
 * process's interface (16 to 31) times 256 plus the endpoint, a port of the process. Defined by this provider. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fi.h"

enum { NETWORK = 0xf, INTERFACE = 16, INTERFACES = 16 };

struct sockaddr_in address_of(const struct exanet_remote *r, unsigned endpoint)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_port = htons((uint16_t)(r->interface << 8 | endpoint)),
		.sin_addr = { htonl((uint32_t)NETWORK << 28 | r->node) },
	};
}

unsigned address_endpoint(const struct sockaddr_in *a) { return ntohs(a->sin_port) & 0xff; }

static bool valid(const struct sockaddr_in *a)
{
	return a->sin_family == AF_INET && ntohl(a->sin_addr.s_addr) >> 28 == NETWORK;
}

int address_check(const void *address, size_t size, struct sockaddr_in *to)
{
	if (!address || size < sizeof *to)
		return -FI_EINVAL;
	memcpy(to, address, sizeof *to);
	return valid(to) ? 0 : -FI_EADDRNOTAVAIL;
}

int address_text(const struct sockaddr_in *a, char *text, size_t size)
{
	const unsigned interface = ntohs(a->sin_port) >> 8;
	if (!valid(a) || interface < INTERFACE || interface >= INTERFACE + INTERFACES || !address_endpoint(a))
		return -FI_EADDRNOTAVAIL;
	snprintf(text, size, "exanet:%u/%u/%u", ntohl(a->sin_addr.s_addr) & 0xfffffff, interface, address_endpoint(a));
	return 0;
}

int address_parse(const char *node, const char *service, struct sockaddr_in *to)
{
	char *end;
	if (node && (inet_pton(AF_INET, node, &to->sin_addr) != 1 || ntohl(to->sin_addr.s_addr) >> 28 != NETWORK))
		return -FI_ENODATA;
	if (!service)
		return 0;
	const unsigned long port = strtoul(service, &end, 10);
	if (!*service || *end || port > UINT16_MAX)
		return -FI_ENODATA;
	to->sin_port = htons((uint16_t)port);
	return 0;
}

int address_copy(const struct sockaddr_in *a, void *to, size_t *size)
{
	const size_t room = *size;
	memcpy(to, a, room < sizeof *a ? room : sizeof *a);
	*size = sizeof *a;
	return room < sizeof *a ? -FI_ETOOSMALL : 0;
}
