// Processes: signals that ask for a clean end, and children that end with the process that has started them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ps::tools {

// What a second SIGINT, SIGTERM or SIGHUP does. Those within half a second after one before count as the same one: on
// Ctrl-C the terminal and the launcher both send, timeout(1) sends to the process and to its group.
enum class SecondSignal { kEndsProcess, kIsCounted };

// From here on the three are counted. SIGPIPE is ignored: a ps must not die of a reader's end. Call it once, in main.
void catch_signals(SecondSignal second);

int stop_requests() noexcept;  // how many signals have come
int stop_signal() noexcept;    // the last one's number

// First in the main of a program that launch_shm may have started: if it has, the program gets SIGTERM when it dies.
// Requires: catch_signals was called.
void end_with_launcher();

// A running program, its output read line by line. It gets no input, none of our options (PS_...) from the environment,
// and one BLAS thread; another program as many as the environment says.
class Child {
 public:
  using OnLine = std::function<void(const Child& child, bool is_error, const std::string& line)>;

  // Starts `program`, which lies beside this one or on the PATH. Throws Error.
  // `variables`: "NAME=VALUE", instead of what the environment has.
  // `is_ours`: one of our programs, which ends with this one. Another has a process group of its own: from the terminal it
  // gets no signal but what is sent on, and the processes that it has started get that, too.
  Child(std::string title, const std::string& program, const std::vector<std::string>& arguments,
        const std::vector<std::string>& variables = {}, bool is_ours = true);
  ~Child();  // kills it where it still runs, and all that is left of another program's group

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& title() const noexcept { return title_; }
  pid_t pid() const noexcept { return pid_; }
  bool has_ended() const noexcept { return has_ended_; }
  bool was_killed() const noexcept;  // by a signal
  int exit_code() const noexcept;    // as a shell gives it: of a killed one 128 + the signal's number
  std::string outcome() const;       // "ended with exit code 1", "was killed by signal 9 (Killed)"

  void send(int signal) const noexcept;  // no-op after its end

 private:
  struct Stream {
    int descriptor = -1;
    std::string partial;  // of a line
  };
  friend void attend(std::span<Child* const> children, int timeout_ms, const OnLine& on_line);
  void read(Stream& stream, const OnLine& on_line);
  void look() noexcept;  // whether it has ended

  std::string title_;
  bool is_ours_;
  pid_t pid_ = -1;
  bool has_ended_ = false;
  int status_ = 0;
  Stream out_, error_;
};

// Waits until a child prints or ends, a signal comes, or the time is over; hands out whole lines. A child has ended
// only after its last line.
void attend(std::span<Child* const> children, int timeout_ms, const Child::OnLine& on_line);

}  // namespace ps::tools
