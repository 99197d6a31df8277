// One-sided MPI on one machine: all ranks add into (or read) one vector of floats in rank 0's window.
//
//   mpirun -np 2 mpi_window accumulate|get COUNT SECONDS [allocate|shared]
//
// Prints one JSON object: GB/s summed over the ranks, seconds of one operation, lost updates in per cent (of accumulate).
#include <cstring>
#include <string>
#include <vector>

#include "mpi_timing.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc < 4) rivals::fail("usage: mpi_window accumulate|get COUNT SECONDS [allocate|shared]");
  const bool adds = std::strcmp(argv[1], "accumulate") == 0;
  const auto count = std::atoi(argv[2]);
  const double wanted = std::atof(argv[3]);
  const bool is_shared = argc > 4 && std::strcmp(argv[4], "shared") == 0;
  if (count < 1 || (!adds && std::strcmp(argv[1], "get") != 0)) rivals::fail("mpi_window: wrong arguments");
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  float* target = nullptr;
  MPI_Win window;
  const MPI_Aint bytes = rank == 0 ? MPI_Aint(count) * MPI_Aint(sizeof(float)) : 0;
  if (is_shared)
    MPI_Win_allocate_shared(bytes, sizeof(float), MPI_INFO_NULL, MPI_COMM_WORLD, &target, &window);
  else
    MPI_Win_allocate(bytes, sizeof(float), MPI_INFO_NULL, MPI_COMM_WORLD, &target, &window);
  MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
  if (rank == 0) std::memset(target, 0, std::size_t(bytes));
  MPI_Win_sync(window);
  MPI_Barrier(MPI_COMM_WORLD);

  std::vector<float> own(std::size_t(count), adds ? 1.0F : -1.0F);
  const rivals::Timing timing = rivals::time_together(wanted, 3, [&] {
    if (adds)
      MPI_Accumulate(own.data(), count, MPI_FLOAT, 0, 0, count, MPI_FLOAT, MPI_SUM, window);
    else
      MPI_Get(own.data(), count, MPI_FLOAT, 0, 0, count, MPI_FLOAT, window);
    MPI_Win_flush(0, window);
  });
  double rate = double(count) * sizeof(float) * 1e-9 / timing.seconds, all = 0;
  MPI_Reduce(&rate, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);

  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_sync(window);
  if (!adds)
    for (const float value : own)
      if (value != 0.0F) rivals::fail("mpi_window: got what nobody wrote");
  if (rank == 0) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += double(target[i]);
    const double updates = double(count) * double(ranks) * double(timing.rounds);
    std::printf("{\"GB/s\": %.6g, \"seconds\": %.6g, \"lost_%%\": %.6g}\n", all, timing.seconds,
                adds ? 100 * (1 - sum / updates) : 0.0);
  }
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  MPI_Finalize();
}
