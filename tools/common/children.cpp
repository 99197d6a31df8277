#include "common/children.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/options.hpp"
#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"

extern char** environ;

namespace ps_shm::tools {
namespace {

volatile std::sig_atomic_t g_requests = 0;
volatile std::sig_atomic_t g_signal = 0;
volatile std::sig_atomic_t g_second_ends = 0;

constexpr long kSameSignalMs = 500;
constexpr const char* kParentVariable = "PS_SHM_PARENT";

void on_signal(int number) {
  static timespec last;  // used only here; the handlers mask each other
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long since_ms = (now.tv_sec - last.tv_sec) * 1000 + (now.tv_nsec - last.tv_nsec) / 1'000'000;
  if (g_requests != 0 && since_ms < kSameSignalMs) return;
  last = now;
  if (g_requests != 0 && g_second_ends != 0) _exit(128 + SIGINT);
  g_signal = number;
  g_requests = g_requests + 1;
}

// The environment of the child.
std::vector<std::string> child_environment(const std::vector<std::string>& variables, bool is_ours) {
  std::vector<std::string> all = variables, options;
  if (is_ours) all.push_back(fmt::format("{}={}", kParentVariable, getpid()));
  // The workers are many already: of libraries that start a thread for each core, such as PyTorch, each gets one.
  for (const char* threads : {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"})
    if (is_ours || std::getenv(threads) == nullptr) all.push_back(fmt::format("{}=1", threads));
  if (!is_ours) options = option_variables();
  options.emplace_back(kParentVariable);
  const auto is_of_options = [&](std::string_view name) {
    return is_ours ? name.starts_with("PS_SHM_") : std::find(options.begin(), options.end(), name) != options.end();
  };
  const std::size_t given = all.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto is_given = [&](const std::string& one) { return text.starts_with(one.substr(0, one.find('=') + 1)); };
    if (!is_of_options(text.substr(0, text.find('='))) &&
        std::none_of(all.begin(), all.begin() + std::ptrdiff_t(given), is_given))
      all.emplace_back(text);
  }
  return all;
}

// A child begins with no signal blocked and none ignored, except SIGHUP under nohup. Another program leads its own
// process group.
void set_signals(posix_spawnattr_t& attributes, bool is_ours) {
  sigset_t none, defaults;
  sigemptyset(&none);
  sigfillset(&defaults);
  sigdelset(&defaults, SIGHUP);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  const int group = is_ours ? 0 : POSIX_SPAWN_SETPGROUP;
  posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group));
}

std::vector<char*> as_array(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string find_program(const std::string& program) {
  std::error_code ignored;
  const std::string beside =
      (std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / program).string();
  return access(beside.c_str(), X_OK) == 0 ? beside : program;
}

[[noreturn]] void fail_to_start(const std::string& program, int error) {
  const char* advice = error == EMFILE   ? "; raise the limit on open files (ulimit -n)"
                       : error == ENFILE ? "; raise the machine's limit on open files (sysctl fs.file-max)"
                       : error == EAGAIN ? "; raise the limit on processes (ulimit -u)"
                       : error == ENOENT && access("/proc/self/exe", F_OK) != 0
                           ? "; /proc is not mounted, so that it was looked for on the PATH only"
                       : error == ENOENT || error == EACCES
                           ? "; it must be in the folder of launch_shm or on the PATH"
                           : "";
  throw Error(fmt::format("cannot start {}: {}{}", program, std::strerror(error), advice), config::code_of(error));
}

struct Pipe {
  int ends[2] = {-1, -1};
  explicit Pipe(const std::string& program) {
    if (pipe2(ends, O_CLOEXEC) != 0) fail_to_start(program, errno);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    if (ends[0] >= 0) close(ends[0]);
    close(ends[1]);
  }
  int take_reading_end() { return std::exchange(ends[0], -1); }
};

}  // namespace

void catch_signals(SecondSignal second) {
  g_second_ends = second == SecondSignal::kEndsProcess;
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&action.sa_mask, number);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;  // nohup
    sigaction(number, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file size limit then is an error with a message
}

int stop_requests() noexcept { return g_requests; }
int stop_signal() noexcept { return g_signal; }
void request_stop() noexcept {
  if (g_requests != 0) return;
  g_signal = SIGTERM;
  g_requests = 1;
}

bool end_with_launcher() {
  const char* parent = std::getenv(kParentVariable);
  if (parent == nullptr) return false;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (std::to_string(getppid()) != parent) _exit(128 + SIGTERM);  // it died before the line above
  unsetenv(kParentVariable);
  return true;
}

Child::Child(std::string title, const std::string& program, const std::vector<std::string>& arguments,
             const std::vector<std::string>& given, bool is_ours)
    : title_(std::move(title)), is_ours_(is_ours) {
  Pipe out(program), error(program);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error.ends[1], STDERR_FILENO);
  const std::string path = find_program(program);
  // Python finds the packages of its virtual environment by the name under which it was called.
  std::vector<std::string> words{is_ours ? program : path}, variables = child_environment(given, is_ours);
  words.insert(words.end(), arguments.begin(), arguments.end());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  set_signals(attributes, is_ours);
  const int result =
      posix_spawnp(&pid_, path.c_str(), &actions, &attributes, as_array(words).data(), as_array(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (result != 0) fail_to_start(program, result);
  handle_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  out_.descriptor = out.take_reading_end();
  error_.descriptor = error.take_reading_end();
}

Child::~Child() {
  if (pid_ > 0 && !is_status_lost_ &&
      (!has_ended_ || !is_ours_)) {  // processes of another program's group may still run
    kill_with(SIGKILL);
    int ignored = 0;
    waitpid(pid_, &ignored, 0);
  }
  for (const int descriptor : {handle_, out_.descriptor, error_.descriptor})
    if (descriptor >= 0) close(descriptor);
}

void Child::send(int signal) noexcept {
  if (has_ended_) return;
  sent_ |= std::uint64_t{1} << signal;
  kill_with(signal);
}

// Another program is not reaped before the destructor, so its process group keeps its number; the process itself is
// reached even if it has left its group.
void Child::kill_with(int signal) noexcept {
  if (!is_ours_ && kill(-pid_, signal) == 0) return;
  if (handle_ < 0)  // before Linux 5.3
    kill(pid_, signal);
  else
    syscall(SYS_pidfd_send_signal, handle_, signal, nullptr, 0);
}

void Child::look() noexcept {
  int result = 0;
  siginfo_t info{};
  if (is_ours_) {
    result = waitpid(pid_, &status_, WNOHANG);
    has_ended_ = result == pid_;
  } else {
    result = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    has_ended_ = result == 0 && info.si_pid == pid_;
    if (has_ended_) status_ = info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status, 0) : info.si_status;
  }
  if (result < 0 && errno == ECHILD) has_ended_ = is_status_lost_ = true;
  if (has_ended_ && handle_ >= 0) close(std::exchange(handle_, -1));
}

bool Child::was_killed() const noexcept { return WIFSIGNALED(status_); }
int Child::exit_code() const noexcept {
  if (is_status_lost_) return kFailed;
  return was_killed() ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
}

bool Child::ended_as_asked() const noexcept {
  const int signal = exit_code() - 128;
  if (sent_ == 0 || signal <= 0) return false;
  return (signal == SIGINT && !was_killed()) || (signal < 64 && (sent_ >> signal & 1) != 0);
}

std::string Child::outcome() const {
  if (is_status_lost_) return "ended with an unknown exit code";
  if (!was_killed()) return fmt::format("ended with exit code {}", exit_code());
  return fmt::format("was killed by signal {} ({})", WTERMSIG(status_), strsignal(WTERMSIG(status_)));
}

void Child::read(Stream& stream, const OnLine& on_line) {
  char buffer[4096];
  while (stream.descriptor >= 0) {
    const ssize_t count = ::read(stream.descriptor, buffer, sizeof buffer);
    if (count > 0) {
      stream.partial.append(buffer, static_cast<std::size_t>(count));
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
    close(std::exchange(stream.descriptor, -1));
    if (!stream.partial.empty() && stream.partial.back() != '\n') stream.partial += '\n';
  }
  for (std::size_t end = 0; (end = stream.partial.find('\n')) != std::string::npos;) {
    const std::string line = stream.partial.substr(0, end);
    stream.partial.erase(0, end + 1);
    on_line(*this, &stream == &error_, line);
  }
}

void attend(std::span<Child* const> children, int timeout_ms, const Child::OnLine& on_line) {
  constexpr int kAlmostEndedMs = 1;  // its output is closed, so the process is about to end
  std::vector<pollfd> waits;
  for (const Child* child : children) {
    if (child->has_ended_) continue;
    for (const Child::Stream* stream : {&child->out_, &child->error_})
      if (stream->descriptor >= 0) waits.push_back({stream->descriptor, POLLIN, 0});
    if (child->out_.descriptor < 0 && child->error_.descriptor < 0) timeout_ms = std::min(timeout_ms, kAlmostEndedMs);
  }
  poll(waits.data(), waits.size(), timeout_ms);
  for (Child* child : children) {
    if (child->has_ended_) continue;
    child->look();  // before reading: the output of an ended child is already in the pipes
    child->read(child->out_, on_line);
    child->read(child->error_, on_line);
  }
}

}  // namespace ps_shm::tools
