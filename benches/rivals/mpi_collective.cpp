// Collective MPI on one machine: what a synchronous step is made of.
//
//   mpirun -np 2 mpi_collective barrier|allreduce|step COUNT SECONDS
//
// allreduce: the gradients' sum, nothing else. step: that and plain SGD on each rank's own copy of the parameters.
// Prints one JSON object: seconds of one operation, the slowest rank's.
#include <cstring>
#include <vector>

#include "mpi_timing.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) rivals::fail("usage: mpi_collective barrier|allreduce|step COUNT SECONDS");
  const bool meets = std::strcmp(argv[1], "barrier") == 0, applies = std::strcmp(argv[1], "step") == 0;
  const auto count = std::atoi(argv[2]);
  if (count < 1 || (!meets && !applies && std::strcmp(argv[1], "allreduce") != 0))
    rivals::fail("mpi_collective: wrong arguments");
  int ranks = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);

  const auto size = std::size_t(count);
  std::vector<float> gradient(size, float(rank + 1)), sum(size, 0.0F), parameters(size, 0.0F);
  const float rate = 0.5F / float(ranks);
  const rivals::Timing timing = rivals::time_together(std::atof(argv[3]), 5, [&] {
    if (meets) {
      MPI_Barrier(MPI_COMM_WORLD);
      return;
    }
    MPI_Allreduce(gradient.data(), sum.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (!applies) return;
    float* __restrict to = parameters.data();
    const float* __restrict from = sum.data();
    for (std::size_t i = 0; i < size; ++i) to[i] -= rate * from[i];
  });
  const auto expected = float(ranks * (ranks + 1) / 2);
  if (!meets)
    for (const float value : sum)
      if (value != expected) rivals::fail("mpi_collective: a wrong sum");
  double slowest = 0;
  MPI_Reduce(&timing.seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("{\"seconds\": %.6g}\n", slowest);
  MPI_Finalize();
}
