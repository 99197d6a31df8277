#include "train/gpu/products.hpp"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "train/gpu/python_libraries.hpp"

namespace ps_shm::train {
namespace {

using device::CudaError;
using device::Stream;

// cuBLAS's recommendation for GPUs of compute capability 9.0; others need less.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// The functions used, with the types of the header.
struct Cublas {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&cublasSetMathMode) set_math_mode = nullptr;
  decltype(&cublasSetAtomicsMode) set_atomics_mode = nullptr;
  decltype(&cublasGetStatusString) text = nullptr;
  decltype(&cublasSgemm_v2) sgemm = nullptr;
};

template <class Function>
void find(void* library, const std::string& file, const char* name, Function& function) {
  void* found = dlsym(library, name);
  if (found == nullptr)
    throw Error(fmt::format("cannot use {}: it lacks {}; install cuBLAS {} or newer for matrix products on the GPU",
                            file, name, CUBLAS_VER_MAJOR),
                ErrorCode::kDevice);
  function = reinterpret_cast<Function>(found);
}

// The functions above are the same in all versions since this one, and a stream is the driver's in all of them.
constexpr int kOldestCublas = 12;

// Never unloaded: it may have threads and handlers of its own.
Cublas load() {
  std::string file, why;
  void* library = nullptr;
  std::vector<std::string> names;
  for (int version = CUBLAS_VER_MAJOR; version >= kOldestCublas; --version) {
    const std::string wanted = fmt::format("libcublas.so.{}", version);
    names.push_back(wanted);
    for (std::string& path : libraries_of_python_packages(wanted)) names.push_back(std::move(path));
  }
  names.push_back("libcublas.so");
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      file = name;
      break;
    }
    if (why.empty()) why = dlerror();
  }
  if (library == nullptr)
    throw Error(
        fmt::format(
            "cannot load cuBLAS for matrix products on the GPU: {}; install libcublas of CUDA {} and add its folder to "
            "LD_LIBRARY_PATH or /etc/ld.so.conf.d",
            why, CUBLAS_VER_MAJOR),
        ErrorCode::kDevice);
  Cublas cublas;
  find(library, file, "cublasCreate_v2", cublas.create);
  find(library, file, "cublasDestroy_v2", cublas.destroy);
  find(library, file, "cublasSetStream_v2", cublas.set_stream);
  find(library, file, "cublasSetWorkspace_v2", cublas.set_workspace);
  find(library, file, "cublasSetMathMode", cublas.set_math_mode);
  find(library, file, "cublasSetAtomicsMode", cublas.set_atomics_mode);
  find(library, file, "cublasGetStatusString", cublas.text);
  find(library, file, "cublasSgemm_v2", cublas.sgemm);
  return cublas;
}

const Cublas& cublas() {
  static const Cublas loaded = load();  // if it throws, the next call tries again
  return loaded;
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that it is not reported elsewhere
  throw Error(fmt::format("cannot prepare matrix products on the GPU: {}: {}: {}", what, cudaGetErrorName(error),
                          cudaGetErrorString(error)),
              ErrorCode::kDevice);
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(fmt::format("cannot prepare matrix products on the GPU: {}: {}", what, cublas().text(status)),
                ErrorCode::kDevice);
}

// The handle and workspace of one stream.
class Prepared {
 public:
  explicit Prepared(cudaStream_t stream) {
    try {
      check(cudaMalloc(&workspace_, kWorkspaceBytes), "cudaMalloc of cuBLAS's workspace");
      check(cublas().create(&handle_), "cublasCreate");
      check(cublas().set_stream(handle_, stream), "cublasSetStream");
      check(cublas().set_workspace(handle_, workspace_, kWorkspaceBytes), "cublasSetWorkspace");  // after the stream
      check(cublas().set_math_mode(handle_, CUBLAS_DEFAULT_MATH), "cublasSetMathMode");           // float32, no TF32
      check(cublas().set_atomics_mode(handle_, CUBLAS_ATOMICS_NOT_ALLOWED), "cublasSetAtomicsMode");
    } catch (...) {
      release();
      throw;
    }
  }
  ~Prepared() { release(); }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  cublasHandle_t handle() const { return handle_; }

 private:
  void release() noexcept {
    if (handle_ != nullptr) cublas().destroy(handle_);
    if (workspace_ != nullptr) cudaFree(workspace_);
  }

  void* workspace_ = nullptr;
  cublasHandle_t handle_ = nullptr;
};

std::mutex mutex;
std::map<Stream, std::unique_ptr<Prepared>>& prepared() {
  static auto* all = new std::map<Stream, std::unique_ptr<Prepared>>;  // never destroyed: CUDA may end before
  return *all;
}

CudaError error_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return device::kSuccess;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return device::kOutOfMemory;
    case CUBLAS_STATUS_INVALID_VALUE:
      return device::kInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return device::kNotSupported;
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return cudaErrorInitializationError;
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return cudaErrorNoKernelImageForDevice;
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return cudaErrorLaunchFailure;
    default:
      return cudaErrorUnknown;
  }
}

}  // namespace

void prepare_products(Stream stream) {
  cublas();
  const std::lock_guard lock(mutex);
  auto& entry = prepared()[stream];
  if (entry != nullptr) return;
  try {
    entry = std::make_unique<Prepared>(reinterpret_cast<cudaStream_t>(stream));
  } catch (...) {
    prepared().erase(stream);
    throw;
  }
}

void release_products(Stream stream) {
  const std::lock_guard lock(mutex);
  prepared().erase(stream);
}

CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, const float* b,
                   float beta, float* out, Stream stream) {
  if (m == 0 || n == 0) return device::kSuccess;
  // An empty sum, for which cuBLAS's manual defines no behaviour.
  if (k == 0 && beta == 1.0F) return device::kSuccess;
  if (k == 0 && beta == 0.0F)
    return cudaMemsetAsync(out, 0,
                           std::size_t{sizeof(float)} * static_cast<std::size_t>(m) * static_cast<std::size_t>(n),
                           reinterpret_cast<cudaStream_t>(stream));
  cublasHandle_t handle = nullptr;
  {
    const std::lock_guard lock(mutex);
    const auto found = prepared().find(stream);
    if (found == prepared().end()) return device::kInvalidValue;
    handle = found->second->handle();
  }
  // cuBLAS is column-major, so it sees the transposed matrices: out' = op(b)' op(a)'.
  const float one = 1.0F;
  return error_of(cublas().sgemm(
      handle, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one, b,
      std::max(1, b_transposed ? k : n), a, std::max(1, a_transposed ? m : k), &beta, out, n));
}

}  // namespace ps_shm::train
