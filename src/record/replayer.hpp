// Makes a worker follow its recording: each pull waits for the version that it read, each push for the version that it
// replaced and for all pulls of that version, each step for its turn. All chunks therefore go through the same
// versions again, with the same bits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "record/coordinator.hpp"
#include "record/folder.hpp"
#include "record/order.hpp"
#include "record/recording.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm::record {

// All recordings of a folder, and their order.
class Records {
 public:
  explicit Records(const std::string& folder);  // throws Error

  const Order& order() const noexcept { return *order_; }
  const std::vector<Life>& lives() const noexcept { return lives_; }
  Cursor cursor(std::uint32_t record) const;
  std::uint32_t lives_of(std::uint32_t rank) const noexcept;
  // The recording of the rank's life number `life`, counted from 1 among those that have done anything. Nothing if
  // there is none.
  std::optional<std::uint32_t> find(std::uint32_t rank, std::uint32_t life) const noexcept;

 private:
  std::vector<Life> lives_;
  std::vector<MappedFile> files_;
  std::vector<Recorded> recorded_;
  std::optional<Order> order_;
};

// What a replaying worker calls while it waits.
struct ReplayWaits {
  std::function<void(const std::function<std::string()>& what)> each_slice;  // throws to end the wait
  std::function<void(const std::string& line)> log;
};

class Replayer final : public Recording {
 public:
  // Takes the rank's next life. Throws Error if there is none, or if the recordings are damaged.
  Replayer(const std::string& folder, const std::string& coordinator, shm::JobSegments& job, std::uint32_t rank,
           ReplayWaits waits);

  std::uint64_t examples_before(std::uint64_t) override { return cursor_->header().examples_before(); }
  void declare(const std::string& name, std::uint64_t pieces, std::uint64_t elements) override;
  void begin_pull(std::uint32_t variable) override;
  void before_pull(const shm::VersionedVariable& part, std::uint64_t chunk) override;
  void pulled(std::uint64_t version) override;
  UpdateFacts begin_update(const UpdateFacts& now) override;
  void begin_push(std::uint32_t variable, std::uint32_t check, std::uint64_t first_piece) override;
  void before_push(const shm::VersionedVariable& part, std::uint64_t chunk) override;
  void trying(std::uint64_t) noexcept override {}
  void pushed(std::uint64_t version) override;
  bool drops_pushes(bool now) override;
  void dropped(std::uint32_t variable, std::uint32_t check) override;
  void before_step() override;
  void counted(std::uint64_t step) override;
  bool is_finished(bool now) noexcept override;
  bool waits_for_slowest() const noexcept override { return false; }  // the recorded order contains these waits
  void leave() noexcept override;

 private:
  // Whether the program still follows the recording; after the end of the recording it does not. Throws Error if the
  // next event is a different one, and JobFinished if there is none.
  bool expect(Event::What what, const char* does, std::uint32_t variable = 0);
  [[noreturn]] void differ(const std::string& how);
  [[noreturn]] void differ_in_values();
  [[noreturn]] void end_life();
  std::string place() const;
  std::uint64_t chunk() const;
  void wait(const std::function<bool()>& fact, const std::function<std::string()>& what);
  void look_at_others();

  const std::uint32_t rank_;
  shm::JobSegments& job_;
  const ReplayWaits waits_;
  Records records_;
  ReplayCoordinator coordinator_;
  std::uint32_t record_ = 0, life_ = 0;
  std::optional<Cursor> cursor_;
  UpdateFacts facts_{};
  bool has_ended_ = false, was_finished_ = false;
};

}  // namespace ps_shm::record
