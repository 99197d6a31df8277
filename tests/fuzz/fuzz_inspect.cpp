// Any words as arguments of inspect_shm set and dump --slice: a change that can be made, a part of a variable, or an
// Error. The first byte chooses which; each further line is one argument.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "inspect_shm/inspect.hpp"
#include "inspect_shm/settings.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/worker.hpp"
#include "support/test_job.hpp"

namespace {

using namespace ps_shm;
using inspect::Json;

// Kept to the end of the process: an elastic job with a variable whose elements equal their indices.
struct Target {
  test::TestJob job{settings()};

  Target() {
    WorkerOptions options;
    options.job = job.name.text();
    Worker worker(options);
    worker.variable({.name = "w", .shape = {4, 3, 2}},
                    [](std::span<float> out) { std::iota(out.begin(), out.end(), 0.0F); });
  }
  static JobConfig settings() {
    JobConfig config;
    config.workers = config.elastic_min = 2;
    config.elastic_max = 8;
    return config;
  }
};

// A setting is shown in the form in which it can be set again.
void change(const std::string& job, const std::vector<std::string>& words) {
  static_cast<void>(inspect::change_settings(job, {}, words));
  const Json shown = inspect::live_json(JobControl(job).current());
  std::vector<std::string> again;
  for (const auto& [key, value] : shown.items()) {
    std::string name = key;
    for (char& letter : name)
      if (letter == '_') letter = '-';
    again.push_back(name + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  if (!inspect::change_settings(job, {}, again)["changed"].empty()) abort();
}

// A part has the elements of its shape, in their order in memory.
void take_part(const std::string& job, const std::string& slice) {
  const Json part = inspect::dump_values(job, {{"w"}, slice, 0})["variables"][0];
  std::uint64_t count = 1;
  for (const Json& extent : part["shape"]) count *= extent.get<std::uint64_t>();
  if (part["values"].size() != count || part["element_count"] != count) abort();
  double last = -1;
  for (const Json& value : part["values"]) {
    if (!(value.get<double>() > last && value.get<double>() < 24)) abort();
    last = value.get<double>();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Target target;
  if (size == 0 || size > 1024) return 0;
  std::vector<std::string> words(1);
  for (std::size_t i = 1; i < size; ++i)
    if (data[i] == '\n')
      words.emplace_back();
    else
      words.back() += static_cast<char>(data[i]);
  try {
    if (data[0] % 2 == 0)
      change(target.job.name.text(), words);
    else
      for (const std::string& slice : words) take_part(target.job.name.text(), slice);
  } catch (const Error&) {
  }
  return 0;
}
