// The exceptions of the library: set-up failures and misuse; never thrown by a push or pull of a joined worker.
#pragma once

#include <stdexcept>
#include <string>

namespace ps {

// One line that says what was attempted, on which object, and what to do.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// A wait ended because its caller asked for it (WorkerOptions::stop_requested).
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};

// A worker came after the last step of its job, or the job was ended before it joined: nothing is left to do.
class JobFinished : public Error {
 public:
  using Error::Error;
};

}  // namespace ps
