// Event files, which TensorBoard shows: what a run writes of its steps, each writer in a folder of its own.
//
// The format is that of TensorFlow's tf.summary: records, each framed by masked CRC-32Cs, of the message Event. A record
// is written by one call: of a process that is killed, everything stays up to its last record.
#pragma once

#include <cstdint>
#include <string>

#include "keep/summary.hpp"

namespace ps::keep {

// One writer's file in a folder of its own, which TensorBoard calls a run. The file is made when something is written
// to it. After a failure the next write tries again, in another file if it has to.
class EventFile {
 public:
  // `opening`: what each of its files begins with.
  explicit EventFile(std::string folder, Summary opening = {});
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Throws Error: names the folder or file, and why it cannot be written; what is in the file stays readable.
  void write(std::uint64_t step, const Summary& summary);

 private:
  void open(std::uint64_t step);
  void append(const std::string& record);
  void close() noexcept;
  bool is_there() const noexcept;

  const std::string folder_;
  const Summary opening_;
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;  // of the records that are whole
};

}  // namespace ps::keep
