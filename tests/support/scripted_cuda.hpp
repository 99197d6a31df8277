// A table of CUDA calls without CUDA: records every call as text, answers from plain members, fails on request.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_calls.hpp"

namespace ps_shm::test {

using device::AtomicOperation;
using device::Attribute;
using device::CudaError;

class ScriptedCuda : public device::CudaCalls {
 public:
  bool built = true;
  int built_version = 13000, driver = 13000;
  int devices = 1;
  bool has_wait_value = true;
  std::map<std::pair<int, Attribute>, int> attributes;  // of (device, attribute); others are unknown to the driver
  std::map<int, std::vector<unsigned>> atomics;       // by device, all thirteen; for other devices the call is missing
  std::map<int, device::DeviceProperties> described;  // others are called "GPU <number>"
  std::map<std::pair<int, int>, int> peers;           // by (device, peer): 1 if it can be reached
  std::uint64_t device_offset = 0x1000'0000'0000;     // a region's device address is its host address plus this
  std::uint64_t region_gap = 0;                       // added once more for every region registered before

  std::vector<std::string> calls;  // in order, without those that only query a text
  CudaError pending = 0;           // what last_error() returns next

  // The `nth` call (from 1) of `function` shall return `error`.
  void fail(const std::string& function, int nth, CudaError error) { failures_[{function, nth}] = error; }
  int count_of(const std::string& function) const {
    const auto found = made_.find(function);
    return found == made_.end() ? 0 : found->second;
  }
  void forget_calls() { calls.clear(); }

  bool is_built() const override { return built; }
  int built_for() const override { return built_version; }
  std::string error_text(CudaError error) override { return fmt::format("cudaError{}: as scripted", error); }
  CudaError last_error() override {
    record("last_error", "");
    return std::exchange(pending, 0);
  }

  CudaError driver_version(int& version) override {
    return answer("driver_version", "", [&] { version = driver; });
  }
  CudaError device_count(int& count) override {
    return answer("device_count", "", [&] { count = devices; });
  }
  CudaError properties(int device, device::DeviceProperties& properties) override {
    return answer("properties", fmt::to_string(device), [&] {
      const auto found = described.find(device);
      if (found != described.end())
        properties = found->second;
      else
        properties.name = fmt::format("GPU {}", device);
    });
  }
  CudaError attribute(Attribute attribute, int device, int& value) override {
    const auto found = attributes.find({device, attribute});
    return answer(
        "attribute", fmt::format("{} {}", static_cast<int>(attribute), device), [&] { value = found->second; },
        found == attributes.end() ? device::kInvalidValue : 0);
  }
  CudaError host_atomics(int device, std::span<const AtomicOperation> operations, std::span<unsigned> bits) override {
    const auto found = atomics.find(device);
    return answer(
        "host_atomics", fmt::to_string(device),
        [&] {
          for (std::size_t i = 0; i < operations.size(); ++i)
            bits[i] = found->second.at(static_cast<std::size_t>(operations[i]));
        },
        found == atomics.end() ? device::kNotSupported : 0);
  }
  CudaError can_access_peer(int device, int peer, int& can) override {
    return answer("can_access_peer", fmt::format("{} {}", device, peer), [&] {
      const auto found = peers.find({device, peer});
      can = found == peers.end() ? 0 : found->second;
    });
  }
  CudaError set_device(int device) override {
    return answer("set_device", fmt::to_string(device), [] {});
  }
  CudaError yield_in_waits(int device) override {
    return answer("yield_in_waits", fmt::to_string(device), [] {});
  }
  CudaError memory_info(std::size_t&, std::size_t&) override { return unscripted("memory_info"); }

  CudaError host_register(void* address, std::size_t bytes, unsigned flags) override {
    return answer("host_register", fmt::format("{} {} {}", fmt::ptr(address), bytes, flags), [] {});
  }
  CudaError host_unregister(void* address) override {
    return answer("host_unregister", fmt::format("{}", fmt::ptr(address)), [] {});
  }
  CudaError device_address(void* host, void*& device) override {
    const std::uint64_t gaps = region_gap * static_cast<std::uint64_t>(count_of("device_address"));
    return answer("device_address", fmt::format("{}", fmt::ptr(host)), [&] {
      device = reinterpret_cast<void*>(reinterpret_cast<std::uint64_t>(host) + device_offset + gaps);
    });
  }
  CudaError allocate(std::size_t, void*&) override { return unscripted("allocate"); }
  CudaError release(void*) override { return unscripted("release"); }
  CudaError allocate_pinned(std::size_t, void*&) override { return unscripted("allocate_pinned"); }
  CudaError release_pinned(void*) override { return unscripted("release_pinned"); }

  CudaError create_stream(device::Stream&) override { return unscripted("create_stream"); }
  CudaError destroy_stream(device::Stream) override { return unscripted("destroy_stream"); }
  CudaError synchronize(device::Stream) override { return unscripted("synchronize"); }
  CudaError query(device::Stream) override { return unscripted("query"); }
  CudaError create_event(bool, device::Event&) override { return unscripted("create_event"); }
  CudaError destroy_event(device::Event) override { return unscripted("destroy_event"); }
  CudaError record(device::Event, device::Stream) override { return unscripted("record"); }
  CudaError record_in_graph(device::Event, device::Stream) override { return unscripted("record_in_graph"); }
  CudaError query(device::Event) override { return unscripted("query"); }
  CudaError synchronize(device::Event) override { return unscripted("synchronize"); }
  CudaError wait(device::Stream, device::Event) override { return unscripted("wait"); }
  CudaError elapsed_ms(device::Event, device::Event, float&) override { return unscripted("elapsed_ms"); }
  CudaError copy(void*, const void*, std::size_t, device::Stream) override { return unscripted("copy"); }
  CudaError copy_batch(std::span<void* const>, std::span<const void* const>, std::span<const std::size_t>,
                       device::Stream) override {
    return unscripted("copy_batch");
  }
  bool can_wait_value() override { return has_wait_value; }
  CudaError wait_value(device::Stream, void*, std::uint32_t) override { return unscripted("wait_value"); }
  CudaError begin_capture(device::Stream) override { return unscripted("begin_capture"); }
  CudaError end_capture(device::Stream, device::Graph&, std::size_t&) override { return unscripted("end_capture"); }
  CudaError launch(device::Graph, device::Stream) override { return unscripted("launch"); }
  CudaError destroy_graph(device::Graph) override { return unscripted("destroy_graph"); }

 private:
  void record(const std::string& function, const std::string& arguments) {
    calls.push_back(arguments.empty() ? function : function + " " + arguments);
    ++made_[function];
  }

  template <class Use>
  CudaError answer(const std::string& function, const std::string& arguments, Use&& use, CudaError otherwise = 0) {
    record(function, arguments);
    const auto failure = failures_.find({function, made_[function]});
    const CudaError error = failure != failures_.end() ? failure->second : otherwise;
    if (error == 0)
      use();
    else
      pending = error;  // as the runtime keeps it
    return error;
  }

  CudaError unscripted(const std::string& function) {
    return answer(
        function, "", [] {}, device::kInvalidValue);
  }

  std::map<std::pair<std::string, int>, CudaError> failures_;
  std::map<std::string, int> made_;
};

}  // namespace ps_shm::test
