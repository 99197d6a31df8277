// Lets a worker go by its record: each pull waits for the version that it had, each push for that and for all that pulled
// it, each step for its turn. So all chunks go through the versions that they have gone through, with the same bits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "record/board.hpp"
#include "record/folder.hpp"
#include "record/order.hpp"
#include "record/tape.hpp"
#include "shm/job_segments.hpp"

namespace ps::record {

// All records of a folder, and their order.
class Records {
 public:
  explicit Records(const std::string& folder);  // throws Error

  const Order& order() const noexcept { return *order_; }
  const std::vector<Life>& lives() const noexcept { return lives_; }
  Cursor cursor(std::uint32_t record) const;
  std::uint32_t lives_of(std::uint32_t rank) const noexcept;
  // Of the rank's life, from 1 on, of those that have done anything; none: there is no such one.
  std::optional<std::uint32_t> find(std::uint32_t rank, std::uint32_t life) const noexcept;

 private:
  std::vector<Life> lives_;
  std::vector<MappedFile> files_;
  std::vector<Recorded> recorded_;
  std::optional<Order> order_;
};

// What a replaying worker asks of its job while it waits.
struct ReplayWaits {
  std::function<void(const std::function<std::string()>& what)> each_slice;  // throws where the caller wants to stop
  std::function<void(const std::string& line)> notice;
};

class Replayer final : public Tape {
 public:
  // Takes the rank's next life. Throws Error: there is none, or the records are damaged.
  Replayer(const std::string& folder, const std::string& board, shm::JobSegments& job, std::uint32_t rank,
           ReplayWaits waits);

  std::uint64_t examples_before(std::uint64_t) override { return cursor_->header().examples_before; }
  void declare(const std::string& name, std::uint64_t pieces, std::uint64_t elements) override;
  void begin_pull(std::uint32_t variable) override;
  void before_pull(const shm::VersionedVariable& part, std::uint64_t chunk) override;
  void pulled(std::uint64_t version) override;
  UpdateFacts begin_update(const UpdateFacts& now) override;
  void begin_push(std::uint32_t variable, std::uint32_t check, std::uint64_t first_piece) override;
  void before_push(const shm::VersionedVariable& part, std::uint64_t chunk) override;
  void trying(std::uint64_t) noexcept override {}
  void pushed(std::uint64_t version) override;
  void before_step() override;
  void counted(std::uint64_t step) override;
  bool is_finished(bool now) noexcept override;
  bool waits_for_slowest() const noexcept override { return false; }  // the order has it
  void leave() noexcept override;

 private:
  // Whether the program goes by the record still; it does not behind the record's end. Throws Error where the next event
  // is another one, JobFinished where there is none.
  bool expect(Event::What what, const char* does, std::uint32_t variable = 0);
  [[noreturn]] void differ(const std::string& how);
  [[noreturn]] void end_life();
  std::string place() const;
  std::uint64_t chunk() const;
  void wait(const std::function<bool()>& fact, const std::function<std::string()>& what);
  void look_at_others();

  const std::uint32_t rank_;
  shm::JobSegments& job_;
  const ReplayWaits waits_;
  Records records_;
  Board board_;
  std::uint32_t record_ = 0, life_ = 0;
  std::optional<Cursor> cursor_;
  UpdateFacts facts_{};
  bool has_ended_ = false, was_finished_ = false;
};

}  // namespace ps::record
