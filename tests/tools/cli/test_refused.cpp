// Command lines that are refused: refused.txt, each read by the parser of its program in this process.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cli/options.hpp"
#include "support/environment.hpp"

using namespace ps_shm;
using test::EnvironmentVariable;

namespace {

struct Refused {
  std::string line;
  std::vector<std::string> words, others;  // that the message contains, and does not
};

std::vector<Refused> read_refused() {
  const char* source = std::getenv("PS_SHM_SOURCE");
  std::ifstream file(std::string(source != nullptr ? source : ".") + "/tests/tools/cli/refused.txt");
  REQUIRE(file);
  std::vector<Refused> all;
  for (std::string line; std::getline(file, line);) {
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == line.npos || line[begin] == '#') continue;
    if (begin == 0)
      all.push_back({line, {}, {}});
    else if (line[begin] == '!')
      all.back().others.push_back(line.substr(begin + 1));
    else
      all.back().words.push_back(line.substr(begin));
  }
  return all;
}

// At blanks that are not between single quotes.
std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> words;
  bool is_quoted = false, is_open = false;
  for (const char c : line) {
    if (c == '\'') is_quoted = !is_quoted;
    if (c == ' ' && !is_quoted) {
      is_open = false;
      continue;
    }
    if (!is_open) words.emplace_back();
    is_open = true;
    if (c != '\'') words.back() += c;
  }
  return words;
}

template <class Settings>
std::optional<int> parse(const std::vector<char*>& arguments) {
  Settings settings;
  return tools::parse(static_cast<int>(arguments.size()) - 1, const_cast<char**>(arguments.data()), settings);
}

struct Outcome {
  std::optional<int> code;
  std::string message;
};

Outcome run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(stderr);
  const int there = dup(STDERR_FILENO), file = memfd_create("message", 0);
  dup2(file, STDERR_FILENO);
  Outcome outcome;
  outcome.code = words[0] == "ps_shm"       ? parse<tools::PsSettings>(arguments)
                 : words[0] == "worker_shm" ? parse<tools::WorkerSettings>(arguments)
                                            : parse<tools::LaunchSettings>(arguments);
  std::fflush(stderr);
  dup2(there, STDERR_FILENO);
  close(there);
  outcome.message.resize(static_cast<std::size_t>(lseek(file, 0, SEEK_END)));
  CHECK(pread(file, outcome.message.data(), outcome.message.size(), 0) == ssize_t(outcome.message.size()));
  close(file);
  return outcome;
}

}  // namespace

TEST_CASE("refused command lines: each with one line that says why") {
  const std::vector<Refused> all = read_refused();
  CHECK(all.size() > 200);
  std::vector<std::string> set = {"COLUMNS"};  // and whatever is an option, or looks like one
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (const std::string text = *variable; text.starts_with("PS_SHM_")) set.push_back(text.substr(0, text.find('=')));
  std::list<EnvironmentVariable> none_set;
  for (const std::string& name : set) none_set.emplace_back(name.c_str(), std::nullopt);
  for (const Refused& refused : all) {
    CAPTURE(refused.line);
    std::vector<std::string> words = split(refused.line);
    std::optional<EnvironmentVariable> variable;
    std::string name;
    if (const std::size_t at = words[0].find('='); at != std::string::npos) {
      name = words[0].substr(0, at);
      variable.emplace(name.c_str(), words[0].substr(at + 1));
      words.erase(words.begin());
    }
    const Outcome outcome = run(words);
    CAPTURE(outcome.message);
    CHECK(outcome.code == 2);
    CHECK(outcome.message.starts_with(words[0] + ": "));
    CHECK(outcome.message.find('\n') + 1 == outcome.message.size());
    for (const std::string& word : refused.words) {
      CAPTURE(word);
      CHECK(outcome.message.find(word) != std::string::npos);
    }
    for (const std::string& word : refused.others) {
      CAPTURE(word);
      CHECK(outcome.message.find(word) == std::string::npos);
    }
  }
}
