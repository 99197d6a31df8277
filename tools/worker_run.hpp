// What all runs of worker_shm have in common: how they speak, listen and join.
#pragma once

#include <cstdio>
#include <string>

#include "options.hpp"
#include "ps/worker.hpp"
#include "train/diary.hpp"

namespace ps::tools {

void print_line(std::FILE* out, const std::string& line);

// For people. With --json, stdout is for the object alone.
void say(const WorkerSettings& settings, const std::string& line);

bool is_stop_requested();
void set_hooks(const WorkerSettings& settings, const std::string& who, train::TrainHooks& hooks);

// Throws as Worker's constructor does.
Worker join(const WorkerSettings& settings);

}  // namespace ps::tools
