// Processes: signals that request a clean end, and child processes that end together with their parent.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ps_shm::tools {

// What a second SIGINT, SIGTERM or SIGHUP does. Signals within half a second of the previous one count as the same: on
// Ctrl-C both the terminal and the launcher send one, and timeout(1) sends it to the process and to its group.
enum class SecondSignal { kEndsProcess, kIsCounted };

// Starts to count the three signals. SIGPIPE is ignored: a ps must not die when a reader ends. Call it once, in main.
void catch_signals(SecondSignal second);

int stop_requests() noexcept;  // number of signals received
inline bool is_stop_requested() noexcept { return stop_requests() != 0; }
int stop_signal() noexcept;    // number of the last one
void request_stop() noexcept;  // from within the process: counts as the first signal, unless there has been one

// To be called first in the main of a program that launch_shm may start: it then gets SIGTERM when launch_shm dies.
// Returns whether launch_shm has started it. Requires: catch_signals was called.
bool end_with_launcher();

// A running program, whose output is read line by line. It gets no input, none of the environment variables PS_..., and
// one BLAS thread; a program of another kind gets as many as the environment says. It begins with no signal blocked and
// none ignored, except SIGHUP under nohup.
class Child {
 public:
  using OnLine = std::function<void(const Child& child, bool is_error, const std::string& line)>;

  // Starts `program`, from the folder of this program or from the PATH. Throws Error.
  // `variables`: "NAME=VALUE", overriding the environment.
  // `is_ours`: one of this project's programs, which ends with this one. Any other has its own process group: signals
  // of the terminal reach it only if they are forwarded, and then also reach the processes that it started.
  Child(std::string title, const std::string& program, const std::vector<std::string>& arguments,
        const std::vector<std::string>& variables = {}, bool is_ours = true);
  ~Child();  // kills it if it still runs, and the rest of another program's process group

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& title() const noexcept { return title_; }
  pid_t pid() const noexcept { return pid_; }
  bool has_ended() const noexcept { return has_ended_; }
  bool was_killed() const noexcept;  // by a signal
  int exit_code() const noexcept;    // as in a shell: 128 + the signal's number if it was killed; 1 if it is unknown
  std::string outcome() const;       // "ended with exit code 1", "was killed by signal 9 (Killed)"
  bool ended_as_asked() const noexcept;  // by a signal that was sent here, or with the corresponding exit code

  void send(int signal) noexcept;  // no effect after its end

 private:
  struct Stream {
    int descriptor = -1;
    std::string partial;  // an incomplete line
  };
  friend void attend(std::span<Child* const> children, int timeout_ms, const OnLine& on_line);
  void read(Stream& stream, const OnLine& on_line);
  void look() noexcept;  // checks whether it has ended
  void kill_with(int signal) noexcept;

  std::string title_;
  bool is_ours_;
  pid_t pid_ = -1;
  int handle_ = -1;  // a pidfd, which no later process with the same pid can have; -1: the kernel has none
  bool has_ended_ = false;
  bool is_status_lost_ = false;  // somebody else has reaped it
  int status_ = 0;
  std::uint64_t sent_ = 0;  // bit N: signal N
  Stream out_, error_;
};

// Waits until a child prints or ends, a signal arrives, or the time is over; passes on complete lines. A child ends
// only after its last line.
void attend(std::span<Child* const> children, int timeout_ms, const Child::OnLine& on_line);

}  // namespace ps_shm::tools
