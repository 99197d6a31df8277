// GpuRows on the tables of tables.hpp: what gpu_rows_cases.hpp says.
#include "gpu/tables.hpp"
#include "support/gpu_rows_cases.hpp"
#include "support/stress.hpp"

namespace {

ps_shm::test::GpuBox on_tables() { return {ps_shm::test::cuda(), ps_shm::test::kernels()}; }

}  // namespace

TEST_CASE("gpu rows: a pull brings the bits that the processor pulls, whatever rule, width and partition") {
  ps_shm::test::pulls_rows_as_the_processor_does(on_tables());
}

TEST_CASE("gpu rows: pushes give the bits of the processor's, whatever rule, width and partition") {
  ps_shm::test::pushes_rows_as_the_processor_does(on_tables());
}

TEST_CASE("gpu rows: rows that many gradients meet in get all of them") {
  ps_shm::test::sums_frequent_rows_exactly(on_tables());
}

TEST_CASE("gpu rows: a limit on the norm is one of the whole push") {
  ps_shm::test::clips_by_the_norm_of_all(on_tables());
}

TEST_CASE(
    "gpu rows: rows that there are not are an error before anything is applied, and the next call is none the worse") {
  ps_shm::test::refuses_rows_that_there_are_not(on_tables());
}

TEST_CASE("gpu rows: no update of two GPU workers and a processor is lost") {
  ps_shm::test::loses_no_update(on_tables(), static_cast<int>(ps_shm::test::stress_rounds(100)));
}
