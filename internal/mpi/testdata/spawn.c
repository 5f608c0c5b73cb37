/* spawn: ranks that start another one with MPI_Comm_spawn, and rank 0 exchanges a number with it. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int n = 42, rank;
	MPI_Comm other;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_get_parent(&other);
	if (other != MPI_COMM_NULL) {
		MPI_Recv(&n, 1, MPI_INT, 0, 1, other, MPI_STATUS_IGNORE);
		n++;
		MPI_Send(&n, 1, MPI_INT, 0, 2, other);
	} else {
		MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other, MPI_ERRCODES_IGNORE);
		if (!rank) {
			MPI_Send(&n, 1, MPI_INT, 0, 1, other);
			MPI_Recv(&n, 1, MPI_INT, 0, 2, other, MPI_STATUS_IGNORE);
			printf("spawn: %d\n", n);
		}
	}
	MPI_Comm_disconnect(&other);
	MPI_Finalize();
	return 0;
}
