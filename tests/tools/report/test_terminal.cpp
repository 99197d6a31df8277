// Lines, lists, tables and the progress line fit any width; quantities have suitable units.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "report/progress.hpp"
#include "report/terminal.hpp"

using namespace ps_shm;
using namespace ps_shm::report;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::size_t widest(const std::string& text) {
  std::size_t most = 0;
  for (const std::string& line : lines_of(text)) most = std::max(most, line.size());
  return most;
}

// The words of a text, whatever their lines.
std::string squeezed(const std::string& text) {
  std::string all;
  std::istringstream in(text);
  for (std::string word; in >> word;) all += all.empty() ? word : " " + word;
  return all;
}

const std::vector<Row> kRows = {{"NAME", "SHAPE", "SIZE", "STATE", "STALE MEAN"},
                                {"hid_w", "[64,128]", "32.0 KiB", "ready", "1.25"},
                                {"hid_b", "[128]", "512 B", "NOT INITIALISED", "-"}};

// A terminal without a program.
class FakeTerminal {
 public:
  FakeTerminal() : here_(posix_openpt(O_RDWR | O_NOCTTY)) {
    REQUIRE(here_ >= 0);
    REQUIRE(grantpt(here_) == 0);
    REQUIRE(unlockpt(here_) == 0);
    out_ = std::fopen(ptsname(here_), "w");
    REQUIRE(out_ != nullptr);
    unsetenv("COLUMNS");
  }
  ~FakeTerminal() {
    std::fclose(out_);
    close(here_);
  }

  void resize(unsigned short columns) {
    const winsize size{24, columns, 0, 0};
    REQUIRE(ioctl(here_, TIOCSWINSZ, &size) == 0);
  }

  // What `progress` draws, without the escapes around it.
  std::string draw(Progress& progress, const JobProgress& now) {
    progress.show(now);
    char buffer[4096];
    const ssize_t count = read(here_, buffer, sizeof buffer);
    REQUIRE(count > 0);
    std::string text(buffer, static_cast<std::size_t>(count));
    REQUIRE(text.front() == '\r');
    REQUIRE(text.ends_with("\x1b[K"));
    return text.substr(1, text.size() - 4);
  }

  std::FILE* out() const { return out_; }

 private:
  int here_;
  std::FILE* out_;
};

}  // namespace

TEST_CASE("terminal: a table that fits has one line per row, and numbers are right-aligned") {
  const std::string text = table(kRows, std::nullopt);
  CHECK(table(kRows, 80) == text);
  CHECK(lines_of(text) == std::vector<std::string>{"NAME   SHAPE         SIZE  STATE            STALE MEAN",
                                                   "hid_w  [64,128]  32.0 KiB  ready                  1.25",
                                                   "hid_b  [128]        512 B  NOT INITIALISED           -"});
}

TEST_CASE("terminal: columns of a table that do not fit go to further lines of their row, with unbroken titles") {
  for (std::size_t columns = kLeastColumns; columns < 60; ++columns) {
    CAPTURE(columns);
    const std::string text = table(kRows, columns);
    CHECK(widest(text) <= columns);
    CHECK(squeezed(text) == squeezed(table(kRows, std::nullopt)));
    CHECK(lines_of(text).size() % kRows.size() == 0);
  }
  CHECK(lines_of(table(kRows, 40)) ==
        std::vector<std::string>{"NAME   SHAPE         SIZE", "    STATE            STALE MEAN",
                                 "hid_w  [64,128]  32.0 KiB", "    ready                  1.25",
                                 "hid_b  [128]        512 B", "    NOT INITIALISED           -"});
}

TEST_CASE("terminal: a value wider than a line is truncated with an ellipsis, and shown in full without a limit") {
  const std::string name(100, 'v');
  const std::vector<Row> rows = {{"NAME", "N"}, {name, "1"}};
  const std::string text = table(rows, 40);
  CHECK(widest(text) == 40);
  CHECK(text.find("vv...\n") != std::string::npos);
  CHECK(table(rows, std::nullopt).find(name) != std::string::npos);
}

TEST_CASE("terminal: a text is truncated between characters, which may have several bytes") {
  CHECK(cut("grün", 4) == "grün");
  CHECK(cut("grüne Bäume", 8) == "grüne...");
  CHECK(cut("üüüüü", 4) == "ü...");
  CHECK(cut("abcdef", 3) == "abc");
  CHECK(cut("", 0).empty());
}

TEST_CASE("terminal: lines are wrapped between words, and continuation lines are indented") {
  CHECK(wrapped("one two three four five six", 20, 2) == "one two three four\n  five six");
  CHECK(wrapped("  12:00  step 1  worker 0 joined", 24, 4) == "  12:00  step 1  worker\n    0 joined");
  CHECK(fitted("short\n  a line that is longer than that\n", 24) ==
        "short\n  a line that is longer\n      than that\n");
  CHECK(fitted("a line of any length", std::nullopt) == "a line of any length");
}

TEST_CASE("terminal: a word that is longer than a line is broken after a separator, if it has one") {
  CHECK(wrapped("--optimizer sgd|momentum|adagrad", 24, 12) ==
        "--optimizer sgd|\n            momentum|\n            adagrad");
  CHECK(wrapped("xxxxxxxxxxxxxxxxxxxxyyyyyyyyyyyyyyyyyyyyzz", 20, 0) ==
        "xxxxxxxxxxxxxxxxxxxx\nyyyyyyyyyyyyyyyyyyyy\nzz");
  for (std::size_t columns = 1; columns < 50; ++columns)
    CHECK(widest(wrapped("ratings:USERSxITEMSxRATINGS or zipf:FEATURESxEXAMPLES[xPER_ROW[xEXPONENT]]", columns, 30)) <=
          std::max(columns, kLeastColumns));
}

TEST_CASE("terminal: a list is read downwards, in as many columns as fit") {
  const std::vector<std::string> entries = {"a 1", "bb 2", "ccc 3", "dddd 4", "e 5"};
  CHECK(listed(entries, std::nullopt) == "a 1\nbb 2\nccc 3\ndddd 4\ne 5\n");
  CHECK(listed(entries, 23) == "a 1     ccc 3   e 5\nbb 2    dddd 4\n");
  CHECK(listed(entries, 7) == listed(entries, std::nullopt));
  CHECK(listed({}, 80).empty());
}

TEST_CASE("terminal: durations and rates have suitable units") {
  const std::pair<double, const char*> durations[] = {{0, "0 ms"},       {4e-5, "0.04 ms"},  {0.0123, "12.3 ms"},
                                                      {0.171, "171 ms"}, {0.9999, "1.00 s"}, {1.234, "1.23 s"},
                                                      {83.4, "83.4 s"},  {3725, "3725 s"}};
  for (const auto& [seconds, text] : durations) CHECK(duration(seconds) == text);
  const std::pair<double, const char*> rates[] = {{0, "0 steps/s"}, {0.25, "0.25 steps/s"}, {34314.2, "34314 steps/s"}};
  for (const auto& [per_second, text] : rates) CHECK(rate(per_second, "steps") == text);
  CHECK(rate(1500, "") == "1500/s");
}

TEST_CASE("terminal: COLUMNS applies without a terminal, and if it is less than the terminal's width") {
  FakeTerminal terminal;
  std::FILE* const file = std::tmpfile();
  CHECK(columns_of(terminal.out()) == std::nullopt);  // it does not report its width
  CHECK(columns_of(file) == std::nullopt);
  terminal.resize(100);
  CHECK(columns_of(terminal.out()) == 100);
  for (const auto& [given, of_terminal, of_file] : {std::tuple<const char*, Columns, Columns>{"70", 70, 70},
                                                    {"200", 100, 200},
                                                    {"wide", 100, std::nullopt},
                                                    {"", 100, std::nullopt}}) {
    const std::string words = given;
    CAPTURE(words);
    setenv("COLUMNS", given, 1);
    CHECK(columns_of(terminal.out()) == of_terminal);
    CHECK(columns_of(file) == of_file);
  }
  unsetenv("COLUMNS");
  std::fclose(file);
}

TEST_CASE("progress: a line omits the least important fields first, and never the step") {
  const JobProgress now{
      .steps = 5021, .target_steps = 60000, .loss = 0.2155, .mean_staleness = 1.94, .live_workers = 3, .workers = 3};
  const char* const expected[] = {
      "step 5021/60000  [          ]  8 %  34314 steps/s  loss 0.2155  staleness 1.9  3 of 3 workers  0:02 left",
      "step 5021/60000  [          ]  8 %  34314/s  loss 0.2155  stale 1.9  3/3 workers  0:02 left",
      "step 5021/60000  [          ]  8 %  34314/s  loss 0.2155  3/3 workers  0:02 left",
      "step 5021/60000  8 %  34314/s  loss 0.2155  3/3 workers  0:02 left",
      "step 5021/60000  8 %  34314/s  loss 0.2155  0:02 left",
      "step 5021/60000  8 %  loss 0.2155  0:02 left",
      "step 5021/60000  0:02 left",
      "step 5021/60000"};
  for (int brevity = 0; brevity <= kMostBrevity; ++brevity)
    CHECK(progress_line(now, 34314, brevity, Bar::kAscii) == expected[brevity]);
  CHECK(progress_line(now, 34314, 1) ==
        "step 5021/60000  8 %  34314/s  loss 0.2155  stale 1.9  3/3 workers  0:02 left");
}

TEST_CASE("progress: the bar is full only at the end, and Unicode's elements have eighths of a column") {
  JobProgress now{.steps = 599, .target_steps = 600, .loss = {}, .live_workers = 1, .workers = 1};
  CHECK(progress_line(now, 0, 2, Bar::kUtf8).find("99 %") != std::string::npos);
  now.steps = 270;
  CHECK(progress_line(now, 0, 2, Bar::kUtf8).starts_with("step 270/600  [████▌     ]  45 %  "));
  now.steps = 700;  // a step may be in flight when the job ends
  CHECK(progress_line(now, 0, 2, Bar::kAscii).starts_with("step 700/600  [##########]  100 %  "));
}

TEST_CASE("terminal: there are colours only on a terminal, and not if NO_COLOR is set or it is dumb") {
  FakeTerminal terminal;
  std::FILE* const file = std::tmpfile();
  const char* const before = std::getenv("TERM");
  const std::string kind = before != nullptr ? before : "";
  unsetenv("NO_COLOR");
  setenv("TERM", "xterm", 1);
  CHECK(has_colour(terminal.out()));
  CHECK_FALSE(has_colour(file));
  setenv("NO_COLOR", "", 1);
  CHECK(has_colour(terminal.out()));
  setenv("NO_COLOR", "1", 1);
  CHECK_FALSE(has_colour(terminal.out()));
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  CHECK_FALSE(has_colour(terminal.out()));
  setenv("TERM", kind.c_str(), 1);
  CHECK(coloured(Colour::kRed, "WRONG") == "\x1b[31mWRONG\x1b[39m");
  std::fclose(file);
}

TEST_CASE("progress: the loss of the last test is next to that of the training, if it fits") {
  const JobProgress now{.steps = 5,
                        .target_steps = 0,
                        .loss = 0.25,
                        .test_loss = 0.5,
                        .mean_staleness = 0,
                        .live_workers = 1,
                        .workers = 1};
  CHECK(progress_line(now, 10, 0) ==
        "step 5  10.0 steps/s  loss 0.2500  test loss 0.5000  staleness 0.0  1 of 1 workers");
  CHECK(progress_line(now, 10, 3) == "step 5  10.0/s  loss 0.2500  test 0.5000  1/1 workers");
  CHECK(progress_line(now, 10, 4) == "step 5  10.0/s  loss 0.2500");
}

TEST_CASE("progress: the line fits a terminal that is resized between two redraws, without its last column") {
  setenv("NO_COLOR", "1", 1);
  FakeTerminal terminal;
  Progress progress(terminal.out());
  JobProgress now{
      .steps = 12345, .target_steps = 100000000, .loss = 0.2, .mean_staleness = 2, .live_workers = 16, .workers = 16};
  for (const unsigned short columns : {200, 80, 60, 30, 10, 3, 120, 0}) {
    CAPTURE(columns);
    terminal.resize(columns);
    for (int redraw = 0; redraw < 3; ++redraw) {
      now.steps += 10;
      const std::string line = terminal.draw(progress, now);
      CHECK(width_of(line) < (columns != 0 ? columns : kUsualColumns));
      CHECK(line.starts_with(std::string("step").substr(0, line.size())));
    }
  }
  unsetenv("NO_COLOR");
}

TEST_CASE("progress: a line that has become shorter stays so until the terminal is resized") {
  FakeTerminal terminal;
  terminal.resize(60);
  Progress progress(terminal.out());
  JobProgress now{.steps = 5, .target_steps = 0, .loss = {}, .mean_staleness = 1, .live_workers = 2, .workers = 2};
  const auto has_workers = [&](const char* words) {
    return terminal.draw(progress, now).find(words) != std::string::npos;
  };
  CHECK(has_workers("2 of 2 workers"));
  now.steps = 1234567890123456;
  CHECK_FALSE(has_workers("2 of 2 workers"));
  now.steps += 1;
  now.mean_staleness = 0;
  CHECK_FALSE(has_workers("2 of 2 workers"));
  terminal.resize(100);
  CHECK(has_workers("2 of 2 workers"));
}
