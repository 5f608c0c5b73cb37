/* bytes MESSAGES [kill | tell | threads]: MPI ranks exchange messages of random sizes and tags, expected and not, and check every
 * byte; then windows, and memory that was never touched or was discarded. Rank 0 prints "bytes: all right". With
 * kill rank 1 kills itself in the midst of the messages; with tell rank 0 prints
 * "bytes: amid" there, and before its first message "bytes: ready" and waits for a line; with threads four threads of each rank exchange some, too. */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BATCH = 64, LARGE = 1 << 20, AREA = 4 << 20 };

static int rank, ranks;

static void check(int right, const char *what, long i)
{
	if (right)
		return;
	fprintf(stderr, "rank %d: %s (%ld)\n", rank, what, i);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* mix is the finalizer of splitmix64, a generator of the public domain. */
static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Every rank knows each message of each batch. */
static uint64_t name(int from, int to, int batch, int i) { return mix(mix((uint64_t)from << 48 | (uint64_t)to << 32 | (uint64_t)batch) + i); }

static int size_of(uint64_t name)
{
	static const int most[] = { 0, 8, 64, 256, 1024, 4096, 16384, 40000, 65536, 1000, 200, 100, 50, 20, 10, 1 << 18 };
	return (int)((name >> 8) % (uint64_t)(most[name & 15] + 1));
}

static void pattern(unsigned char *b, int n, uint64_t name)
{
	for (int k = 0; k < n; k++)
		b[k] = (unsigned char)(name >> 8 * (k & 7)) + (unsigned char)(k >> 3);
}

static void same(const unsigned char *b, int n, uint64_t name)
{
	for (int k = 0; k < n; k++)
		check(b[k] == (unsigned char)((unsigned char)(name >> 8 * (k & 7)) + (unsigned char)(k >> 3)), "a byte is wrong", k);
}

/* exchange sends BATCH messages to each other rank. Half of the receives are posted before the messages are sent,
 * the others, in another order, after they have come. */
static void exchange(int batch)
{
	const int all = ranks * BATCH;
	MPI_Request *out = malloc(all * sizeof *out), *in = malloc(all * sizeof *in);
	unsigned char **sent = calloc(all, sizeof *sent), **got = calloc(all, sizeof *got);
	for (int k = 0; k < all; k++) {
		out[k] = in[k] = MPI_REQUEST_NULL;
		got[k] = malloc(size_of(name(k / BATCH, rank, batch, k % BATCH)) + 1);
	}
	for (int k = 0; k < all; k++)
		if (k % 2)
			MPI_Irecv(got[k], size_of(name(k / BATCH, rank, batch, k % BATCH)), MPI_BYTE, k / BATCH, k % BATCH, MPI_COMM_WORLD, &in[k]);
	if (batch % 2)
		MPI_Barrier(MPI_COMM_WORLD);
	for (int k = 0; k < all; k++) {
		const uint64_t m = name(rank, k / BATCH, batch, k % BATCH);
		const int n = size_of(m);
		pattern(sent[k] = malloc(n + 1), n, m);
		MPI_Isend(sent[k], n, MPI_BYTE, k / BATCH, k % BATCH, MPI_COMM_WORLD, &out[k]);
	}
	for (int k = all - 1; k >= 0; k--)
		if (!(k % 2))
			MPI_Irecv(got[k], size_of(name(k / BATCH, rank, batch, k % BATCH)), MPI_BYTE, k / BATCH, k % BATCH, MPI_COMM_WORLD, &in[k]);
	MPI_Waitall(all, in, MPI_STATUSES_IGNORE);
	MPI_Waitall(all, out, MPI_STATUSES_IGNORE);
	for (int k = 0; k < all; k++) {
		const uint64_t m = name(k / BATCH, rank, batch, k % BATCH);
		same(got[k], size_of(m), m);
		free(got[k]);
		free(sent[k]);
	}
	free(out);
	free(in);
	free(sent);
	free(got);
}

static void windows(void)
{
	uint64_t *base, mine = 1, old;
	MPI_Win w;
	const int to = (rank + 1) % ranks;
	MPI_Win_allocate(LARGE, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &w);
	unsigned char *data = malloc(LARGE / 2);
	base[0] = 0;
	MPI_Win_fence(0, w);
	for (int k = 0; k < 100; k++)
		MPI_Accumulate(&mine, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, MPI_SUM, w);
	pattern(data, LARGE / 2, rank + 1);
	MPI_Put(data, LARGE / 2, MPI_BYTE, to, LARGE / 2, LARGE / 2, MPI_BYTE, w);
	MPI_Win_fence(0, w);
	check(rank || base[0] == (uint64_t)100 * ranks, "the sum of MPI_Accumulate", (long)base[0]);
	same((unsigned char *)base + LARGE / 2, LARGE / 2, (rank + ranks - 1) % ranks + 1);
	memset(data, 0, LARGE / 2);
	MPI_Get(data, LARGE / 2, MPI_BYTE, to, LARGE / 2, LARGE / 2, MPI_BYTE, w);
	MPI_Win_fence(0, w);
	same(data, LARGE / 2, rank + 1);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w);
	MPI_Fetch_and_op(&mine, &old, MPI_UINT64_T, 0, 0, MPI_SUM, w);
	MPI_Win_unlock(0, w);
	check(old >= (uint64_t)100 * ranks && old < (uint64_t)101 * ranks, "the value of MPI_Fetch_and_op", (long)old);
	MPI_Win_free(&w);
	free(data);
}

/* absent sends and receives memory that the kernel has not brought in, and discards it in between. */
static void absent(void)
{
	unsigned char *in = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *out = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
	for (int k = 0; k < 4; k++) {
		if (k)
			pattern(out, AREA, 100 * k + rank);
		MPI_Sendrecv(out, AREA, MPI_BYTE, to, 1, in, AREA, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (k)
			same(in, AREA, 100 * k + from);
		else
			for (int i = 0; i < AREA; i++)
				check(!in[i], "a byte of memory that was never touched", i);
		madvise(in, AREA, MADV_DONTNEED);
		madvise(out, AREA, MADV_DONTNEED);
	}
	munmap(in, AREA);
	munmap(out, AREA);
}

/* thread exchanges messages with the thread of its number of the neighbours. */
static void *thread(void *arg)
{
	const int tag = *(const int *)arg, to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
	unsigned char *out = malloc(1 << 16), *in = malloc(1 << 16);
	for (int k = 0; k < 200; k++) {
		const uint64_t sent = name(rank, to, 1000 + k, tag), got = name(from, rank, 1000 + k, tag);
		const int n = (int)(sent >> 8 & 0xffff), m = (int)(got >> 8 & 0xffff);
		pattern(out, n, sent);
		MPI_Sendrecv(out, n, MPI_BYTE, to, tag, in, m, MPI_BYTE, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		same(in, m, got);
	}
	free(out);
	free(in);
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];
	int tags[4];
	for (int k = 0; k < 4; k++) {
		tags[k] = k;
		check(!pthread_create(&t[k], NULL, thread, &tags[k]), "pthread_create", k);
	}
	for (int k = 0; k < 4; k++)
		pthread_join(t[k], NULL);
}

/* probed: messages that are received by MPI_Mprobe, of the sizes for which ofi_rxm has its ways of sending. */
static void probed(void)
{
	static unsigned char in[300000], out[300000];
	const int sizes[] = { 0, 100, 16000, 20000, 100000, 200000, 300000 };
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		MPI_Request q;
		MPI_Message m;
		MPI_Status s;
		int n;
		pattern(out, sizes[i], 77 + i);
		MPI_Isend(out, sizes[i], MPI_BYTE, (rank + 1) % ranks, 77, MPI_COMM_WORLD, &q);
		MPI_Mprobe((rank + ranks - 1) % ranks, 77, MPI_COMM_WORLD, &m, &s);
		MPI_Get_count(&s, MPI_BYTE, &n);
		check(n == sizes[i], "size of a probed message", n);
		MPI_Mrecv(in, n, MPI_BYTE, &m, &s);
		same(in, n, 77 + i);
		MPI_Wait(&q, MPI_STATUS_IGNORE);
	}
}

static void say(const char *line)
{
	if (rank)
		return;
	puts(line);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const int messages = argc > 1 ? atoi(argv[1]) : 1000;
	const char *mode = argc > 2 ? argv[2] : "";
	const int kills = !strcmp(mode, "kill"), tells = !strcmp(mode, "tell"), threaded = !strcmp(mode, "threads");
	int level;
	MPI_Init_thread(&argc, &argv, threaded ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	const int batches = messages / (ranks * ranks * BATCH) + 1;
	if (tells) {
		say("bytes: ready");
		if (!rank)
			getchar();
	}
	for (int k = 0; k < batches; k++) {
		if (kills && rank == 1 && k == batches / 2)
			raise(SIGKILL);
		if (tells && k == batches / 2)
			say("bytes: amid");
		exchange(k);
	}
	windows();
	absent();
	probed();
	if (threaded) {
		check(level == MPI_THREAD_MULTIPLE, "MPI_THREAD_MULTIPLE", level);
		threads();
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (!rank)
		printf("bytes: all right\n");
	MPI_Finalize();
	return 0;
}
