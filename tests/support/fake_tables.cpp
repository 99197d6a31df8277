// Both tables of kernels: calls that a test has told to fail do so, all others are launched as src/ launches them.
#include "support/fake_cuda.hpp"

namespace ps_shm::test {

using namespace device;
using on_cpu::Access;
using on_cpu::Noted;

namespace {

// For chunks that kernels report by a release to arrived[number].
on_cpu::Watcher reporting(const std::function<void(std::size_t)>& before, const std::uint32_t* arrived) {
  if (!before) return {};
  return [&before, arrived](const Noted& noted) {
    if (noted.access == Access::kStoreRelease)
      before(static_cast<std::size_t>(static_cast<const std::uint32_t*>(noted.address) - arrived));
  };
}

CudaError load_all(FakeCuda& cuda, auto& real) {
  if (const CudaError error = cuda.enter("load")) return error;
  on_cpu::watch_loads([&](const void* kernel) { cuda.note_loaded(kernel); });
  const CudaError error = real.load();
  on_cpu::watch_loads({});
  return error;
}

}  // namespace

CudaError FakeKernels::load() { return load_all(cuda_, real_); }
CudaError FakeModelKernels::load() { return load_all(cuda_, real_); }

CudaError FakeKernels::run(const std::string& call, Stream stream, on_cpu::Watcher watcher,
                           const std::function<CudaError()>& launch) {
  if (const CudaError error = cuda_.enter(call)) return error;
  if (!watcher) return launch();
  if (const CudaError error = cuda_.enqueue(stream, [watcher] { on_cpu::watch(watcher); })) return error;
  const CudaError error = launch();
  const CudaError end = cuda_.enqueue(stream, [] { on_cpu::watch({}); });
  return error != kSuccess ? error : end;
}

CudaError FakeKernels::pull_pieces(const kernels::PulledPiece* pieces, std::uint32_t count, std::uint64_t* results,
                                   kernels::ChunkFormat format, Stream stream) {
  on_cpu::Watcher watcher;
  if (cuda_.during_pull)
    watcher = [this](const Noted& noted) {  // the only relaxed load of eight bytes is that of a stamp
      if (noted.access == Access::kLoad && noted.bytes == sizeof(std::uint64_t)) cuda_.during_pull(noted.block);
    };
  return run("pull_pieces", stream, watcher, [&] { return real_.pull_pieces(pieces, count, results, format, stream); });
}

CudaError FakeKernels::send_pieces(const kernels::SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived,
                                   bool as_bfloat16, const std::uint32_t* gate, std::uint32_t senders,
                                   Stream stream) {
  return run("send_pieces", stream, reporting(cuda_.before_report, arrived), [&] {
    const CudaError error = cuda_.enqueue(stream, [=, this] {
      for (std::uint32_t i = 0; i < count; ++i)
        cuda_.note_sent(pieces[i].count * (as_bfloat16 ? sizeof(std::uint16_t) : sizeof(float)));
    });
    return error != kSuccess ? error : real_.send_pieces(pieces, count, arrived, as_bfloat16, gate, senders, stream);
  });
}


CudaError FakeKernels::add_pieces(const kernels::AddedPiece* pieces, std::uint32_t count, float scale, float clip_value,
                                  bool wide, Stream stream) {
  return run("add_pieces", stream, {},
             [&] { return real_.add_pieces(pieces, count, scale, clip_value, wide, stream); });
}

CudaError FakeKernels::pull_rows(const kernels::RowTable& table, const kernels::RowIds& ids, float* out,
                                 std::uint64_t* outside, Stream stream) {
  return run("pull_rows", stream, {}, [&] { return real_.pull_rows(table, ids, out, outside, stream); });
}

CudaError FakeKernels::pull_keys(const kernels::KeyTable& table, const kernels::RowIds& keys, float* out, bool* found,
                                 kernels::KeyPlace* places, std::uint64_t* undecided, Stream stream) {
  return run("pull_keys", stream, cuda_.during_keys,
             [&] { return real_.pull_keys(table, keys, out, found, places, undecided, stream); });
}

CudaError FakeKernels::put_rows(const kernels::DecidedRows& rows, float* out, bool* found, Stream stream) {
  return run("put_rows", stream, {}, [&] { return real_.put_rows(rows, out, found, stream); });
}

CudaError FakeKernels::sort_rows_temp_bytes(std::uint64_t most, std::size_t& bytes) {
  if (const CudaError error = cuda_.enter("sort_rows_temp_bytes")) return error;
  return real_.sort_rows_temp_bytes(most, bytes);
}

CudaError FakeKernels::sort_rows(const kernels::RowIds& ids, std::uint64_t rows, const kernels::RowSort& to,
                                 std::uint64_t* outside, Stream stream) {
  return run("sort_rows", stream, {}, [&] { return real_.sort_rows(ids, rows, to, outside, stream); });
}

CudaError FakeKernels::send_rows(const kernels::RowSort& rows, std::uint64_t count, const float* gradients,
                                 std::uint32_t elements, std::uint32_t piece_rows, std::uint64_t* ids, float* sums,
                                 std::uint32_t* arrived, Stream stream) {
  return run("send_rows", stream, reporting(cuda_.before_report, arrived), [&] {
    const CudaError error = cuda_.enqueue(stream, [=, this] {
      if (count != 0) cuda_.note_sent(*rows.distinct * (elements * sizeof(float) + sizeof(std::uint64_t)));
    });
    return error != kSuccess
               ? error
               : real_.send_rows(rows, count, gradients, elements, piece_rows, ids, sums, arrived, stream);
  });
}

void FakeModelKernels::prepare_products(Stream stream) { real_.prepare_products(stream); }
void FakeModelKernels::release_products(Stream stream) { real_.release_products(stream); }

CudaError FakeModelKernels::multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a,
                                     const float* b, float beta, float* out, Stream stream) {
  if (const CudaError error = cuda_.enter("multiply")) return error;
  return real_.multiply(a_transposed, b_transposed, m, n, k, a, b, beta, out, stream);
}

CudaError FakeModelKernels::bias_relu(float* values, const float* bias, int rows, int columns, Stream stream) {
  if (const CudaError error = cuda_.enter("bias_relu")) return error;
  return real_.bias_relu(values, bias, rows, columns, stream);
}

CudaError FakeModelKernels::relu_gradient(float* gradient, const float* activations, int rows, int columns,
                                          float* bias_gradient, Stream stream) {
  if (const CudaError error = cuda_.enter("relu_gradient")) return error;
  return real_.relu_gradient(gradient, activations, rows, columns, bias_gradient, stream);
}

CudaError FakeModelKernels::softmax_cross_entropy(float* logits, const float* bias, const std::uint8_t* labels,
                                                  int rows, int columns, float* loss, float* bias_gradient,
                                                  Stream stream) {
  if (const CudaError error = cuda_.enter("softmax_cross_entropy")) return error;
  return real_.softmax_cross_entropy(logits, bias, labels, rows, columns, loss, bias_gradient, stream);
}

CudaError FakeModelKernels::gather_rows(const float* set, const std::uint8_t* set_labels, const std::uint32_t* indices,
                                        int rows, int columns, float* out, std::uint8_t* labels, Stream stream) {
  if (const CudaError error = cuda_.enter("gather_rows")) return error;
  return real_.gather_rows(set, set_labels, indices, rows, columns, out, labels, stream);
}

CudaError FakeModelKernels::sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                                     float weight_decay, float clip_value, Stream stream) {
  if (const CudaError error = cuda_.enter("sgd_step")) return error;
  return real_.sgd_step(parameters, gradient, count, rate, l2, weight_decay, clip_value, stream);
}

CudaError FakeModelKernels::difference(const float* a, const float* b, float factor, float* out, std::size_t count,
                                       Stream stream) {
  if (const CudaError error = cuda_.enter("difference")) return error;
  return real_.difference(a, b, factor, out, count, stream);
}

CudaError FakeModelKernels::fill(float* values, float value, std::size_t count, Stream stream) {
  if (const CudaError error = cuda_.enter("fill")) return error;
  return real_.fill(values, value, count, stream);
}

CudaError FakeModelKernels::sparse_gradient(const kernels::SparseForm& form, const kernels::SparseBatch& batch,
                                            const float* rows, float* gradients, float* losses, Stream stream) {
  if (const CudaError error = cuda_.enter("sparse_gradient")) return error;
  return real_.sparse_gradient(form, batch, rows, gradients, losses, stream);
}

}  // namespace ps_shm::test
