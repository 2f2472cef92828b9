// The loops that a machine's limits are measured with: reading as fast as it goes, and multiplying as fast as it goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/base/thread_pool.h"

namespace fastpaged {

// Sums a matrix product in registers, step by step, as the inner loop of a linear layer does. In a step, `rows` rows of
// `depth` elements meet `columns` columns: 2 rows columns depth flops.
struct MatrixKernel {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  std::int64_t element_bytes = 0;  // of what it multiplies, bfloat16 or float32
  // With operands that stay in registers. Returns something of the sums, so that no compiler leaves them out.
  float (*in_registers)(std::int64_t num_steps) = nullptr;
  // sums [rows][columns] of float32 += the steps of x, [num_steps] blocks of rows x depth, times those of weight,
  // [num_steps] blocks of columns x depth: each block in the order that suits the instruction.
  void (*from_cache)(const std::byte* x, const std::byte* weight, std::int64_t num_steps, float* sums) = nullptr;

  [[nodiscard]] std::int64_t flops_per_step() const { return 2 * rows * columns * depth; }
  [[nodiscard]] std::int64_t x_bytes_per_step() const { return rows * depth * element_bytes; }
  [[nodiscard]] std::int64_t weight_bytes_per_step() const { return columns * depth * element_bytes; }
};

// Reads `num_bytes` bytes, a multiple of kReadStep, in four streams; returns their sum as float32 numbers.
constexpr std::int64_t kReadStep = 256;
using ReadKernel = float (*)(const std::byte* data, std::int64_t num_bytes);

// What one op table could reach.
struct MachineKernels {
  const char* isa;
  ReadKernel read;
  MatrixKernel float32;
  MatrixKernel bfloat16;  // the same as float32 where the instruction set widens bfloat16 to that

  [[nodiscard]] bool has_bfloat16() const { return bfloat16.in_registers != float32.in_registers; }
};

// Of the table called `isa`; amx_emulated has those of avx512, which carries its tiles out. Throws
// std::invalid_argument, as op_table() does, for one that is unknown or that this CPU cannot run.
MachineKernels machine_kernels(std::string_view isa);

struct Measurement {
  double amount = 0.0;  // bytes or flops
  double seconds = 0.0;
};

// Reads pieces of piece_bytes, each num_passes times by one thread, until `buffer` is read. Claimed as tiles are: one
// piece a thread measures caches, many small ones memory. REQUIRES: piece_bytes and num_passes >= 1.
Measurement measure_read(const MachineKernels& kernels, std::span<const std::byte> buffer, std::int64_t piece_bytes,
                         std::int64_t num_passes, ThreadPool& pool);

// Every thread multiplies, num_passes times: in registers, or with weights that stream from a cache.
class MatrixProbe {
 public:
  // weight_bytes: about how many each thread has; 0: operands stay in registers.
  MatrixProbe(const MatrixKernel& kernel, std::int64_t weight_bytes, ThreadPool& pool);
  Measurement measure(std::int64_t num_passes);  // REQUIRES: num_passes >= 1

 private:
  static constexpr std::int64_t kDepth = 512;  // of a pass in from_cache: x stays in the smallest cache
  static constexpr std::int64_t kStepsInRegisters = 4096;

  MatrixKernel kernel_;
  ThreadPool* pool_;
  std::int64_t steps_ = 0;       // of one block of weights
  std::int64_t num_blocks_ = 0;  // of weights
  struct alignas(64) Line {
    std::uint32_t words[16];
  };
  std::vector<Line> operands_;  // of each thread: sums, x, weights
  std::int64_t lines_per_thread_ = 0;
};

}  // namespace fastpaged
