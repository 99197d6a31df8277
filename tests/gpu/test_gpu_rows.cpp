// GpuRows on the tables of tables.hpp: the cases of gpu_rows_cases.hpp.
#include "gpu/tables.hpp"
#include "support/gpu_rows_cases.hpp"
#include "support/stress.hpp"

namespace {

ps_shm::test::GpuBox on_tables() { return {ps_shm::test::cuda(), ps_shm::test::kernels()}; }

}  // namespace

TEST_CASE("gpu rows: a pull gives the same bits as the CPU's, whatever the rule, width and partition") {
  ps_shm::test::pulls_rows_as_the_processor_does(on_tables());
}

TEST_CASE("gpu rows: pushes give the same bits as the CPU's, whatever the rule, width and partition") {
  ps_shm::test::pushes_rows_as_the_processor_does(on_tables());
}

TEST_CASE("gpu rows: rows that occur in many gradients get all of them") {
  ps_shm::test::sums_frequent_rows_exactly(on_tables());
}

TEST_CASE("gpu rows: a limit on the norm applies to the whole push") {
  ps_shm::test::clips_by_the_norm_of_all(on_tables());
}

TEST_CASE("gpu rows: nonexistent rows are an error before anything is applied, and the next call works") {
  ps_shm::test::refuses_rows_that_there_are_not(on_tables());
}

TEST_CASE("gpu rows: no update of two GPU workers and a processor is lost") {
  ps_shm::test::loses_no_update(on_tables(), static_cast<int>(ps_shm::test::stress_rounds(100)));
}
