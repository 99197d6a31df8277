// Any words as the command line of each program, and any text as a schedule, number, time or size: valid settings, or a
// refusal. The first byte chooses the program; each further line is one argument.
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "config/interval.hpp"
#include "config/job_settings.hpp"
#include "config/values.hpp"
#include "launch_shm/child_arguments.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/schedule.hpp"

namespace {

using namespace ps_shm;

template <class Read>
void read(Read&& read_text) {
  try {
    static_cast<void>(read_text());
  } catch (const Error&) {
  }
}

template <class Settings>
bool accepts(std::vector<std::string>& words, Settings& settings) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return !tools::parse(static_cast<int>(words.size()), arguments.data(), settings);
}

// The arguments that a launcher passes on are read with the intended meaning.
void pass_on(const tools::LaunchSettings& settings) {
  std::vector<std::string> words = tools::ps_arguments(settings.ps);
  words.insert(words.begin(), "ps_shm");
  tools::PsSettings read_again;
  if (!accepts(words, read_again) || read_again != settings.ps) abort();
  const JobConfig job = config::resolved(settings.ps.job);
  JobConfig stored = config::decode(config::encode(job));
  stored.job = job.job, stored.group = job.group;
  if (stored != job) abort();
  if (!settings.program.empty()) return;  // its workers do not run worker_shm
  for (const std::uint32_t rank : {0U, 1U}) {
    const tools::WorkerSettings meant = tools::worker_settings(settings, rank, true);
    words = tools::worker_arguments(meant);
    words.insert(words.begin(), "worker_shm");
    tools::WorkerSettings worker;
    if (!accepts(words, worker) || worker != meant) abort();
  }
  if (!settings.evaluate_every.is_given()) return;
  const tools::WorkerSettings meant = tools::evaluator_settings(settings);
  words = tools::worker_arguments(meant);
  words.insert(words.begin(), "worker_shm");
  tools::WorkerSettings evaluator;
  if (!accepts(words, evaluator) || evaluator != meant) abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, STDOUT_FILENO);  // --help
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 4096) return 0;
  std::vector<std::string> words = {"program"};
  std::string word;
  for (std::size_t i = 1; i <= size; ++i) {
    if (i != size && data[i] != '\n' && data[i] != 0) {
      word += static_cast<char>(data[i]);
      continue;
    }
    read([&] { return Schedule::parse(Schedule::parse(word).to_string()).factor(1000); });
    read([&] { return config::read_whole(word, 1, 100); });
    read([&] { return config::read_real(word); });
    read([&] { return config::read_seconds(word); });
    read([&] { return config::read_bytes(word); });
    read([&] {
      const config::Interval interval = config::read_interval(word);
      if (!(config::read_interval(config::to_string(interval)) == interval)) abort();
      return interval;
    });
    words.push_back(std::move(word));
    word.clear();
  }
  tools::PsSettings ps;
  tools::WorkerSettings worker;
  tools::LaunchSettings launch;
  switch (data[0] % 3) {
    case 0:
      accepts(words, ps);
      break;
    case 1:
      accepts(words, worker);
      break;
    default:
      if (accepts(words, launch)) pass_on(launch);
  }
  return 0;
}
