// hogwild: sparse examples by several processes on one table, in the ways that schemes.hpp names; a JSON object a line.
// benches/hogwild takes medians of it over rounds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <string>
#include <vector>

#include "../report.hpp"
#include "measure.hpp"

namespace {

using namespace ps_shm::bench;

// SCHEME[:WORKERS[:COMBINE]]
Configuration parse(const std::string& text) {
  std::vector<std::string> parts = CLI::detail::split(text, ':');
  Configuration configuration;
  const auto scheme = scheme_of(parts[0]);
  if (!scheme) throw CLI::ValidationError(text, "expected plain, exact, racy, striped or lock");
  configuration.scheme = *scheme;
  if (parts.size() > 3 || (parts.size() > 1 && !CLI::detail::lexical_cast(parts[1], configuration.workers)) ||
      (parts.size() > 2 && !CLI::detail::lexical_cast(parts[2], configuration.combine)) || configuration.workers < 1 ||
      configuration.workers > 256 || configuration.combine < 1)
    throw CLI::ValidationError(text, "expected SCHEME[:WORKERS[:COMBINE]], with 1 to 256 workers");
  if (*scheme == Scheme::kPlain && configuration.workers != 1)
    throw CLI::ValidationError(text, "plain is one worker alone");
  return configuration;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains on sparse examples in the given ways, one after the other; prints a JSON object a line.");
  Measuring measuring;
  std::string source = "zipf:1000000x100000x50x0.8", cache;
  std::vector<std::string> texts;
  bool pins = false;
  app.add_option("--data", source, "a LIBSVM file or ratings, or zipf:FEATURESxEXAMPLESxPER_ROWxEXPONENT")
      ->capture_default_str();
  app.add_option("--cache", cache, "folder for binary forms of files");
  app.add_option("--model", measuring.model, "logistic, svm, mf, fm; rows: pulls and pushes of rows alone")
      ->check(CLI::IsMember({"logistic", "svm", "mf", "fm", "rows"}))
      ->capture_default_str();
  app.add_option("--width", measuring.width, "of rows")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--factors", measuring.factors, "of mf and fm")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--stripes", measuring.stripes, "locks of striped")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--seconds", measuring.seconds, "of one measurement")
      ->check(CLI::Range(1e-3, 60.0))
      ->capture_default_str();
  app.add_option("--epochs", measuring.epochs, "after each of which the loss is taken")->check(CLI::Range(0, 1000));
  app.add_option("--batch", measuring.batch, "examples of a step")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--lr", measuring.lr)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--back-off", measuring.back_off, "what multiplies the rate with each epoch")
      ->check(CLI::Range(1e-3, 1.0))
      ->capture_default_str();
  app.add_option("--l2", measuring.l2)->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--seed", measuring.seed)->capture_default_str();
  app.add_flag("--pin", pins, "each process to a core of its own");
  app.add_option("RUN", texts, "SCHEME[:WORKERS[:COMBINE]]")->required();
  std::vector<Configuration> configurations;
  try {
    app.parse(argc, argv);
    for (const std::string& text : texts) configurations.push_back(parse(text));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!may_report("hogwild")) return 1;
  pin_processes(pins);
  end_at_signals();
  try {
    ps_shm::train::SparseSourceOptions reading;
    reading.cache = cache;
    const auto data = ps_shm::train::SparseData::read(source, reading);
    nlohmann::ordered_json head;
    for (const auto& [key, value] : environment(pins ? "each process on a core of its own" : "not pinned"))
      head["environment"][key] = value;
    head["data"] = {{"source", source},
                    {"examples", data.info().examples},
                    {"features", data.info().features},
                    {"nonzeros", data.info().nonzeros}};
    fmt::print("{}\n", head.dump());
    for (const Configuration& configuration : configurations) {
      fmt::print("{}\n", measure(configuration, measuring, data).dump());
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "hogwild: {}\n", error.what());
    return 1;
  }
  return 0;
}
