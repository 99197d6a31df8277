// Redis on a Unix socket: a row is a string of bytes. A push gets rows, changes them and sets them, as embedding servers
// on Redis do it, so of two pushes of a row at a time one may be lost.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "store.hpp"

namespace ps_shm::bench {
namespace {

// A connection. Commands and replies as the protocol RESP has them.
class Connection {
 public:
  explicit Connection(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    is_open_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Connection() { ::close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_open() const noexcept { return is_open_; }

  void begin(const char* command, std::size_t words) {
    out_ = fmt::format("*{}\r\n", words + 1);
    add(command, std::strlen(command));
  }
  void add(const void* bytes, std::size_t count) {
    fmt::format_to(std::back_inserter(out_), "${}\r\n", count);
    out_.append(static_cast<const char*>(bytes), count);
    out_ += "\r\n";
  }
  void send() {
    for (std::size_t sent = 0; sent < out_.size();) {
      const ssize_t now = ::send(socket_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) throw std::runtime_error("redis-server has closed the connection");
      sent += static_cast<std::size_t>(now);
    }
    in_.clear(), at_ = 0;
  }
  // The number behind the reply's first character, which must be `kind`.
  long long number(char kind) {
    for (std::size_t end;;) {
      if ((end = in_.find("\r\n", at_)) != std::string::npos) {
        const std::string line = in_.substr(at_, end - at_);
        at_ = end + 2;
        if (line.front() != kind) throw std::runtime_error("redis-server says " + line);
        return kind == '+' ? 0 : std::stoll(line.substr(1));
      }
      receive();
    }
  }
  // A string of so many bytes. False: there is none.
  bool bytes(void* out, std::size_t count) {
    if (number('$') < 0) return false;
    while (in_.size() < at_ + count + 2) receive();
    std::memcpy(out, in_.data() + at_, count);
    at_ += count + 2;
    return true;
  }
  std::string text() {
    std::string all(static_cast<std::size_t>(number('$')), '\0');
    while (in_.size() < at_ + all.size() + 2) receive();
    in_.copy(all.data(), all.size(), at_);
    return all;
  }

 private:
  void receive() {
    char some[65536];
    const ssize_t count = ::recv(socket_, some, sizeof some, 0);
    if (count <= 0) throw std::runtime_error("redis-server has closed the connection");
    in_.append(some, static_cast<std::size_t>(count));
  }

  int socket_;
  bool is_open_ = false;
  std::string out_, in_;
  std::size_t at_ = 0;  // what of in_ was read
};

class RedisAccess final : public Access {
 public:
  RedisAccess(const std::string& path, std::uint64_t width) : server_(path), width_(width) {}

  std::uint64_t lookup(std::span<const std::uint64_t> keys) override {
    server_.begin("EXISTS", keys.size());
    for (const std::uint64_t& key : keys) server_.add(&key, sizeof key);
    server_.send();
    return static_cast<std::uint64_t>(server_.number(':'));
  }
  void pull(std::span<const std::uint64_t> keys, std::span<float> out) override {
    server_.begin("MGET", keys.size());
    for (const std::uint64_t& key : keys) server_.add(&key, sizeof key);
    server_.send();
    server_.number('*');
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (!server_.bytes(out.data() + i * width_, row_bytes())) std::fill_n(out.data() + i * width_, width_, 0.5F);
  }
  void push(std::span<const std::uint64_t> keys, std::span<const float> gradients) override {
    rows_.resize(gradients.size());
    pull(keys, rows_);
    for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i] -= kRate * gradients[i];
    server_.begin("MSET", 2 * keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      server_.add(&keys[i], sizeof keys[i]);
      server_.add(rows_.data() + i * width_, row_bytes());
    }
    server_.send();
    server_.number('+');
  }

 private:
  std::size_t row_bytes() const noexcept { return width_ * sizeof(float); }

  Connection server_;
  std::uint64_t width_;
  std::vector<float> rows_;
};

constexpr std::chrono::seconds kStartTime{20};  // for the server to listen

class RedisStore final : public Store {
 public:
  explicit RedisStore(const Shape& shape) : width_(shape.width) {
    std::string folder = (std::filesystem::temp_directory_path() / "keyed-redis-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("there is no place for a socket");
    folder_ = folder;
    const pid_t parent = ::getpid();
    process_ = ::fork();
    if (process_ == 0) start(parent);
    const auto give_up_at = std::chrono::steady_clock::now() + kStartTime;
    while (!Connection(socket()).is_open()) {
      int status = 0;
      const bool is_late = std::chrono::steady_clock::now() > give_up_at;
      if (is_late) ::kill(process_, SIGKILL);
      if (::waitpid(process_, &status, is_late ? 0 : WNOHANG) == process_) {
        process_ = -1;
        std::filesystem::remove_all(folder_);
        if (WIFEXITED(status) && WEXITSTATUS(status) == kAbsent) throw Absent("redis-server is not installed");
        throw std::runtime_error("redis-server does not start");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  ~RedisStore() override {
    if (process_ > 0) ::kill(process_, SIGKILL), ::waitpid(process_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<Access> open(int) override { return std::make_unique<RedisAccess>(socket(), width_); }
  std::uint64_t bytes() const override {
    Connection server(socket());
    server.begin("INFO", 1);
    server.add("memory", 6);
    server.send();
    const std::string text = server.text(), name = "used_memory:";
    return std::stoull(text.substr(text.find(name) + name.size()));
  }
  std::uint64_t cpu_ns_elsewhere() const override {
    std::uint64_t ns = 0;
    std::ifstream(fmt::format("/proc/{}/schedstat", process_)) >> ns;
    if (ns == 0) throw std::runtime_error("/proc does not say how much processor time redis-server takes");
    return ns;
  }

 private:
  static constexpr int kAbsent = 127;

  std::string socket() const { return folder_ + "/socket"; }

  // In the child.
  [[noreturn]] void start(pid_t parent) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const int nowhere = ::open("/dev/null", O_RDWR);
    ::dup2(nowhere, STDOUT_FILENO), ::dup2(nowhere, STDERR_FILENO);
    const std::string path = socket();
    ::execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path.c_str(), "--dir", folder_.c_str(),
             "--save", "", "--appendonly", "no", static_cast<char*>(nullptr));
    ::_exit(kAbsent);
  }

  std::uint64_t width_;
  std::string folder_;
  pid_t process_ = -1;
};

}  // namespace

std::unique_ptr<Store> make_redis(const Shape& shape) { return std::make_unique<RedisStore>(shape); }

}  // namespace ps_shm::bench
