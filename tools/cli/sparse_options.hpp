// Checks and defaults of the options of sparse models.
#pragma once

#include <span>
#include <string>

#include "cli/command_line.hpp"

namespace ps_shm::tools {

// For messages: "mf or fm", "logistic and svm".
std::string names_with_factors();
std::string names_with_bias();

// For workers and the launcher: fills in the data, and checks that the options suit the model. Throws Error.
void complete_training(const CommandLine& line, TrainingSettings& training);

// For a sparse model, in the program that determines the job's settings. Throws Error.
void complete_sparse_job(const CommandLine& line, const TrainingSettings& training, JobConfig& job);

}  // namespace ps_shm::tools
