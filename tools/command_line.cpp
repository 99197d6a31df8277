#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

namespace ps::tools {
namespace {

template <class Number>
bool read_all(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

// The number in front of one of the units; the last unit is none.
template <std::size_t Count>
double read_with_unit(std::string text, const std::pair<std::string_view, double> (&units)[Count],
                      const char* examples) {
  double factor = 1.0, value = 0.0;
  const std::string given = text;
  for (const auto& [unit, worth] : units) {
    if (!text.ends_with(unit)) continue;
    text.resize(text.size() - unit.size());
    factor = worth;
    break;
  }
  if (!read_all(text, value) || !std::isfinite(value)) throw Error(fmt::format("'{}' is no {}", given, examples));
  if (value < 0) throw Error("must be at least 0");
  if (!std::isfinite(value * factor)) throw Error(fmt::format("'{}' is no {}", given, examples));
  return value * factor;
}

CLI::Option* add_option(CLI::App& app, const std::string& name, const std::string& type, const std::string& what,
                        const std::string& variable, const std::function<void(const std::string&)>& use) {
  const auto checked = [name, use](const std::string& text) {
    try {
      use(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(name, error.what());
    }
  };
  return app.add_option_function<std::string>(name, checked, what)->type_name(type)->envname(variable);
}

}  // namespace

std::uint64_t read_whole(const std::string& text, std::uint64_t least, std::uint64_t most) {
  std::uint64_t value = 0;
  const bool is_negative = text.size() > 1 && text[0] == '-' && read_all(text.substr(1), value);
  if (!is_negative && !read_all(text, value)) throw Error(fmt::format("'{}' is no whole number", text));
  if (is_negative || value < least) throw Error(fmt::format("must be at least {}", least));
  if (value > most) throw Error(fmt::format("must be at most {}", most));
  return value;
}

double read_real(const std::string& text) {
  double value = 0;
  if (!read_all(text, value) || !std::isfinite(value)) throw Error(fmt::format("'{}' is no number", text));
  return value;
}

double read_seconds(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"s", 1.0}};
  return read_with_unit(text, kUnits, "time; write 5ms, 100us, 2s or plain seconds");
}

std::uint64_t read_bytes(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"B", 1.0}};
  const double bytes = read_with_unit(text, kUnits, "size; write 64KiB, 4MiB, 1GiB or plain bytes");
  if (bytes >= 0x1p63) throw Error(fmt::format("'{}' is more than there can be", text));
  return static_cast<std::uint64_t>(bytes);
}

CommandLine::CommandLine(const char* program, const char* purpose)
    : program_(program), app_(std::make_unique<CLI::App>(purpose)) {}
CommandLine::~CommandLine() = default;

void CommandLine::add(const std::string& name, const std::string& type, const std::string& what,
                      const std::function<void(const std::string&)>& use) {
  add_option(*app_, name, type, what, variable(name), use)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void CommandLine::add_joined(const std::string& name, const std::string& type, const std::string& what,
                             const std::function<void(const std::string&)>& use) {
  add_option(*app_, name, type, what, variable(name), use)
      ->multi_option_policy(CLI::MultiOptionPolicy::Join)
      ->delimiter(',');
}

void CommandLine::add_flag(const std::string& name, bool& value, const std::string& what) {
  app_->add_flag(name, value, what)->envname(variable(name));
}

bool CommandLine::was_given(const std::string& name) const { return app_->get_option(name)->count() != 0; }

std::optional<int> CommandLine::parse(int argc, char** argv, const std::function<void()>& check) {
  try {
    app_->parse(argc, argv);
    check();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_->exit(error);
    return fail(program_, kWrongUsage, std::string(error.what()) + " (see --help)");
  } catch (const Error& error) {
    return fail(program_, kWrongUsage, std::string(error.what()) + " (see --help)");
  }
  return std::nullopt;
}

std::string CommandLine::variable(const std::string& option) {
  std::string name = "PS_" + option.substr(2);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace ps::tools
