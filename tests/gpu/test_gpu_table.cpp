// GpuTable on the tables of tables.hpp: the cases of gpu_table_cases.hpp.
#include "gpu/tables.hpp"
#include "support/gpu_table_cases.hpp"
#include "support/stress.hpp"

namespace {

ps_shm::test::GpuBox on_tables() { return {ps_shm::test::cuda(), ps_shm::test::kernels()}; }

}  // namespace

TEST_CASE("gpu table: a pull gives the same bits as the CPU's, whatever the rule, width and number of parts") {
  ps_shm::test::pulls_keys_as_the_processor_does(on_tables());
}

TEST_CASE("gpu table: pushes give the same bits as the CPU's, whatever the rule and number of parts") {
  ps_shm::test::pushes_keys_as_the_processor_does(on_tables());
}

TEST_CASE("gpu table: rows that are made while the GPU uses the table are pulled") {
  ps_shm::test::follows_a_table_that_grows(on_tables());
}

TEST_CASE("gpu table: no pull has an element of another key, while rows are evicted and made") {
  ps_shm::test::pulls_no_row_of_another_key(on_tables(), static_cast<int>(ps_shm::test::stress_rounds(50)));
}
