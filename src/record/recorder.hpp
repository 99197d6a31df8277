// Writes a worker's recording (format.hpp) while the worker runs. The file is mapped, so what was stored survives the
// worker's death, though not the machine's.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <vector>

#include "record/format.hpp"
#include "record/recording.hpp"

namespace ps_shm::record {

class Recorder final : public Recording {
 public:
  // Makes the folder if it does not exist, and in it the file of the rank's next life. Throws Error.
  Recorder(const std::string& folder, std::uint32_t rank);
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  std::uint64_t examples_before(std::uint64_t counted) override;
  void declare(const std::string& name, std::uint64_t pieces, std::uint64_t elements) override;
  void begin_pull(std::uint32_t variable) override;
  void before_pull(const shm::VersionedVariable&, std::uint64_t) override {}
  void pulled(std::uint64_t version) override;
  UpdateFacts begin_update(const UpdateFacts& now) override;
  void begin_push(std::uint32_t variable, std::uint32_t check, std::uint64_t first_piece) override;
  void before_push(const shm::VersionedVariable&, std::uint64_t) override { make_room(); }
  void trying(std::uint64_t version) noexcept override;
  void pushed(std::uint64_t version) override;
  bool drops_pushes(bool now) override { return now; }
  void dropped(std::uint32_t variable, std::uint32_t check) override;
  void before_step() override;
  void counted(std::uint64_t step) override;
  bool is_finished(bool now) noexcept override;
  bool waits_for_slowest() const noexcept override { return true; }
  void leave() noexcept override;

 private:
  static constexpr std::size_t kWindow = std::size_t{1} << 20;  // mapped at a time; the file grows by as much
  static constexpr std::size_t kMostAtOnce = 64;                // bytes of one event without a name

  void make_room(std::size_t bytes = kMostAtOnce) {
    if (at_ + bytes > kWindow) move_window(bytes);
  }
  void move_window(std::size_t bytes);
  void put(std::byte byte) noexcept;
  void put(Kind kind) noexcept { put(static_cast<std::byte>(kind)); }
  void put_number(std::uint64_t number) noexcept;
  bool put_end(Kind kind) noexcept;  // false: there is no room for it
  std::uint64_t& known() noexcept { return known_[variable_][piece_]; }

  const pid_t owner_ = getpid();
  std::string path_;
  int file_ = -1;
  std::byte* window_ = nullptr;
  std::size_t begin_ = 0, at_ = 0;  // of the window in the file; within the window
  std::vector<std::vector<std::uint64_t>> known_;
  std::uint64_t all_pieces_ = 0;
  std::uint32_t variable_ = 0;          // of the current call
  std::uint64_t piece_ = 0, left_ = 0;  // next piece, and number of remaining pieces, of the current call
  std::size_t token_ = 0;               // where the token of the current push lies
  UpdateFacts facts_{};
  bool has_rates_ = false, was_finished_ = false;
  std::uint64_t step_ = 0;
};

}  // namespace ps_shm::record
