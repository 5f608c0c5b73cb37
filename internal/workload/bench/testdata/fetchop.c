// fetchop N makes rank 0 add to a word of rank 1 by MPI_Fetch_and_op, N times, and prints the nanoseconds of each.
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1, rank;
	uint64_t one = 1, old, *word;
	MPI_Win win;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Win_allocate(sizeof *word, sizeof *word, MPI_INFO_NULL, MPI_COMM_WORLD, &word, &win);
	*word = 0;
	MPI_Win_lock_all(0, win);
	MPI_Win_sync(win);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = -16; rank == 0 && i < n; i++) { // the first ones make connections
		int64_t start = now();
		MPI_Fetch_and_op(&one, &old, MPI_UINT64_T, 1, 0, MPI_SUM, win);
		MPI_Win_flush(1, win);
		if (old != (uint64_t)(i + 16)) {
			fprintf(stderr, "addition %d found %" PRIu64 "\n", i + 16, old);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
		if (i >= 0)
			printf("%" PRId64 "\n", now() - start);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_unlock_all(win);
	MPI_Win_free(&win);
	return MPI_Finalize();
}
