// Event files for TensorBoard: the values that a run writes for its steps. Each writer has a folder of its own.
//
// The format is that of TensorFlow's tf.summary: records, each framed by masked CRC-32Cs, of the message Event. A
// record is written by one call, so that after a kill everything stays up to the last complete record.
#pragma once

#include <cstdint>
#include <string>

#include "persistence/summary.hpp"

namespace ps_shm::persistence {

// The file of one writer, in a folder of its own, which TensorBoard calls a run. The file is created at the first
// write. After a failure the next write tries again, in another file if necessary.
class EventFile {
 public:
  // `opening`: written at the start of each of its files.
  explicit EventFile(std::string folder, Summary opening = {});
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Throws Error that names the folder or file and says why it cannot be written. The file's contents stay readable.
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
  std::uint64_t size_ = 0;  // of the complete records
};

}  // namespace ps_shm::persistence
