// What options must fit each other for a sparse model, and what they are where they are not given.
#pragma once

#include <span>
#include <string>

#include "command_line.hpp"

namespace ps::tools {

// For people: "mf or fm", "logistic and svm".
std::string names_with_factors();
std::string names_with_bias();

// For workers and launcher alike: fills in the data, checks that options belong to the model. Throws Error.
void complete_training(const CommandLine& line, TrainingSettings& training);

// For a sparse model, in the program that chooses the job's settings. Throws Error.
void complete_sparse_job(const CommandLine& line, const TrainingSettings& training, JobConfig& job);

// Throws Error where a sparse model is to be on a GPU.
void check_sparse_device(const TrainingSettings& training, const device::DeviceChoice& device);

}  // namespace ps::tools
