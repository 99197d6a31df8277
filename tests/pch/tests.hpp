// Precompiled for the test programs: what nearly every test includes. A test still names all that it uses.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/processes.hpp"
#include "support/test_job.hpp"
