// The launchers of the transfer kernels, which the C++ side calls. They are described in
// src/device/transfer_kernels.hpp.
//
// All enqueue work on the stream and return whether that succeeded. With empty input they enqueue nothing and succeed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "rows.hpp"
#include "transfers.hpp"

namespace ps_shm::kernels {

// Loads all kernels of the program or library that contains this function.
cudaError_t load_all();

cudaError_t pull_pieces(const PulledPiece* pieces, std::uint32_t count, std::uint64_t* results, ChunkFormat format,
                        cudaStream_t stream);
cudaError_t send_pieces(const SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived, bool as_bfloat16,
                        const std::uint32_t* gate, std::uint32_t senders, cudaStream_t stream);
cudaError_t add_pieces(const AddedPiece* pieces, std::uint32_t count, float scale, float clip_value, bool wide,
                       cudaStream_t stream);
cudaError_t pull_rows(const RowTable& table, const RowIds& ids, float* out, std::uint64_t* outside,
                      cudaStream_t stream);
cudaError_t pull_keys(const KeyTable& table, const RowIds& keys, float* out, bool* found, KeyPlace* places,
                      std::uint64_t* undecided, cudaStream_t stream);
cudaError_t put_rows(const DecidedRows& rows, float* out, bool* found, cudaStream_t stream);
cudaError_t sort_rows_temp_bytes(std::uint64_t most, std::size_t& bytes);
cudaError_t sort_rows(const RowIds& ids, std::uint64_t rows, const RowSort& to, std::uint64_t* outside,
                      cudaStream_t stream);
cudaError_t send_rows(const RowSort& rows, std::uint64_t count, const float* gradients, std::uint32_t elements,
                      std::uint32_t piece_rows, std::uint64_t* ids, float* sums, std::uint32_t* arrived,
                      cudaStream_t stream);

}  // namespace ps_shm::kernels
