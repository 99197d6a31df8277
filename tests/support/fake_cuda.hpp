// CUDA without a GPU: the calls are executed by one thread per stream, in stream order, on this process's memory; the
// kernels are the real ones, run by cuda_on_cpu/.
//
// It is stricter than a device. If the processor can protect memory per thread, a device address is valid only in the
// threads of the streams, so host code that dereferences one crashes. All allocations and registered regions are
// separated by inaccessible pages: a kernel that leaves its memory, or writes to memory that was registered for
// reading, crashes, and a copy that does so ends the stream with cudaErrorIllegalAddress. What may wait for all work on
// a device does so: to allocate, release, register and unregister memory, and to launch a kernel that was not loaded
// before. If a stream stands at a word meanwhile, which the caller may have to store, that is a fault after 5 s.
//
// So it stands for one process: workers whose streams wait for words have one each.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda_calls.hpp"
#include "device/transfer_kernels.hpp"
#include "support/cuda_on_cpu/tables.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps_shm::test {

inline constexpr device::CudaError kIllegalAddress = 700, kCaptureUnsupported = 900, kCaptureInvalidated = 901;

struct FakeBox {
  const char* name = "Fake GPU";
  bool is_simulated = false;  // for programs: they report it, and the log does not grow
  int devices = 1;
  bool native_atomics = false;  // to host memory, for all atomics
  bool read_only_registration = true;
  bool host_page_tables = false;  // the GPU uses the CPUs', as over NVLink C2C
  bool host_register = true;
  bool copy_batches = true;  // CUDA 12.8 and later
  bool stream_waits = true;
  bool refuses_waits = false;                       // the call for waits exists, and refuses
  std::size_t memory_bytes = std::size_t{1} << 30;  // of each device
};

class FakeCuda : public device::CudaCalls {
 public:
  explicit FakeCuda(const FakeBox& box = {});
  ~FakeCuda() override;

  // The n-th use of the call from now on (0: the next) returns this error and does nothing else.
  void fail(const std::string& call, int n, device::CudaError error);
  // Every operation enqueued from now on ends its stream with this error.
  void break_device(device::CudaError error);
  // Called on the stream's thread: before each copy, with its number; between the copy of a pulled chunk and the check
  // of its stamp, with the chunk's number; and before a sent chunk, which has arrived by then, is reported.
  std::function<void(std::size_t)> before_copy, during_pull, before_report;
  on_cpu::Watcher during_keys;  // sees each access to a table by key before it is made

  std::vector<std::string> calls() const;  // all calls so far, with arguments: "host_register 1073741824 3"
  std::size_t count(const std::string& call) const;
  std::vector<std::string> faults() const;  // accesses outside of existing memory
  std::size_t live_allocations() const;     // allocations, pinned memory, registrations, streams, events, graphs
  std::size_t bytes_to_host() const;        // by copies and transfer kernels so far

  bool is_built() const override { return true; }
  bool is_simulated() const override { return box_.is_simulated; }
  int built_for() const override { return 13000; }
  std::string error_text(device::CudaError error) override;
  device::CudaError last_error() override;
  bool can_wait_value() override { return box_.stream_waits; }
  device::CudaError driver_version(int& version) override;
  device::CudaError device_count(int& count) override;
  device::CudaError properties(int device, device::DeviceProperties& properties) override;
  device::CudaError attribute(device::Attribute attribute, int device, int& value) override;
  device::CudaError host_atomics(int device, std::span<const device::AtomicOperation> operations,
                                 std::span<unsigned> bits) override;
  device::CudaError can_access_peer(int device, int peer, int& can) override;
  device::CudaError set_device(int device) override;
  device::CudaError yield_in_waits(int device) override;
  device::CudaError memory_info(std::size_t& free_bytes, std::size_t& total_bytes) override;
  device::CudaError host_register(void* address, std::size_t bytes, unsigned flags) override;
  device::CudaError host_unregister(void* address) override;
  device::CudaError device_address(void* host, void*& device) override;
  device::CudaError allocate(std::size_t bytes, void*& device) override;
  device::CudaError release(void* device) override;
  device::CudaError allocate_pinned(std::size_t bytes, void*& host) override;
  device::CudaError release_pinned(void* host) override;
  device::CudaError create_stream(device::Stream& stream) override;
  device::CudaError destroy_stream(device::Stream stream) override;
  device::CudaError synchronize(device::Stream stream) override;
  device::CudaError query(device::Stream stream) override;
  device::CudaError create_event(bool keeps_time, device::Event& event) override;
  device::CudaError destroy_event(device::Event event) override;
  device::CudaError record(device::Event event, device::Stream stream) override;
  device::CudaError record_in_graph(device::Event event, device::Stream stream) override;
  device::CudaError query(device::Event event) override;
  device::CudaError synchronize(device::Event event) override;
  device::CudaError wait(device::Stream stream, device::Event event) override;
  device::CudaError elapsed_ms(device::Event begin, device::Event end, float& milliseconds) override;
  device::CudaError copy(void* to, const void* from, std::size_t bytes, device::Stream stream) override;
  device::CudaError copy_batch(std::span<void* const> to, std::span<const void* const> from,
                               std::span<const std::size_t> bytes, device::Stream stream) override;
  device::CudaError wait_value(device::Stream stream, void* device_word, std::uint32_t value) override;
  device::CudaError begin_capture(device::Stream stream) override;
  device::CudaError end_capture(device::Stream stream, device::Graph& graph, std::size_t& operations) override;
  device::CudaError launch(device::Graph graph, device::Stream stream) override;
  device::CudaError destroy_graph(device::Graph graph) override;

  // For the tables of kernels. Enqueued work throws CudaError numbers.
  using Work = std::function<void()>;
  device::CudaError enqueue(device::Stream stream, Work work);
  void note_sent(std::size_t bytes);
  void note_loaded(const void* kernel);
  void before_launch(const void* kernel);  // the first launch of one that was not loaded: "first_launch" in calls()
  device::CudaError enter(const std::string& call, const std::string& arguments = {});  // logs, injects failures

 private:
  struct FakeStream;
  struct FakeEvent;
  struct FakeGraph;
  struct Range {
    std::byte* device = nullptr;
    std::byte* host = nullptr;  // nullptr: the device's own memory
    std::size_t bytes = 0;
    bool is_pinned = false, is_read_only = false;
  };

  static FakeStream& of(device::Stream stream);
  const Range* find(const void* device) const;
  // Throws kIllegalAddress for a device address if the bytes do not all exist, or must not be written.
  void look_up(const void* address, std::size_t bytes, bool writes);
  device::CudaError status_of(FakeStream& stream);
  bool is_pinned_or_registered(const void* host) const;
  void wait_for_all(const char* call);
  void wait_for(FakeStream& stream, const char* call);
  void move(void* to, const void* from, std::size_t bytes);

  const FakeBox box_;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_, faults_;
  std::multimap<std::string, std::pair<int, device::CudaError>> failures_;
  device::CudaError broken_ = 0, pending_ = 0;
  std::vector<Range> ranges_;
  std::vector<std::shared_ptr<FakeStream>> streams_;  // shared: another thread may wait for one that is ending
  std::vector<std::unique_ptr<FakeEvent>> events_;
  std::vector<std::unique_ptr<FakeGraph>> graphs_;
  std::size_t copies_ = 0, to_host_ = 0;
  std::set<const void*> loaded_;
};

// The real kernels on the CPU, with calls that are logged and can fail.
class FakeKernels : public device::TransferKernels {
 public:
  explicit FakeKernels(FakeCuda& cuda) : cuda_(cuda) {}

  device::CudaError load() override;

  device::CudaError pull_pieces(const kernels::PulledPiece* pieces, std::uint32_t count, std::uint64_t* results,
                                kernels::ChunkFormat format, device::Stream stream) override;
  device::CudaError send_pieces(const kernels::SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived,
                                bool as_bfloat16, const std::uint32_t* gate, std::uint32_t senders,
                                device::Stream stream) override;
  device::CudaError add_pieces(const kernels::AddedPiece* pieces, std::uint32_t count, float scale, float clip_value,
                               bool wide, device::Stream stream) override;
  device::CudaError pull_rows(const kernels::RowTable& table, const kernels::RowIds& ids, float* out,
                              std::uint64_t* outside, device::Stream stream) override;
  device::CudaError pull_keys(const kernels::KeyTable& table, const kernels::RowIds& keys, float* out, bool* found,
                              kernels::KeyPlace* places, std::uint64_t* undecided, device::Stream stream) override;
  device::CudaError put_rows(const kernels::DecidedRows& rows, float* out, bool* found, device::Stream stream) override;
  device::CudaError sort_rows_temp_bytes(std::uint64_t most, std::size_t& bytes) override;
  device::CudaError sort_rows(const kernels::RowIds& ids, std::uint64_t rows, const kernels::RowSort& to,
                              std::uint64_t* outside, device::Stream stream) override;
  device::CudaError send_rows(const kernels::RowSort& rows, std::uint64_t count, const float* gradients,
                              std::uint32_t elements, std::uint32_t piece_rows, std::uint64_t* ids, float* sums,
                              std::uint32_t* arrived, device::Stream stream) override;

 private:
  // Launches unless the call is to fail, with a watcher if one is set.
  device::CudaError run(const std::string& call, device::Stream stream, on_cpu::Watcher watcher,
                        const std::function<device::CudaError()>& launch);

  FakeCuda& cuda_;
  device::TransferKernels& real_ = on_cpu::transfer_kernels();
};

class FakeModelKernels : public train::ModelKernels {
 public:
  explicit FakeModelKernels(FakeCuda& cuda) : cuda_(cuda) {}

  device::CudaError load() override;

  void prepare_products(device::Stream stream) override;
  void release_products(device::Stream stream) override;
  device::CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, const float* b,
                             float beta, float* out, device::Stream stream) override;
  device::CudaError bias_relu(float* values, const float* bias, int rows, int columns, device::Stream stream) override;
  device::CudaError relu_gradient(float* gradient, const float* activations, int rows, int columns,
                                  float* bias_gradient, device::Stream stream) override;
  device::CudaError softmax_cross_entropy(float* logits, const float* bias, const std::uint8_t* labels, int rows,
                                          int columns, float* loss, float* bias_gradient,
                                          device::Stream stream) override;
  device::CudaError gather_rows(const float* set, const std::uint8_t* set_labels, const std::uint32_t* indices,
                                int rows, int columns, float* out, std::uint8_t* labels,
                                device::Stream stream) override;
  device::CudaError sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                             float weight_decay, float clip_value, device::Stream stream) override;
  device::CudaError difference(const float* a, const float* b, float factor, float* out, std::size_t count,
                               device::Stream stream) override;
  device::CudaError fill(float* values, float value, std::size_t count, device::Stream stream) override;
  device::CudaError sparse_gradient(const kernels::SparseForm& form, const kernels::SparseBatch& batch,
                                    const float* rows, float* gradients, float* losses, device::Stream stream) override;

 private:
  FakeCuda& cuda_;
  train::ModelKernels& real_ = on_cpu::model_kernels();
};

}  // namespace ps_shm::test
