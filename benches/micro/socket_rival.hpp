// The classic way: a server process that has the vector, and a stream socket per client to push and pull through.
//
// A thread of the server's per connection receives a push piece by piece, adds each piece while it is in the cache, under
// its block's mutex, and acknowledges the whole; a pull is sent straight out of the vector.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "../processes.hpp"
#include "rivals.hpp"

namespace ps_shm::bench {

class SocketServer {
 public:
  SocketServer(RivalVector& vector, int clients);
  ~SocketServer();
  SocketServer(const SocketServer&) = delete;
  SocketServer& operator=(const SocketServer&) = delete;

  // Calls of the number-th client, in its process. Both throw std::runtime_error when the server is gone.
  void push(int number, const float* delta) const;
  void pull(int number, float* out) const;

 private:
  void serve(int descriptor, std::vector<std::mutex>& blocks);

  RivalVector& vector_;
  std::vector<std::array<int, 2>> sockets_;  // client's end, server's end
  std::optional<Helper> server_;
};

}  // namespace ps_shm::bench
