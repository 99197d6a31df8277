// The exceptions of the library: set-up failures, misuse, and a /dev/shm that is full. A pull of a joined worker throws
// for misuse alone. A sync push may grow the worker's gradient segment, and throws where there is no room for it.
#pragma once

#include <stdexcept>
#include <string>

#include "ps/export.hpp"

namespace PS_API ps {

// One line that says what was attempted, on which object, and what to do. A setting stands in backquotes, by its name.
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

// A wait with a deadline of its caller's is over, and what it was for has not come.
class Timeout : public Error {
 public:
  using Error::Error;
};

// A subscriber waits for a generation, and nobody is there who would publish it.
class PublisherGone : public Error {
 public:
  using Error::Error;
};

}  // namespace ps
