#include "socket_rival.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace ps_shm::bench {
namespace {

enum Request : char { kPush = 1, kPull = 2 };

// False: the other end is closed.
bool send_all(int descriptor, const void* bytes, std::size_t count) {
  const auto* at = static_cast<const char*>(bytes);
  while (count != 0) {
    const ssize_t sent = send(descriptor, at, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, count -= std::size_t(sent);
  }
  return true;
}

bool receive_all(int descriptor, void* bytes, std::size_t count) {
  auto* at = static_cast<char*>(bytes);
  while (count != 0) {
    const ssize_t received = recv(descriptor, at, count, MSG_WAITALL);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    at += received, count -= std::size_t(received);
  }
  return true;
}

void require(bool good) {
  if (!good) throw std::runtime_error("the socket's other end is gone");
}

}  // namespace

SocketServer::SocketServer(RivalVector& vector, int clients) : vector_(vector), sockets_(std::size_t(clients)) {
  for (auto& pair : sockets_) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0)
      throw std::runtime_error("cannot make a socket");
    constexpr int kBuffer = 4 << 20;  // bytes, or as many as the system allows
    for (const int end : pair)
      for (const int which : {SO_SNDBUF, SO_RCVBUF}) setsockopt(end, SOL_SOCKET, which, &kBuffer, sizeof kBuffer);
  }
  server_.emplace([this] {
    for (const auto& pair : sockets_) close(pair[0]);
    std::vector<std::mutex> blocks(vector_.blocks());
    std::vector<std::jthread> threads;
    for (const auto& pair : sockets_) threads.emplace_back([&, end = pair[1]] { serve(end, blocks); });
  });
  for (const auto& pair : sockets_) close(pair[1]);
}

SocketServer::~SocketServer() {
  for (const auto& pair : sockets_) close(pair[0]);
}

void SocketServer::serve(int descriptor, std::vector<std::mutex>& blocks) {
  const auto piece = std::make_unique<float[]>(RivalVector::kBlock);
  for (char request; receive_all(descriptor, &request, 1);) {
    if (request == kPull) {
      if (!send_all(descriptor, vector_.values(), vector_.size() * sizeof(float))) return;
      continue;
    }
    for (std::uint64_t block = 0; block < vector_.blocks(); ++block) {
      const std::uint64_t begin = block * RivalVector::kBlock,
                          count = std::min(RivalVector::kBlock, vector_.size() - begin);
      if (!receive_all(descriptor, piece.get(), count * sizeof(float))) return;
      const std::lock_guard guard(blocks[block]);
      simd_add(vector_.values() + begin, piece.get(), count);
    }
    if (!send_all(descriptor, &request, 1)) return;
  }
}

void SocketServer::push(int number, const float* delta) const {
  const int descriptor = sockets_[std::size_t(number)][0];
  char word = kPush;
  require(send_all(descriptor, &word, 1) && send_all(descriptor, delta, vector_.size() * sizeof(float)) &&
          receive_all(descriptor, &word, 1));
}

void SocketServer::pull(int number, float* out) const {
  const int descriptor = sockets_[std::size_t(number)][0];
  const char word = kPull;
  require(send_all(descriptor, &word, 1) && receive_all(descriptor, out, vector_.size() * sizeof(float)));
}

}  // namespace ps_shm::bench
