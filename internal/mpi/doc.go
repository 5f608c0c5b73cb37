// Package mpi tests the libfabric provider (libexanet/fi) under Debian's libfabric, Open MPI and
// LAMMPS, with a pfd of its own.
package mpi
