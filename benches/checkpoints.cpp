// What a checkpoint costs those who train, and how fast it is written: a trainer's rate while a checkpoint is saved, against
// its rate beside a process that writes as many private bytes; and the bytes a second of both, and of dd.
//
//     checkpoints [--variables 256] [--mib 4] [--rounds 7] [--dir FOLDER]    Markdown; twice the model in /dev/shm, once
//                                                                            in memory
//
// The trainer has core 0, whoever writes core 1. Everything that is written is synced, and removed before the next.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "persistence/tensor_files.hpp"
#include "processes.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "report.hpp"
#include "shm/base/clock.hpp"
#include "trainer.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ps_shm;

struct Options : bench::Model {
  std::uint32_t rounds = 7;
  std::string dir;
  std::vector<double> computing = {0.9, 0.0};
  bool only_idle = false;
};

// A folder of this process in the one that was named; goes with all that is in it.
class Folder {
 public:
  explicit Folder(const std::string& in) : path_(fmt::format("{}/checkpoints-{}", in, getpid())) {
    fs::create_directories(path_);
  }
  ~Folder() { clear(); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const noexcept { return path_; }
  void clear() const noexcept {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  void make_empty() const {
    clear();
    fs::create_directories(path_);
    sync();
  }

 private:
  std::string path_;
};

// Which file system a path is on, as /proc/self/mounts has it.
std::string file_system_of(const std::string& path) {
  const std::string real = fs::canonical(path).string() + "/";
  std::ifstream mounts("/proc/self/mounts");
  std::string device, place, type, found = "unknown", line;
  std::size_t longest = 0;
  while (std::getline(mounts, line)) {
    std::istringstream(line) >> device >> place >> type;
    if (place.back() != '/') place += '/';
    if (real.starts_with(place) && place.size() >= longest) longest = place.size(), found = type + " on " + device;
  }
  return found;
}

// Private bytes that no cache holds, in pages of their own; not all zeros.
using Private = bench::PrivateFloats;

// The simplest that could write them: write(), XXH3, fsync.
void write_plainly(const std::string& path, const Private& from) {
  constexpr std::size_t kPiece = 256 << 10;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) throw std::runtime_error("cannot write " + path);
  XXH3_state_t* const hash = XXH3_createState();
  XXH3_64bits_reset(hash);
  const auto* const bytes = reinterpret_cast<const char*>(from.data());
  for (std::size_t at = 0, end = from.size() * sizeof(float); at < end; at += kPiece) {
    const std::size_t count = std::min(kPiece, end - at);
    XXH3_64bits_update(hash, bytes + at, count);
    if (::write(file, bytes + at, count) != static_cast<ssize_t>(count))
      throw std::runtime_error("cannot write " + path);
  }
  static_cast<void>(XXH3_64bits_digest(hash));
  XXH3_freeState(hash);
  if (::fsync(file) != 0) throw std::runtime_error("cannot sync " + path);
  ::close(file);
}

// As a checkpoint's file is written.
void write_as_save_does(const std::string& path, const Private& from, const Options& options) {
  std::vector<persistence::Tensor> tensors;
  for (std::uint32_t i = 0; i < options.variables; ++i)
    tensors.push_back(
        {.name = bench::variable_name(i),
         .dtype = DType::kFloat32,
         .shape = {options.elements()},
         .read = persistence::reader_of(std::as_bytes(std::span(from.data() + i * options.elements(), options.elements())))});
  persistence::write_safetensors(path, tensors, {});
}

void write_by_dd(const std::string& path, const Options& options) {
  const std::string command =
      fmt::format("exec dd if=/dev/zero of='{}' bs=4M count={} conv=fsync status=none", path, options.bytes() >> 22);
  if (const int status = std::system(command.c_str()); status != 0)
    throw std::runtime_error(fmt::format("dd ended with {}", status));
}

volatile std::sig_atomic_t was_stopped = 0;

enum Kind : std::size_t { kNobody, kSave, kSameWay, kPlain, kDd, kKinds };
constexpr std::array<const char*, kKinds> kNames = {"nobody", "Checkpoint::save", "private bytes, written as save does",
                                                    "private bytes, write(), XXH3, fsync()", "dd bs=4M conv=fsync"};

struct Measured {
  double seconds = 0;
  double pushes = 0, own = 0;  // a second; of the time that the trainer had its core
  double cpu = 0;              // seconds of a core, of who writes
};

// Ratios of the rounds; their median and range.
std::string ratio(const std::vector<Measured>& of, const std::vector<Measured>& to, double Measured::*what) {
  std::vector<double> all;
  for (std::size_t round = 0; round < of.size(); ++round)
    if (of[round].*what > 0 && to[round].*what > 0) all.push_back(of[round].*what / (to[round].*what));
  if (all.empty()) return "none";  // the trainer had no core
  return fmt::format("{:.3f} ({:.2f} to {:.2f})", bench::median_of(all), *std::min_element(all.begin(), all.end()),
                     *std::max_element(all.begin(), all.end()));
}

double median_of(const std::vector<Measured>& all, double Measured::*what) {
  std::vector<double> values;
  for (const Measured& one : all) values.push_back(one.*what);
  return bench::median_of(values);
}

// Seconds of a core that this process, and those that it has waited for, have had.
double cpu_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used = {};
    getrusage(who, &used);
    seconds += double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               1e-6 * double(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  }
  return seconds;
}

// Of the pushes from that number on. Between two ends of pushes, so that no fraction of a push counts.
Measured measured(const bench::PushLog& log, std::uint64_t before, double seconds, double cpu) {
  const std::uint64_t after = log.pushes;
  if (before == 0 || after <= before) return {seconds, 0, 0, cpu};
  const bench::Push &first = log.all[before - 1], &last = log.all[after - 1];
  const double pushes = double(after - before), ns = double(last.end - first.end);
  return {seconds, pushes / ns * 1e9, pushes / (ns - double(last.waited_ns - first.waited_ns)) * 1e9, cpu};
}

class Measurement {
 public:
  Measurement(const Options& options, const Folder& folder, const Private& from)
      : options_(options), folder_(folder), from_(from) {}

  // A trainer that computes for so much of its time trains meanwhile; none, below 0, does.
  void run(double computing) {
    bench::TrainedJob job(options_, 1);
    bench::SharedBytes logs(sizeof(bench::PushLog));
    bench::PushLog& log = *logs.as<bench::PushLog>();
    job.add_trainer(0, 0, log, std::max(computing, 0.0));
    job.pause(computing < 0);
    bench::pin_to(1);
    const JobView view(job.name());
    std::array<std::vector<Measured>, kKinds> all;
    std::array<std::size_t, kKinds> order;
    std::iota(order.begin(), order.end(), 0U);
    for (std::uint32_t round = 0; round <= options_.rounds; ++round) {  // the first one makes the reserves; not counted
      std::shuffle(order.begin(), order.end(), random_);
      for (const std::size_t kind : order) {
        folder_.make_empty();
        const double cpu = cpu_seconds();
        const std::uint64_t before = log.pushes, begin = shm::now_ns();
        write(static_cast<Kind>(kind), view);
        const double seconds = double(shm::now_ns() - begin) * 1e-9, used = cpu_seconds() - cpu;
        if (kind != kNobody) lasts_ = seconds;
        if (was_stopped) throw std::runtime_error("stopped");
        if (round != 0) all[kind].push_back(measured(log, before, seconds, used));
      }
    }
    print(computing, all);
  }

 private:
  void write(Kind kind, const JobView& view) {
    const std::string path = folder_.path() + "/file";
    if (kind == kNobody) usleep(static_cast<useconds_t>(std::min(lasts_, 3.0) * 1e6));
    if (kind == kSave) Checkpoint::save(view, folder_.path());
    if (kind == kSameWay) write_as_save_does(path, from_, options_);
    if (kind == kPlain) write_plainly(path, from_);
    if (kind == kDd) write_by_dd(path, options_);
  }

  void print(double computing, const std::array<std::vector<Measured>, kKinds>& all) const {
    const double megabytes = double(options_.bytes()) * 1e-6;
    if (computing < 0)
      fmt::print("\nNobody trains:\n\n| core 1 | MB/s | of dd | seconds of a core |\n|---|---:|---:|---:|\n");
    else
      fmt::print(
          "\nA trainer that computes for {:.0f} % of its time:\n\n"
          "| core 1 | pushes a second | of alone | save's, of this | the same, of its own time | MB/s | of dd "
          "|\n|---|---:|---:|---:|---:|---:|---:|\n",
          computing * 100);
    for (std::size_t kind = computing < 0 ? 1 : 0; kind < kKinds; ++kind) {
      fmt::print("| {} ", kNames[kind]);
      if (computing >= 0)
        fmt::print("| {:.0f} | {} | {} | {} ", median_of(all[kind], &Measured::pushes),
                   ratio(all[kind], all[kNobody], &Measured::pushes), ratio(all[kSave], all[kind], &Measured::pushes),
                   ratio(all[kSave], all[kind], &Measured::own));
      if (kind == kNobody)
        fmt::print("| | | |\n");
      else
        fmt::print("| {:.0f} | {} | {:.2f} |\n", megabytes / median_of(all[kind], &Measured::seconds),
                   ratio(all[kDd], all[kind], &Measured::seconds), median_of(all[kind], &Measured::cpu));
    }
    std::fflush(stdout);
  }

  const Options& options_;
  const Folder& folder_;
  const Private& from_;
  std::mt19937 random_{1};
  double lasts_ = 1;
};

std::string default_dir() {
  if (const char* const temporary = std::getenv("TMPDIR")) return temporary;
  return fs::is_directory("build") ? "build" : ".";
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.dir = default_dir();
  CLI::App app("What a checkpoint costs those who train, and how fast it is written.");
  app.add_option("--variables", options.variables)->check(CLI::Range(1, 10000));
  app.add_option("--mib", options.mib, "of a variable")->check(CLI::Range(4, 1024));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--computing", options.computing,
                 "shares of its time that a trainer computes for, one after the other")
      ->check(CLI::Range(0.0, 0.99));
  app.add_flag("--idle", options.only_idle, "measure only without a trainer");
  app.add_option("--dir", options.dir, "where files are written, in a folder that is removed");
  CLI11_PARSE(app, argc, argv);
  if (!bench::may_report("checkpoints")) return 1;
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int) { was_stopped = 1; });
  try {
    for (const auto& [key, value] : bench::environment("the trainer on core 0, who writes on core 1"))
      fmt::print("{}: {}\n", key, value);
    const Folder folder(options.dir);
    fmt::print("files: {}, {}\n", options.dir, file_system_of(folder.path()));
    fmt::print("{} variables of {} MiB, {} rounds: medians, ratios within a round (their range)\n", options.variables,
               options.mib, options.rounds);
    const Private from(options.variables * options.elements(), 1e-3F);
    Measurement measurement(options, folder, from);
    if (options.only_idle) options.computing.clear();
    for (const double computing : options.computing) measurement.run(computing);
    measurement.run(-1);
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoints: {}\n", error.what());
    return 1;
  }
  return 0;
}
