// Requirements on a GpuLink on any device: a GPU, or the fake of fake_cuda.hpp.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/gpu_link.hpp"
#include "ps_shm/server.hpp"
#include "support/job.hpp"

namespace ps_shm::test {

struct GpuBox {
  device::CudaCalls& cuda;
  device::TransferKernels& kernels;
};

inline JobConfig gpu_job(Mode mode = Mode::kAsync, Layout layout = Layout::kVersioned, std::uint32_t workers = 1) {
  return {.workers = workers, .mode = mode, .layout = layout, .optimizer = {.lr = 0.5F}};
}

// A worker with variables of these sizes, and device memory for them.
class GpuMember {
 public:
  GpuMember(GpuBox box, const JobConfig& config, const std::vector<std::uint64_t>& sizes, GpuOptions options = {},
            std::optional<UpdateRule> rule = std::nullopt)
      : box_(box), worker(test::options(config, {}, config.threads)), stream_(box.cuda) {
    std::vector<VariableSpec> specs;
    for (const std::uint64_t size : sizes) {
      VariableSpec& spec = specs.emplace_back();
      spec.name = fmt::format("v{}", specs.size());
      if (size > 1) spec.shape = {size};
      spec.rule = rule;
    }
    variables = worker.variables(specs, [](std::size_t i, std::span<float> out) {
      for (std::size_t k = 0; k < out.size(); ++k) out[k] = static_cast<float>((k * 7 + i) % 1000);
    });
    for (const std::uint64_t size : sizes) {
      parameters_.emplace_back(box.cuda, size);
      gradients_.emplace_back(box.cuda, size);
    }
    std::vector<float*> parameters;
    std::vector<const float*> gradients;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      parameters.push_back(parameters_[i].on_device());
      gradients.push_back(gradients_[i].on_device());
    }
    if (!options.warn) options.warn = [this](const std::string& line) { warnings.push_back(line); };
    link = device::make_gpu_link(worker, variables, parameters, gradients, options, box.cuda, box.kernels);
  }

  std::vector<float> parameters(std::size_t i) {
    std::vector<float> out(parameters_[i].count());
    move(out.data(), parameters_[i].on_device(), parameters_[i].bytes());
    return out;
  }
  void set_gradient(std::size_t i, const std::vector<float>& values) {
    move(gradients_[i].on_device(), values.data(), gradients_[i].bytes());
  }
  void set_gradients(float value) {
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      set_gradient(i, std::vector<float>(gradients_[i].count(), value));
  }
  std::vector<float> pulled_by_processor(std::size_t i) {
    std::vector<float> out(variables[i].element_count());
    worker.pull(variables[i], out);
    return out;
  }
  const float* device_parameters(std::size_t i) const { return parameters_[i].on_device(); }
  bool pull() {
    link->start_pull();
    return link->finish_pull();
  }
  void push() {
    link->start_push();
    link->finish_push();
  }

 private:
  void move(void* to, const void* from, std::size_t bytes) {
    device::check(box_.cuda, box_.cuda.copy(to, from, bytes, stream_.get()), "copy");
    device::check(box_.cuda, box_.cuda.synchronize(stream_.get()), "copy");
  }

  GpuBox box_;
  std::vector<device::DeviceMemory<float>> parameters_, gradients_;

 public:
  Worker worker;
  std::vector<Variable> variables;
  std::vector<std::string> warnings;
  std::unique_ptr<GpuLink> link;

 private:
  device::OwnStream stream_;
};

// Sizes of one chunk and of many, odd sizes, scalars; and a large one, whose chunks the copy engine transfers if they
// have kLargeChunk bytes.
inline const std::vector<std::uint64_t> kSmallSizes{1, 3, 4, 1000, 5003, 70001}, kLargeSizes{17, 900001};
inline constexpr std::uint64_t kLargeChunk = std::uint64_t{128} << 10;

inline void pulls_what_the_processor_pulls(GpuBox box) {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    for (const bool is_parted : {false, true})
      for (const auto& sizes : {kSmallSizes, kLargeSizes})
        for (const std::uint64_t chunk_bytes : {JobConfig().chunk_bytes, kLargeChunk}) {
          INFO("layout " << std::string(to_string(layout)) << " parted " << is_parted << " sizes " << sizes.size()
                         << " chunks " << chunk_bytes);
          JobConfig config = config_of(gpu_job(Mode::kAsync, layout));
          config.chunk_bytes = chunk_bytes;
          if (is_parted) {
            config.ps_tasks = 3;
            config.placement = Placement::kPartition;
          }
          Server server(config);
          GpuMember member(box, config, sizes);
          for (int round = 0; round < 3; ++round) {
            CHECK_FALSE(member.pull());
            for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(member.parameters(i) == member.pulled_by_processor(i));
            member.set_gradients(1.0F);
            member.push();
            member.worker.step();
          }
          CHECK(member.warnings.empty());
          CHECK(member.link->transfers().pulls == 3);
          CHECK(member.link->transfers().pushes == 3);
          CHECK(member.worker.staleness().max == 0);
        }
}

// The same pushes by a GPU and by a processor, in two jobs, give bit-identical results.
inline void pushes_as_the_processor_does(GpuBox box) {
  struct Kind {
    Mode mode;
    Layout layout;
    UpdateRule rule;
    Reduce reduce = Reduce::kOrdered;
    float clip_norm = 0.0F;
    std::uint32_t threads = 1;
  };
  for (const Kind& kind :
       std::vector<Kind>{{Mode::kAsync, Layout::kVersioned, UpdateRule::kSgd},
                         {Mode::kAsync, Layout::kVersioned, UpdateRule::kAdam},
                         {Mode::kAsync, Layout::kVersioned, UpdateRule::kSgd, Reduce::kOrdered, 1.0F},
                         {Mode::kAsync, Layout::kVersioned, UpdateRule::kMomentum, Reduce::kOrdered, 0.0F, 3},
                         {Mode::kSsp, Layout::kInplace, UpdateRule::kAdd},
                         {Mode::kSync, Layout::kVersioned, UpdateRule::kSgd},
                         {Mode::kSync, Layout::kVersioned, UpdateRule::kAdam, Reduce::kOrdered, 1.0F},
                         {Mode::kSync, Layout::kVersioned, UpdateRule::kSgd, Reduce::kAtomic}})
    for (const bool is_parted : {false, true}) {
      INFO("mode " << int(kind.mode) << " layout " << int(kind.layout) << " rule " << int(kind.rule) << " reduce "
                   << int(kind.reduce) << " clip " << kind.clip_norm << " parted " << is_parted);
      JobConfig config = config_of(gpu_job(kind.mode, kind.layout));
      config.optimizer.rule = kind.rule;
      config.optimizer.clip_norm = kind.clip_norm;
      config.reduce = kind.reduce;
      config.threads = kind.threads;
      if (is_parted) {
        config.ps_tasks = 2;
        config.placement = Placement::kPartition;
      }
      JobConfig other = config;
      other.job = unique_job_name();
      Server server(config), other_server(other);
      const std::vector<std::uint64_t> sizes{1, 5003, 70001};
      GpuMember member(box, config, sizes), processor(box, other, sizes);
      std::mt19937 generator(1);
      std::normal_distribution<float> normal;
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<float>> gradients;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          gradients.emplace_back(sizes[i]);
          std::generate(gradients[i].begin(), gradients[i].end(), [&] { return normal(generator); });
          member.set_gradient(i, gradients[i]);
          static_cast<void>(processor.pulled_by_processor(i));
        }
        static_cast<void>(member.pull());
        member.push();
        processor.worker.push(processor.variables,
                              std::vector<std::span<const float>>(gradients.begin(), gradients.end()));
        CHECK(member.worker.step() == processor.worker.step());
      }
      for (std::size_t i = 0; i < sizes.size(); ++i)
        CHECK(member.pulled_by_processor(i) == processor.pulled_by_processor(i));
    }
}

// float -> bfloat16 -> float, to nearest, ties to even; NaN stays NaN.
inline float through_bfloat16(float value) {
  if (std::isnan(value)) return value;
  auto bits = std::bit_cast<std::uint32_t>(value);
  bits += 0x7fff + (bits >> 16 & 1);
  return std::bit_cast<float>(bits & 0xffff0000);
}

inline void rounds_gradients_to_bfloat16(GpuBox box) {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    JobConfig given = gpu_job(mode);
    given.optimizer.rule = UpdateRule::kAdd;
    Job job(given);
    GpuOptions options;
    options.wire = Wire::kBFloat16;
    GpuMember member(box, job.config, {1, 70001}, options);
    std::vector<std::vector<float>> gradients{{1.0F / 3}, std::vector<float>(70001)}, before;
    std::mt19937 generator(2);
    for (float& g : gradients[1]) g = std::ldexp(static_cast<float>(generator() % 100000) - 50000.0F, -8);
    for (std::size_t i = 0; i < 2; ++i) {
      member.set_gradient(i, gradients[i]);
      before.push_back(member.pulled_by_processor(i));
    }
    static_cast<void>(member.pull());
    member.push();
    member.worker.step();
    for (std::size_t i = 0; i < 2; ++i) {
      const std::vector<float> after = member.pulled_by_processor(i);
      std::size_t wrong = 0;
      for (std::size_t k = 0; k < after.size(); ++k)
        wrong += after[k] != before[i][k] + through_bfloat16(gradients[i][k]);
      CHECK(wrong == 0);
    }
  }
}

// A pull that waits in the stream sees pushes made between its start and open().
inline void waits_on_the_stream(GpuBox box) {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    JobConfig given = gpu_job(mode);
    given.optimizer.rule = UpdateRule::kAdd;
    Job job(given);
    GpuOptions options;
    options.stream_waits = true;
    GpuMember member(box, job.config, kSmallSizes, options);
    REQUIRE(member.link->can_wait());
    static_cast<void>(member.pull());
    for (int round = 0; round < 20; ++round) {
      member.set_gradients(1.0F);
      member.link->start_push();
      member.link->start_pull_when_opened();
      member.link->finish_push();
      member.worker.step();
      member.link->open();
      CHECK_FALSE(member.link->finish_pull());
      for (std::size_t i = 0; i < kSmallSizes.size(); ++i)
        CHECK(member.parameters(i).back() == member.pulled_by_processor(i).back());
    }
    CHECK(member.parameters(0).front() == 20.0F);
    member.link->start_pull_when_opened();  // it is never opened: the end of the link does not wait for it
  }
}

}  // namespace ps_shm::test
