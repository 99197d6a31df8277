// One program's command line over CLI11: options that are checked as they are read, and looked for in the environment.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "options.hpp"
#include "ps/errors.hpp"

namespace CLI {
class App;
}

namespace ps::tools {

inline constexpr auto kAny = std::numeric_limits<std::uint64_t>::max();

// These throw Error where `text` is none, or out of range.
std::uint64_t read_whole(const std::string& text, std::uint64_t least, std::uint64_t most);
double read_real(const std::string& text);
double read_seconds(const std::string& text);       // 5ms, 100us, 2s or plain seconds
std::uint64_t read_bytes(const std::string& text);  // 4MiB, 64KiB, 1GiB or plain bytes

// A learning-rate schedule may be in epochs, also behind a warm-up: epoch:DECAY is step:DECAY:STEPS with an epoch's steps.
bool is_epoch_schedule(const std::string& text);
Schedule resolve_schedule(const std::string& text, std::uint64_t steps_per_epoch);

// CLI11 is behind a pointer: its header takes the compiler seconds in each file that includes it.
class CommandLine {
 public:
  CommandLine(const char* program, const char* purpose);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // `use` throws Error where it cannot use the text; of an option that is given twice it gets the last.
  void add(const std::string& name, const std::string& type, const std::string& what,
           const std::function<void(const std::string&)>& use);
  // Of one that is given twice it gets all, with commas in between.
  void add_joined(const std::string& name, const std::string& type, const std::string& what,
                  const std::function<void(const std::string&)>& use);

  template <class Whole>
  void add_whole(const std::string& name, Whole& value, std::uint64_t least, std::uint64_t most,
                 const std::string& what) {
    add(name, "N", what, [=, &value](const std::string& text) {
      if constexpr (std::is_integral_v<Whole>)
        value = static_cast<Whole>(read_whole(text, least, most));
      else
        value = static_cast<typename Whole::value_type>(read_whole(text, least, most));
    });
  }

  void add_seconds(const std::string& name, double& value, const std::string& what) {
    add(name, "TIME", what, [&value](const std::string& text) { value = read_seconds(text); });
  }

  template <class Value>
  void add_choice(const std::string& name, Value& value, const std::string& what,
                  const std::vector<std::pair<std::string, Value>>& choices) {
    std::string words;
    for (const auto& choice : choices) words += (words.empty() ? "" : "|") + choice.first;
    add(name, words, what, [=, &value](const std::string& text) {
      for (const auto& [word, chosen] : choices)
        if (word == text) {
          value = chosen;
          return;
        }
      throw Error(fmt::format("unknown {} '{}'; expected {}", name.substr(2), text, words));
    });
  }

  void add_flag(const std::string& name, bool& value, const std::string& what);

  void add_job_name(std::string& job, const std::string& what) {
    add("--job", "NAME", what, [&job](const std::string& text) {
      check_job_name(text);
      job = text;
    });
  }

  // At least 0; a share is less than 1.
  template <class Real>
  void add_real(const std::string& name, Real& value, const std::string& what, bool is_share = false) {
    add(name, "X", what, [=, &value](const std::string& text) {
      const double read = read_real(text);
      if (read < 0 || (is_share && read >= 1))
        throw Error(is_share ? "must be at least 0 and less than 1" : "must be at least 0");
      value = static_cast<float>(read);
    });
  }

  // Options of a ps, of an optimizer, and of what workers do (job_options.cpp).
  void add_job(PsSettings& settings);
  void add_optimizer(Optimizer& optimizer);
  void add_training(TrainingSettings& settings);
  void add_sparse(SparseSettings& settings);  // sparse_options.cpp

  // Whether the option was given, here or in the environment. Requires: parsed.
  bool was_given(const std::string& name) const;

  // The learning-rate schedule, where it is in epochs; else empty.
  const std::string& epoch_schedule() const { return epoch_schedule_; }

  std::optional<int> parse(int argc, char** argv, const std::function<void()>& check);

 private:
  static std::string variable(const std::string& option);

  const char* program_;
  std::unique_ptr<CLI::App> app_;
  std::string epoch_schedule_;
};

}  // namespace ps::tools
