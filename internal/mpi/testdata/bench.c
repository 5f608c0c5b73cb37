/* bench fresh ROUNDS, 2 ranks: prints the medians of the first and the second message of 1 MiB into a fresh buffer, us.
 * bench pingpong ROUNDS SIZE, 2 ranks: prints half the median time of a message and its answer, both of SIZE bytes, us.
 * bench resident ROUNDS: MPI_Alltoall over fresh buffers, whose pages are returned after their use; prints the most
 * bytes that all ranks together have had resident beyond those at the start, and the bytes that all buffers had. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SIZE = 1 << 20, ROUNDS = 1000 };

static unsigned char *fresh(void)
{
	unsigned char *b = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED)
		MPI_Abort(MPI_COMM_WORLD, 1);
	return b;
}

static int less(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void first_and_second(int rank, int rounds)
{
	static double took[2][ROUNDS];
	unsigned char *from = fresh(), answer = 0;
	memset(from, 1, SIZE);
	for (int k = 0; k < rounds; k++) {
		unsigned char *to = fresh();
		for (int second = 0; second < 2; second++) {
			from[SIZE - 1] = (unsigned char)(2 * k + second);
			MPI_Barrier(MPI_COMM_WORLD);
			const double began = MPI_Wtime();
			if (rank) {
				MPI_Recv(to, SIZE, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				if (to[0] != 1 || to[SIZE - 1] != (unsigned char)(2 * k + second))
					MPI_Abort(MPI_COMM_WORLD, 1);
				MPI_Send(&answer, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
			} else {
				MPI_Send(from, SIZE, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
				MPI_Recv(&answer, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			}
			took[second][k] = (MPI_Wtime() - began) * 1e6;
		}
		munmap(to, SIZE);
	}
	for (int second = 0; second < 2; second++)
		qsort(took[second], rounds, sizeof(double), less);
	if (!rank)
		printf("bench %.1f %.1f\n", took[0][rounds / 2], took[1][rounds / 2]);
}

static void pingpong(int rank, int rounds, int size)
{
	static double took[ROUNDS];
	unsigned char *b = malloc(size);
	memset(b, 1, size);
	for (int k = -10; k < rounds; k++) {	/* the first are a warm-up */
		const double began = MPI_Wtime();
		if (!rank)
			MPI_Send(b, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(b, size, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank)
			MPI_Send(b, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
		if (k >= 0)
			took[k] = (MPI_Wtime() - began) * 5e5;
	}
	free(b);
	qsort(took, rounds, sizeof(double), less);
	if (!rank)
		printf("bench %.1f\n", took[rounds / 2]);
}

/* status returns bytes of this process by its name in proc_pid_status(5). */
static long status(const char *name)
{
	char line[256];
	long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, name, strlen(name)))
			kib = atol(line + strlen(name) + 1);
	if (f)
		fclose(f);
	return kib << 10;
}

static void resident(int ranks, int rounds)
{
	long own[2] = { 0, 0 }, all[2];
	for (int k = -1; k < rounds; k++) {	/* the first is a warm-up */
		unsigned char *out = fresh(), *in = fresh();
		const long before = status("VmRSS:");
		static long at_start;
		if (!k)
			at_start = before;
		memset(out, k, SIZE);
		MPI_Alltoall(out, SIZE / ranks, MPI_BYTE, in, SIZE / ranks, MPI_BYTE, MPI_COMM_WORLD);
		for (int i = 0; i < SIZE; i++)
			if (in[i] != (unsigned char)k)
				MPI_Abort(MPI_COMM_WORLD, 1);
		if (k >= 0 && status("VmRSS:") - at_start > own[0])
			own[0] = status("VmRSS:") - at_start;
		if (status("VmPin:") || status("VmLck:"))
			MPI_Abort(MPI_COMM_WORLD, 1);
		madvise(out, SIZE, MADV_DONTNEED);	/* the addresses stay: a cache would keep their registration */
		madvise(in, SIZE, MADV_DONTNEED);
	}
	own[1] = 2l * rounds * SIZE;
	MPI_Reduce(own, all, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (!rank)
		printf("bench %ld %ld\n", all[0], all[1]);
}

int main(int argc, char **argv)
{
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	const int rounds = argc >= 3 ? atoi(argv[2]) : 0, size = argc == 4 ? atoi(argv[3]) : SIZE;
	if (rounds < 1 || rounds > ROUNDS || size < 1 || size > SIZE)
		return 2;
	if (!strcmp(argv[1], "fresh"))
		first_and_second(rank, rounds);
	else if (!strcmp(argv[1], "pingpong"))
		pingpong(rank, rounds, size);
	else
		resident(ranks, rounds);
	MPI_Finalize();
	return 0;
}
