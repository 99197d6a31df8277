// What options must fit each other for a sparse model, and what they are where they are not given.
#pragma once

#include <span>
#include <string>

#include "command_line.hpp"

namespace ps::tools {

// Of workers and launcher alike: fills in the data, checks that options belong to the model. Throws Error.
void complete_training(const CommandLine& line, TrainingSettings& training);

// Of a sparse model, of whoever chooses the job's settings. Throws Error.
void complete_sparse_job(const CommandLine& line, const TrainingSettings& training, JobConfig& job);

// Throws Error where a sparse model is to be on a GPU.
void check_sparse_device(const TrainingSettings& training, const device::DeviceChoice& device);

}  // namespace ps::tools
