/* A client of pfd in C, with libexanet.
 *
 *   exanet target SOCKET NODE METHOD SIZE
 *     exports SIZE bytes of untouched memory and prints "REMOTE NOTIFY", waits for
 *     the completion words of a write, and checks its bytes
 *   exanet write|read SOCKET NODE METHOD SIZE  REMOTE NOTIFY
 *     writes SIZE bytes there, or reads them
 *
 * METHOD is gup, touch, uffd or populate. Exit code 0: success. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <exanet.h>

#define FIRST_WORD UINT64_C(0x1122334455667788)
#define LAST_WORD UINT64_C(0x99aabbccddeeff00)

static unsigned char pattern(size_t i) { return i * 7 + (i >> 8) + (i >> 16); }

static int usage(void)
{
	fprintf(stderr, "usage: exanet target SOCKET NODE gup|touch|uffd|populate SIZE\n"
		"       exanet write|read SOCKET NODE gup|touch|uffd|populate SIZE  REMOTE NOTIFY\n");
	return 2;
}

static int failed(void)
{
	fprintf(stderr, "exanet: %s\n", exanet_error());
	return 1;
}

static size_t check(const unsigned char *buf, size_t size)
{
	size_t wrong = 0;
	for (size_t i = 0; i < size; i++)
		wrong += buf[i] != pattern(i);
	return wrong;
}

static int target(exanet *e, unsigned char *buf, uint32_t size)
{
	struct exanet_remote r;
	char text[96];
	uint64_t *words = (uint64_t *)(buf + ((size + 4095) & ~4095u));	/* an untouched page */
	exanet_export(e, buf, size, &r);
	if (exanet_remote_text(&r, text, sizeof text))
		return failed();
	printf("%s %p\n", text, (void *)words);
	fflush(stdout);
	if (exanet_wait_word(e, words + 1, LAST_WORD, -1))
		return failed();
	size_t wrong = check(buf, size) + (words[0] != FIRST_WORD);
	printf("%" PRIu32 " bytes came, %zu wrong\n", size, wrong);
	fflush(stdout);
	getchar();	/* others may read until standard input ends */
	return wrong != 0;
}

static int initiator(exanet *e, unsigned char *buf, uint32_t size, int reading, char **argv)
{
	struct exanet_transfer t = { .local = buf, .size = size };
	if (exanet_remote_parse(argv[0], &t.remote))
		return failed();
	if (!reading) {
		t.notify = strtoull(argv[1], NULL, 0);
		t.first = FIRST_WORD;
		t.last = LAST_WORD;
		for (size_t i = 0; i < size; i++)
			buf[i] = pattern(i);
	}
	int number = reading ? exanet_read(e, &t) : exanet_write(e, &t);
	int status = number < 0 ? number : exanet_wait(e, number, -1);
	if (status < 0)
		return failed();
	if (status)
		fprintf(stderr, "exanet: status %d: %s\n", status, exanet_status(status));
	else if (reading)
		printf("%" PRIu32 " bytes read, %zu wrong\n", size, check(buf, size));
	return status || (reading && check(buf, size));
}

int main(int argc, char **argv)
{
	static const char *const methods[] = { "", "gup", "touch", "uffd", "populate" };
	struct exanet_options o = { .policy = EXANET_PI4, .flags = EXANET_ACCEPT_GROUP, .group = "c-example" };
	exanet *e;
	int is_target = argc == 6 && !strcmp(argv[1], "target"), reading = argc == 8 && !strcmp(argv[1], "read");
	if (!is_target && !reading && (argc != 8 || strcmp(argv[1], "write")))
		return usage();
	for (unsigned char m = EXANET_GUP; m <= EXANET_POPULATE; m++)
		if (!strcmp(argv[4], methods[m]))
			o.method = m;
	if (!o.method)
		return usage();
	uint32_t size = strtoul(argv[5], NULL, 0);
	o.socket = argv[2];
	o.node = strtoul(argv[3], NULL, 0);
	if (exanet_attach(&e, &o))
		return failed();
	int result = 1;
	unsigned char *buf = exanet_alloc(e, (size_t)size + 8192);
	if (!buf)
		failed();
	else if (is_target)
		result = target(e, buf, size);
	else
		result = initiator(e, buf, size, reading, argv + 6);
	if (exanet_close(e))
		return failed();
	return result;
}
