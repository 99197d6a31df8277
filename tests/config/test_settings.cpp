// A job's settings as text, and what a setting's row defines.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "config/job_settings.hpp"
#include "ps_shm/errors.hpp"

using namespace ps_shm;
using config::job_settings;
using config::Setting;

namespace {

// A text for every setting that differs from the default's.
std::string other_text(const Setting<JobConfig>& setting) {
  const std::string name = setting.name, text = setting.value.write(JobConfig{});
  if (name == "lr-schedule") return "warmup:5+cosine:100:0.25";
  if (name == "place") return "a=0,b/c:0.w_1-x=1";
  if (name == "numa") return "3,0,3";
  if (name == "chunk-bytes") return "4096";
  if (!setting.value.words.empty())
    return *std::find_if(setting.value.words.begin(), setting.value.words.end(),
                         [&](const std::string& word) { return word != text && word != "false"; });
  if (setting.value.kind != config::Kind::kNumber) return "other";
  return setting.value.bounds.find("less than 1") != std::string::npos ? "0.3" : "7";
}

JobConfig all_different() {
  JobConfig config;
  for (const Setting<JobConfig>& setting : job_settings()) read(setting, config, other_text(setting));
  return config;
}

std::string refusal(const JobConfig& config) {
  try {
    check(config);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("settings: a bound that has no effect is refused") {
  JobConfig config;
  config.job = "j";
  config.elastic_min = 1;
  CHECK(refusal(config).find("the bounds of an elastic number") != std::string::npos);
  config.elastic_min = 0, config.mode = Mode::kSync;
  LiveSettings live = config::live_of(config);
  CHECK_NOTHROW(check(live, config));
  live.staleness = 3;
  CHECK_THROWS_WITH_AS(check(live, config), doctest::Contains("`staleness` is the bound of mode ssp"), Error);
}

TEST_CASE("settings: another elastic number of workers is refused in the form in which it is given") {
  const auto with_workers = [](std::uint32_t least, std::uint32_t most) {
    JobConfig config;
    config.job = "j";
    config.workers = least;
    config.elastic_min = most == 0 ? 0 : least;
    config.elastic_max = most;
    return config;
  };
  const JobConfig there = config::resolved(with_workers(2, 4));
  CHECK_NOTHROW(check_same(there, with_workers(2, 4)));
  CHECK_THROWS_WITH_AS(check_same(there, with_workers(2, 5)), doctest::Contains("goes on with workers 2..4, not 2..5"),
                       Error);
  CHECK_THROWS_WITH_AS(check_same(there, with_workers(3, 4)), doctest::Contains("goes on with workers 2..4, not 3..4"),
                       Error);
  CHECK_THROWS_WITH_AS(check_same(there, with_workers(2, 0)), doctest::Contains("goes on with workers 2..4, not 2:"),
                       Error);
}

TEST_CASE("settings: each one has a name, a meaning and a text of its own, and is read back") {
  std::set<std::string> names;
  for (const Setting<JobConfig>& setting : job_settings()) {
    CAPTURE(setting.name);
    CHECK(names.insert(setting.name).second);
    CHECK_FALSE(setting.meaning.empty());
    const std::string text = other_text(setting);
    JobConfig config;
    CHECK(setting.value.write(config) != text);
    read(setting, config, text);
    CHECK_FALSE(config == JobConfig{});
    CHECK(setting.value.write(config) == text);
    CHECK_NOTHROW(config::check(setting, config));
  }
}

TEST_CASE("settings: stored settings are read back as written, and none is omitted") {
  JobConfig config = all_different();
  const std::string text = config::encode(config);
  config.job = config.group = "";  // the only ones that are not stored
  CHECK(config::decode(text) == config);
  CHECK(config::encode(config::decode(text)) == text);
  const JobConfig plain = config::resolved({});
  CHECK(config::decode(config::encode(plain)) == plain);
}

TEST_CASE("settings: chunk-bytes is a size, auto or gpu, and is shown and stored as such") {
  const auto row = std::find_if(job_settings().begin(), job_settings().end(),
                                [](const auto& setting) { return setting.name == std::string("chunk-bytes"); });
  REQUIRE(row != job_settings().end());
  struct Case {
    const char* text;
    std::uint64_t bytes;
    const char *written, *shown;
  };
  for (const Case& one : {Case{"gpu", kChunkBytesForGpu, "gpu", "gpu"}, Case{"GPU", kChunkBytesForGpu, "gpu", "gpu"},
                          Case{"auto", 0, "", "0"}, Case{"64KiB", 65536, "65536", "65536"}}) {
    CAPTURE(one.text);
    JobConfig config = config::resolved({});
    config.chunk_bytes = 1024;
    read(*row, config, one.text);
    CHECK(config.chunk_bytes == one.bytes);
    CHECK(row->value.write(config) == one.written);
    CHECK(show(*row, config) == one.shown);
    CHECK_NOTHROW(config::check(*row, config));
    CHECK(config::decode(config::encode(config)) == config);
  }
  const auto refused = [&](const char* text, const char* why) {
    JobConfig config;
    CHECK_THROWS_WITH_AS(read(*row, config, text), why, Error);
  };
  refused("many", "`chunk-bytes`: 'many' is not a size, auto or gpu");
  refused("gpus", "`chunk-bytes`: 'gpus' is not a size, auto or gpu; did you mean gpu?");
  refused("4KB of", "`chunk-bytes`: '4KB of' is not a size; write 64KiB, 64K, 4MiB, 1GiB or plain bytes");
  refused("0", "`chunk-bytes` must be greater than 0");
  refused("18446744073709551615", "`chunk-bytes`: '18446744073709551615' is too large");
}

TEST_CASE("settings: a real number loses no bit") {
  for (const float rate : {0.1F, 1e-45F, 1.17549435e-38F, 3.40282347e38F, 0.333333343F, 16777217.0F}) {
    JobConfig config = config::resolved({});
    config.optimizer.lr = rate;
    config.linger = Seconds(double(rate) / 3);
    CHECK(config::decode(config::encode(config)) == config);
  }
}

TEST_CASE("settings: a stored text with any byte changed is read or refused") {
  const std::string text = config::encode(all_different());
  std::size_t refused = 0;
  const auto read_again = [&](const std::string& altered) {
    try {
      static_cast<void>(config::decode(altered));
    } catch (const Error&) {
      ++refused;
      return false;
    }
    return true;
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const char with : {'\0', '\n', '=', '9', 'x', '\xff'}) {
      std::string altered = text;
      altered[at] = with;
      const bool is_read = read_again(altered), is_text = with > ' ' && with < 0x7f;
      CHECK((is_text || !is_read || altered == text));
    }
    read_again(text.substr(0, at));
    read_again(text.substr(at));
    read_again(std::string(text).erase(at, 1));
  }
  CHECK(refused > 5 * text.size());
  for (const char* whole : {"", "\n", "workers", "workers=", "workers=2\n"})
    CHECK_THROWS_AS(config::decode(whole), Error);
  for (const char* more : {"\n", "x", "workers=2\n"}) CHECK_THROWS_AS(config::decode(text + more), Error);
}

TEST_CASE("settings: those marked as live can be changed in a running job, and no others") {
  for (const Setting<JobConfig>& setting : job_settings()) {
    CAPTURE(setting.name);
    const JobConfig plain = config::resolved({});
    JobConfig config = plain;
    read(setting, config, other_text(setting));
    const LiveSettings live = config::live_of(config);
    CHECK((live != config::live_of(plain)) == setting.traits.is_live);
    if (setting.traits.is_live) CHECK(config::with_live(plain, live) == config);
  }
}

TEST_CASE("settings: a value out of its bounds is refused by its name, as written on the command line") {
  const auto refused = [](auto&& spoil, const char* why) {
    JobConfig config;
    config.job = "job";
    spoil(config);
    CHECK(refusal(config) == std::string(why));
  };
  refused([](JobConfig&) {}, "");
  refused([](JobConfig& c) { c.workers = 0; }, "`workers` must be at least 1");
  refused([](JobConfig& c) { c.threads = 65; }, "`threads` must be at most 64");
  refused([](JobConfig& c) { c.optimizer.beta2 = 1; }, "`beta2` must be at least 0 and less than 1");
  refused([](JobConfig& c) { c.optimizer.lr = -1; }, "`lr` must be at least 0");
  refused([](JobConfig& c) { c.optimizer.lr = 0; }, "");
  refused([](JobConfig& c) { c.optimizer.lr = 0, c.optimizer.rule = UpdateRule::kFtrl; },
          "`lr` must be greater than 0 with `optimizer` ftrl, which divides by it");
  refused([](JobConfig& c) { c.optimizer.weight_decay = -1; }, "`weight-decay` must be at least 0");
  refused([](JobConfig& c) { c.linger = Seconds(-1); }, "`linger` must be at least 0");
  refused([](JobConfig& c) { c.chunk_bytes = 1000; },
          "`chunk-bytes` must be a power of two from 1KiB to 1MiB, auto or gpu");
  refused([](JobConfig& c) { c.layout = Layout{9}; },
          "`layout`: unknown value; expected versioned|inplace|single-writer");
  refused([](JobConfig& c) { c.numa = Numa::kNodes; }, "`numa`: name 1 to 64 nodes");
  refused([](JobConfig& c) { c.place["a,b"] = 0; }, "`place`: a variable's name has 1 to 127 of A-Z a-z 0-9 _ . : / -");
  refused([](JobConfig& c) { c.place[std::string(127, 'w')] = 0; }, "");
  refused([](JobConfig& c) { c.place[std::string(128, 'w')] = 0; },
          "`place`: a variable's name has 1 to 127 of A-Z a-z 0-9 _ . : / -");
}

TEST_CASE("settings: any stored setting in which two jobs differ is named") {
  const JobConfig there = config::resolved({});
  for (const Setting<JobConfig>& setting : job_settings()) {
    CAPTURE(setting.name);
    JobConfig wanted = there;
    read(setting, wanted, other_text(setting));
    std::string said;
    try {
      check_same(there, wanted);
    } catch (const Error& error) {
      said = error.what();
    }
    const std::string name = setting.name;
    const std::string named = " goes on with " + (name == "elastic-max" ? "workers" : name) + " ";  // LO..HI
    CHECK((said.find(named) != std::string::npos) == (setting.traits.is_stored && !setting.traits.is_of_beginning));
  }
  JobConfig open;
  CHECK_NOTHROW(check_same(there, open));  // unset ones resolve to the same values
  JobConfig others = there;
  others.max_workers = 99;
  CHECK_NOTHROW(check_same(others, open));
}
