// --checkpoint-dir: the checkpoint that a run resumes from.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "cli/ps_options.hpp"
#include "ps_shm/checkpoint.hpp"

namespace ps_shm::tools {

// The newest complete checkpoint; `log` reports incomplete ones. None: the run starts from scratch. Throws Error
// if there are checkpoints but none is complete, or with --fresh-start if the folder is not empty.
std::optional<Checkpoint> find_beginning(const CheckpointSettings& settings,
                                         const std::function<void(const std::string&)>& log);

// If the run has already done all its steps by then, so that nothing is left to do: the message that says so.
std::optional<std::string> why_done(const Checkpoint& checkpoint, const JobConfig& job);

}  // namespace ps_shm::tools
