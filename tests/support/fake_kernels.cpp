// The kernels as plain loops.
#include <cblas.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "shm/atomic.hpp"
#include "shm/inplace_slot.hpp"
#include "shm/racing.hpp"
#include "support/fake_cuda.hpp"
#include "update/rules.hpp"

namespace ps::test {

using namespace device;

namespace {

template <class T>
shm::AtomicShm<T>& shared(std::byte* place) {
  return *reinterpret_cast<shm::AtomicShm<T>*>(place);
}

std::uint16_t rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::size_t product(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

}  // namespace

CudaError FakeKernels::run(const std::string& call, Stream stream, FakeCuda::Work work) {
  if (const CudaError error = cuda_.enter(call)) return error;
  return cuda_.enqueue(stream, std::move(work));
}

CudaError FakeKernels::pull_pieces(const kernels::PulledPiece* pieces, std::uint32_t count, std::uint64_t* results,
                                   kernels::ChunkFormat format, Stream stream) {
  return run("pull_pieces", stream, [=, this] {
    const auto pull = [&](const kernels::PulledPiece& piece, std::size_t number) {
      auto& word = shared<std::uint64_t>(cuda_.at(piece.word, sizeof(std::uint64_t), false));
      if (piece.elements != nullptr) {
        const std::uint64_t pushed = word.load_acquire();
        shm::racing_copy(cuda_.out(piece.out, piece.count), cuda_.in(piece.elements, piece.count), piece.count);
        return pushed;
      }
      for (int attempt = 0; attempt < kernels::kPullAttempts; ++attempt) {
        const std::uint64_t now = word.load_acquire(), version = now >> format.buffer_bits;
        const std::uint64_t offset = (now & ((std::uint64_t{1} << format.buffer_bits) - 1)) << piece.buffer_class;
        const std::size_t bytes = format.header_bytes + piece.count * sizeof(float);
        if (offset + bytes > piece.shard_bytes) break;
        const std::uint64_t region = *cuda_.in(piece.regions + (offset >> format.region_bits), 1);
        std::byte* buffer = cuda_.at(
            reinterpret_cast<void*>(region + (offset & ((std::uint64_t{1} << format.region_bits) - 1))), bytes, false);
        shm::racing_copy(cuda_.out(piece.out, piece.count),
                         reinterpret_cast<const float*>(buffer + format.header_bytes), piece.count);
        if (cuda_.during_pull) cuda_.during_pull(number);
        shm::fence_acquire();
        if (shared<std::uint64_t>(buffer).load_relaxed() == (piece.stamp | version)) return version;
      }
      return kernels::kPullTorn;
    };
    const kernels::PulledPiece* list = cuda_.in(pieces, count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t result = pull(list[i], i);
      cuda_.note_moved(list[i].count * sizeof(float), false);
      shared<std::uint64_t>(cuda_.at(results + i, sizeof(std::uint64_t), true)).store_release(result);
    }
  });
}

CudaError FakeKernels::send_pieces(const kernels::SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived,
                                   bool as_bfloat16, Stream stream) {
  return run("send_pieces", stream, [=, this] {
    const kernels::SentPiece* list = cuda_.in(pieces, count);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (cuda_.before_send) cuda_.before_send(i);
      const float* from = cuda_.in(list[i].from, list[i].count);
      if (as_bfloat16) {
        auto* to = cuda_.out(static_cast<std::uint16_t*>(list[i].to), list[i].count);
        std::transform(from, from + list[i].count, to, rounded);
      } else {
        std::copy_n(from, list[i].count, cuda_.out(static_cast<float*>(list[i].to), list[i].count));
      }
      cuda_.note_moved(list[i].count * (as_bfloat16 ? sizeof(std::uint16_t) : sizeof(float)), true);
      shared<std::uint32_t>(cuda_.at(arrived + i, sizeof(std::uint32_t), true)).store_release(1);
    }
  });
}

CudaError FakeKernels::add_pieces(const kernels::AddedPiece* pieces, std::uint32_t count, float scale, float clip_value,
                                  bool, Stream stream) {
  return run("add_pieces", stream, [=, this] {
    const kernels::AddedPiece* list = cuda_.in(pieces, count);
    for (std::uint32_t i = 0; i < count; ++i)
      shm::update_exact(cuda_.out(list[i].to, list[i].count), cuda_.in(list[i].from, list[i].count), list[i].count,
                        [=](float value, float delta) {
                          return value + scale * (clip_value > 0 ? std::clamp(delta, -clip_value, clip_value) : delta);
                        });
  });
}

void FakeKernels::prepare_products(Stream) {}
void FakeKernels::release_products(Stream) {}

CudaError FakeKernels::multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a,
                                const float* b, float beta, float* out, Stream stream) {
  return run("multiply", stream, [=, this] {
    if (m == 0 || n == 0) return;
    cblas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, m, n,
                k, 1.0F, cuda_.in(a, product(m, k)), a_transposed ? m : k, cuda_.in(b, product(k, n)),
                b_transposed ? k : n, beta, cuda_.out(out, product(m, n)), n);
  });
}

CudaError FakeKernels::bias_relu(float* values, const float* bias, int rows, int columns, Stream stream) {
  return run("bias_relu", stream, [=, this] {
    float* out = cuda_.out(values, product(rows, columns));
    const float* add = cuda_.in(bias, product(1, columns));
    for (int i = 0; i < rows * columns; ++i) {
      const float value = out[i] + add[i % columns];
      out[i] = value < 0 ? 0.0F : value;
    }
  });
}

CudaError FakeKernels::add_bias(float* values, const float* bias, int rows, int columns, Stream stream) {
  return run("add_bias", stream, [=, this] {
    float* out = cuda_.out(values, product(rows, columns));
    const float* add = cuda_.in(bias, product(1, columns));
    for (int i = 0; i < rows * columns; ++i) out[i] += add[i % columns];
  });
}

CudaError FakeKernels::relu_gradient(float* gradient, const float* activations, std::size_t count, Stream stream) {
  return run("relu_gradient", stream, [=, this] {
    float* out = cuda_.out(gradient, count);
    const float* in = cuda_.in(activations, count);
    for (std::size_t i = 0; i < count; ++i)
      if (in[i] <= 0) out[i] = 0.0F;
  });
}

CudaError FakeKernels::softmax_cross_entropy(float* logits, const std::uint8_t* labels, int rows, int columns,
                                             float* loss, Stream stream) {
  return run("softmax_cross_entropy", stream, [=, this] {
    if (rows == 0) return;
    float* all = cuda_.out(logits, product(rows, columns));
    const std::uint8_t* label = cuda_.in(labels, product(1, rows));
    double total = 0.0;
    for (int i = 0; i < rows; ++i) {
      float* row = all + product(i, columns);
      const float largest = *std::max_element(row, row + columns);
      const double of_label = double(row[label[i]]) - double(largest);
      double sum = 0.0;
      for (int j = 0; j < columns; ++j) sum += std::exp(double(row[j]) - double(largest));
      for (int j = 0; j < columns; ++j)
        row[j] =
            static_cast<float>((std::exp(double(row[j]) - double(largest)) / sum - (j == label[i] ? 1.0 : 0.0)) / rows);
      total += std::log(sum) - of_label;
    }
    *cuda_.out(loss, 1) = static_cast<float>(total / rows);
  });
}

CudaError FakeKernels::sum_rows(const float* values, int rows, int columns, float* out, Stream stream) {
  return run("sum_rows", stream, [=, this] {
    const float* in = cuda_.in(values, product(rows, columns));
    float* sums = cuda_.out(out, product(1, columns));
    for (int j = 0; j < columns; ++j) {
      double sum = 0.0;
      for (int i = 0; i < rows; ++i) sum += double(in[product(i, columns) + std::size_t(j)]);
      sums[j] = static_cast<float>(sum);
    }
  });
}

CudaError FakeKernels::gather_rows(const float* set, const std::uint8_t* set_labels, const std::uint32_t* indices,
                                   int rows, int columns, float* out, std::uint8_t* labels, Stream stream) {
  return run("gather_rows", stream, [=, this] {
    const std::uint32_t* which = cuda_.in(indices, product(1, rows));
    float* images = cuda_.out(out, product(rows, columns));
    std::uint8_t* label = cuda_.out(labels, product(1, rows));
    for (int i = 0; i < rows; ++i) {
      const std::size_t row = which[i], width = product(1, columns);
      std::copy_n(cuda_.in(set + row * width, width), width, images + std::size_t(i) * width);
      label[i] = *cuda_.in(set_labels + row, 1);
    }
  });
}

CudaError FakeKernels::sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                                float weight_decay, float clip_value, Stream stream) {
  return run("sgd_step", stream, [=, this] {
    float* values = cuda_.out(parameters, count);
    const float* in = cuda_.in(gradient, count);
    update::Settings settings;
    settings.l2 = l2;
    settings.weight_decay = weight_decay;
    settings.clip_value = clip_value;
    const std::vector<float> before(values, values + count);
    update::apply(settings, {rate, 0}, values, before.data(), 0, in, 1.0F, count);
  });
}

CudaError FakeKernels::difference(const float* a, const float* b, float factor, float* out, std::size_t count,
                                  Stream stream) {
  return run("difference", stream, [=, this] {
    const float *left = cuda_.in(a, count), *right = cuda_.in(b, count);
    float* to = cuda_.out(out, count);
    for (std::size_t i = 0; i < count; ++i) to[i] = factor * (left[i] - right[i]);
  });
}

CudaError FakeKernels::fill(float* values, float value, std::size_t count, Stream stream) {
  return run("fill", stream, [=, this] { std::fill_n(cuda_.out(values, count), count, value); });
}

}  // namespace ps::test
