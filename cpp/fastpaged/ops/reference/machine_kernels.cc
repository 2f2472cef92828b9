#include "fastpaged/ops/reference/machine_kernels.h"

#include <cstring>

namespace fastpaged::reference {
namespace {

constexpr std::int64_t kRows = 4;
constexpr std::int64_t kColumns = 8;

float read(const std::byte* data, std::int64_t num_bytes) {
  constexpr std::int64_t kSums = kReadStep / 4;
  float sums[kSums] = {};
  for (std::int64_t offset = 0; offset < num_bytes; offset += kReadStep) {
    float values[kSums];
    std::memcpy(values, data + offset, sizeof(values));
    for (std::int64_t i = 0; i < kSums; ++i) {
      sums[i] += values[i];
    }
  }
  float sum = 0.0F;
  for (const float part : sums) {
    sum += part;
  }
  return sum;
}

void multiply_step(const float (&x)[kRows], const float (&weight)[kColumns], float (&sums)[kRows][kColumns]) {
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kColumns; ++c) {
      sums[r][c] += x[r] * weight[c];
    }
  }
}

float multiply_in_registers(std::int64_t num_steps) {
  float sums[kRows][kColumns] = {};
  const float x[kRows] = {1.0F, 2.0F, 3.0F, 4.0F};
  const float weight[kColumns] = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F, 8.0F};
  for (std::int64_t step = 0; step < num_steps; ++step) {
    multiply_step(x, weight, sums);
  }
  return sums[kRows - 1][kColumns - 1];
}

void multiply_from_cache(const std::byte* x, const std::byte* weight, std::int64_t num_steps, float* out) {
  float sums[kRows][kColumns];
  std::memcpy(sums, out, sizeof(sums));
  for (std::int64_t step = 0; step < num_steps; ++step) {
    float x_step[kRows];
    float weight_step[kColumns];
    std::memcpy(x_step, x + step * static_cast<std::int64_t>(sizeof(x_step)), sizeof(x_step));
    std::memcpy(weight_step, weight + step * static_cast<std::int64_t>(sizeof(weight_step)), sizeof(weight_step));
    multiply_step(x_step, weight_step, sums);
  }
  std::memcpy(out, sums, sizeof(sums));
}

}  // namespace

MachineKernels machine_kernels() {
  const MatrixKernel float32{.rows = kRows,
                             .columns = kColumns,
                             .depth = 1,
                             .element_bytes = 4,
                             .in_registers = &multiply_in_registers,
                             .from_cache = &multiply_from_cache};
  return {.isa = "scalar", .read = &read, .float32 = float32, .bfloat16 = float32};
}

}  // namespace fastpaged::reference
