// One of several writers of a publication, and its leader while it holds the publisher's byte (docs/protocols.md, round).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ps_shm/publisher.hpp"
#include "publish/polling.hpp"
#include "shm/publication/bundle.hpp"
#include "shm/publication/publication.hpp"
#include "shm/publication/round.hpp"

namespace ps_shm {

class PS_SHM_HIDDEN RoundWriter {
 public:
  // Requires: the writer's byte is held, and the publisher's byte if it leads.
  RoundWriter(const shm::Bundle& bundle, shm::GenerationWriter& generations, const PublisherOptions& options,
              bool leads);

  // Publisher::publish_slices().
  std::uint64_t publish(const Publisher::WriteSlice& write, std::uint64_t step, WaitLimit timeout);

  bool leads() const noexcept { return leads_; }
  // Whether no writer can still be writing in an attempt that was given up.
  bool is_quiet() const;

 private:
  struct Call;  // of publish()

  std::optional<std::uint64_t> lead(Call& call);
  std::optional<std::uint64_t> follow(Call& call);
  void try_lead();
  void wait_for_all(Call& call);
  void wait_for_record(Call& call);
  bool wait_for_done(Call& call, const shm::Round::Attempt& attempt);
  void write_slices(const Call& call, std::uint32_t record) const;
  bool is_alive(std::uint32_t writer) const {
    return writer == options_.writer || bundle_.locks().is_held_by_other(shm::kWriterByte + writer);
  }
  std::string missing(const Call& call) const;

  const shm::Bundle& bundle_;
  shm::GenerationWriter& generations_;
  const PublisherOptions& options_;
  shm::Round round_;
  bool leads_;
};

}  // namespace ps_shm
