/* long MODE [NUMBER]: what `make mpi` does besides bytes.c, a mode at a time. In each, every byte is checked, and rank
 * 0 prints "long: all right" at the end.
 * messages N    N messages of random sizes, tags and order; a third of them is received by MPI_Mprobe
 * alltoallv N   MPI_Alltoallv N times, between memory that was never touched or was discarded; then windows
 * threads N     four threads a rank call MPI, N times each
 * sleep N       rank 0 sends N messages to the others, which sleep for a second first
 * memory MIB    two buffers of MIB, written and exchanged a MiB at a time in three rounds
 * unmapped      rank 1 unmaps the end of a buffer once its first byte has arrived
 * readonly      rank 1 receives into memory that may not be written */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 64, BLOCK = 1 << 17, THREADS = 4, HUGE = 256 << 20 };

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

static uint64_t name(int from, int to, int batch, int i) { return mix(mix((uint64_t)from << 48 | (uint64_t)to << 32 | (uint64_t)batch) + i); }

/* Most messages are small, some need a rendezvous. */
static int size_of(uint64_t name)
{
	static const int most[] = { 0, 8, 64, 256, 1024, 4096, 16384, 40000, 1000, 200, 100, 50, 20, 10, 48, 70000 };
	return (int)((name >> 8) % (uint64_t)(most[name & 15] + 1));
}

static int tag_of(uint64_t name, int i) { return (int)(name >> 48 & 0xff) << 8 | i; }

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

static unsigned char *map(size_t n, int protection)
{
	void *b = mmap(NULL, n, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(b != MAP_FAILED, "mmap", (long)n);
	return b;
}

/* shuffled returns 0..n-1 in an order that seed determines. */
static int *shuffled(int n, uint64_t seed)
{
	int *order = malloc(n * sizeof *order);
	for (int k = 0; k < n; k++) {
		const int j = (int)(mix(seed + k) % (uint64_t)(k + 1));
		order[k] = order[j];
		order[j] = k;
	}
	return order;
}

static void batch_of_messages(int batch)
{
	const int all = ranks * BATCH;
	int *sends = shuffled(all, name(rank, 1, batch, -1)), *receives = shuffled(all, name(rank, 2, batch, -2));
	MPI_Request *out = malloc(all * sizeof *out), *in = malloc(all * sizeof *in);
	unsigned char **sent = calloc(all, sizeof *sent), **got = calloc(all, sizeof *got);
	for (int k = 0; k < all; k++) {
		const int i = receives[k], from = i / BATCH;
		const uint64_t m = name(from, rank, batch, i % BATCH);
		in[k] = MPI_REQUEST_NULL;
		got[i] = malloc(size_of(m) + 1);
		if (i % 3)
			MPI_Irecv(got[i], size_of(m), MPI_BYTE, from, tag_of(m, i % BATCH), MPI_COMM_WORLD, &in[k]);
	}
	for (int k = 0; k < all; k++) {
		const int i = sends[k], to = i / BATCH;
		const uint64_t m = name(rank, to, batch, i % BATCH);
		pattern(sent[i] = malloc(size_of(m) + 1), size_of(m), m);
		MPI_Isend(sent[i], size_of(m), MPI_BYTE, to, tag_of(m, i % BATCH), MPI_COMM_WORLD, &out[k]);
	}
	for (int k = 0; k < all; k++) {
		const int i = receives[k], from = i / BATCH;
		const uint64_t m = name(from, rank, batch, i % BATCH);
		if (i % 3)
			continue;
		MPI_Message message;
		MPI_Status status;
		int n;
		MPI_Mprobe(from, tag_of(m, i % BATCH), MPI_COMM_WORLD, &message, &status);
		MPI_Get_count(&status, MPI_BYTE, &n);
		check(n == size_of(m), "the size that MPI_Mprobe found", n);
		MPI_Imrecv(got[i], n, MPI_BYTE, &message, &in[k]);
	}
	MPI_Waitall(all, in, MPI_STATUSES_IGNORE);
	MPI_Waitall(all, out, MPI_STATUSES_IGNORE);
	for (int i = 0; i < all; i++) {
		const uint64_t m = name(i / BATCH, rank, batch, i % BATCH);
		same(got[i], size_of(m), m);
		free(got[i]);
		free(sent[i]);
	}
	free(sends);
	free(receives);
	free(in);
	free(out);
	free(sent);
	free(got);
}

static void messages(int n)
{
	for (int k = 0; k <= n / (ranks * ranks * BATCH); k++)
		batch_of_messages(k);
}

/* What rank from sends to rank to in a round has between 0 and BLOCK bytes, and begins anywhere in a page. */
static int part(int from, int to, int round) { return (int)(name(from, to, round, 0) % (BLOCK + 1)); }

static void alltoallv(int rounds)
{
	unsigned char *out = map((size_t)ranks * BLOCK, PROT_READ | PROT_WRITE), *in = map((size_t)ranks * BLOCK, PROT_READ | PROT_WRITE);
	int *sizes = malloc(4 * ranks * sizeof *sizes), *to = sizes + ranks, *got = to + ranks, *from = got + ranks;
	for (int round = 0; round < rounds; round++) {
		for (int k = 0, s = 0, r = 0; k < ranks; k++) {
			to[k] = s;
			from[k] = r;
			s += sizes[k] = part(rank, k, round);
			r += got[k] = part(k, rank, round);
			if (round % 2) /* in the others `out` is absent, and reads as zeros */
				pattern(out + to[k], sizes[k], name(rank, k, round, 1));
		}
		MPI_Alltoallv(out, sizes, to, MPI_BYTE, in, got, from, MPI_BYTE, MPI_COMM_WORLD);
		for (int k = 0; k < ranks; k++) {
			if (round % 2)
				same(in + from[k], got[k], name(k, rank, round, 1));
			else
				for (int i = 0; i < got[k]; i++)
					check(!in[from[k] + i], "a byte of memory that was never touched", i);
		}
		madvise(out, (size_t)ranks * BLOCK, MADV_DONTNEED);
		madvise(in, (size_t)ranks * BLOCK, MADV_DONTNEED);
	}
	uint64_t one = 1, old, sum = 0, last;
	MPI_Win w;
	MPI_Win_create(in, (size_t)ranks * BLOCK, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w);
	MPI_Win_lock_all(0, w);
	for (int k = 0; k < ranks; k++) { /* each rank writes its block of each other's window */
		pattern(out + k * BLOCK, BLOCK / 2, name(rank, k, -1, 2));
		MPI_Put(out + k * BLOCK, BLOCK / 2, MPI_BYTE, k, rank * BLOCK + BLOCK / 2, BLOCK / 2, MPI_BYTE, w);
	}
	MPI_Win_flush_all(w);
	for (int k = 0; k < rounds; k++) {
		MPI_Fetch_and_op(&one, &old, MPI_UINT64_T, k % ranks, 0, MPI_SUM, w);
		MPI_Win_flush(k % ranks, w);
		check(old < (uint64_t)rounds * ranks, "the value of MPI_Fetch_and_op", (long)old);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	for (int k = 0; k < ranks; k++) {
		same(in + k * BLOCK + BLOCK / 2, BLOCK / 2, name(k, rank, -1, 2));
		MPI_Get(&last, 8, MPI_BYTE, k, 0, 8, MPI_BYTE, w);
		MPI_Get(out + k * BLOCK, BLOCK / 2, MPI_BYTE, k, rank * BLOCK + BLOCK / 2, BLOCK / 2, MPI_BYTE, w);
		MPI_Win_flush(k, w);
		sum += last;
		same(out + k * BLOCK, BLOCK / 2, name(rank, k, -1, 2));
	}
	check(sum == (uint64_t)rounds * ranks, "the sum of MPI_Fetch_and_op", (long)sum);
	MPI_Win_unlock_all(w);
	MPI_Win_free(&w);
	free(sizes);
}

static int times;

static void *thread(void *number)
{
	const int t = (int)(intptr_t)number;
	for (int k = 0; k < times; k++)
		for (int i = 1; i < ranks; i++) {
			const int to = (rank + i) % ranks, from = (rank + ranks - i) % ranks;
			const uint64_t mine = name(rank, to, k, t), yours = name(from, rank, k, t);
			unsigned char *out = malloc(size_of(mine) + 1), *in = malloc(size_of(yours) + 1);
			MPI_Request requests[2];
			pattern(out, size_of(mine), mine);
			MPI_Isend(out, size_of(mine), MPI_BYTE, to, t, MPI_COMM_WORLD, &requests[0]);
			MPI_Irecv(in, size_of(yours), MPI_BYTE, from, t, MPI_COMM_WORLD, &requests[1]);
			MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
			same(in, size_of(yours), yours);
			free(out);
			free(in);
		}
	return NULL;
}

static void threads(int n)
{
	pthread_t all[THREADS];
	times = n;
	for (int t = 0; t < THREADS; t++)
		pthread_create(&all[t], NULL, thread, (void *)(intptr_t)t);
	for (int t = 0; t < THREADS; t++)
		pthread_join(all[t], NULL);
}

static void sleeper(int n)
{
	MPI_Request *requests = malloc(n * sizeof *requests);
	unsigned char **b = calloc(n, sizeof *b);
	if (rank)
		sleep(1);
	for (int to = 1; to < ranks; to++) {
		if (rank && rank != to)
			continue;
		for (int k = 0; k < n; k++) {
			const uint64_t m = name(0, to, k, 3);
			b[k] = malloc(size_of(m) + 1);
			if (rank) {
				MPI_Recv(b[k], size_of(m), MPI_BYTE, 0, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				same(b[k], size_of(m), m);
				free(b[k]);
				continue;
			}
			pattern(b[k], size_of(m), m);
			MPI_Isend(b[k], size_of(m), MPI_BYTE, to, k, MPI_COMM_WORLD, &requests[k]);
		}
		if (rank)
			continue;
		MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
		for (int k = 0; k < n; k++)
			free(b[k]);
	}
	free(b);
	free(requests);
}

static void memory(int mib)
{
	enum { PIECE = 1 << 20 };
	unsigned char *out = map((size_t)mib << 20, PROT_READ | PROT_WRITE), *in = map((size_t)mib << 20, PROT_READ | PROT_WRITE);
	const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
	for (int round = 0; round < 3; round++) {
		for (int k = 0; k < mib; k++)
			pattern(out + (size_t)k * PIECE, PIECE, name(rank, to, round, k));
		for (int k = 0; k < mib; k++)
			MPI_Sendrecv(out + (size_t)k * PIECE, PIECE, MPI_BYTE, to, k, in + (size_t)k * PIECE, PIECE, MPI_BYTE, from, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int k = 0; k < mib; k++)
			same(in + (size_t)k * PIECE, PIECE, name(from, rank, round, k));
	}
}

static void *unmapper(void *b)
{
	while (!*(volatile unsigned char *)b)
		;
	check(!munmap((char *)b + HUGE / 2, HUGE / 2), "munmap", 0);
	return NULL;
}

/* refused receives into memory that ends, or that may not be written: MPI_Recv fails, and the job ends with 3. */
static void refused(int protection)
{
	pthread_t t;
	if (rank == 0) {
		unsigned char *b = map(HUGE, PROT_READ | PROT_WRITE);
		memset(b, 1, HUGE);
		MPI_Send(b, HUGE, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
	} else if (rank == 1) {
		unsigned char *b = map(HUGE, protection);
		if (protection & PROT_WRITE)
			pthread_create(&t, NULL, unmapper, b);
		MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
		if (MPI_Recv(b, HUGE, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) != MPI_SUCCESS)
			MPI_Abort(MPI_COMM_WORLD, 3);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int level;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
	const char *mode = argc > 1 ? argv[1] : "";
	const int n = argc > 2 ? atoi(argv[2]) : 0;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	check(level == MPI_THREAD_MULTIPLE, "the level of threads", level);
	if (!strcmp(mode, "messages"))
		messages(n);
	else if (!strcmp(mode, "alltoallv"))
		alltoallv(n);
	else if (!strcmp(mode, "threads"))
		threads(n);
	else if (!strcmp(mode, "sleep"))
		sleeper(n);
	else if (!strcmp(mode, "memory"))
		memory(n);
	else if (!strcmp(mode, "unmapped"))
		refused(PROT_READ | PROT_WRITE);
	else if (!strcmp(mode, "readonly"))
		refused(PROT_READ);
	else
		check(0, "no such mode", 0);
	MPI_Barrier(MPI_COMM_WORLD);
	if (!rank)
		printf("long: all right\n");
	MPI_Finalize();
	return 0;
}
