// What the MPI rivals have in common: how long an operation takes when all ranks do it at the same time.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace rivals {

struct Timing {
  long rounds = 0;
  double seconds = 0;  // of one round, on this rank
};

// Repeats `operation` on all ranks for about `wanted` seconds, after two rounds that fault the pages in and tell how many
// rounds that is.
template <class Operation>
Timing time_together(double wanted, long least_rounds, Operation operation) {
  operation();
  const auto run = [&](long rounds) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (long round = 0; round < rounds; ++round) operation();
    return (MPI_Wtime() - begin) / double(rounds);
  };
  double trial = run(2);
  MPI_Allreduce(MPI_IN_PLACE, &trial, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  // A sum of ones stays exact in a float below 2^24, with eight ranks and more.
  const long rounds = std::clamp<long>(static_cast<long>(wanted / trial), least_rounds, 1'000'000);
  return {rounds + 3, run(rounds)};
}

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

}  // namespace rivals
