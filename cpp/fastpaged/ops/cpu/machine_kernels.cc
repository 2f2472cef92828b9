// Reading and multiplying on vectors, with as many sums on their way as there are registers for.
#include "fastpaged/ops/cpu/machine_kernels.h"

#include <cstddef>
#include <cstdint>

#include "fastpaged/ops/cpu/vector.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace {

constexpr int kRows = kLanes == 16 ? 8 : 4;  // of 32 registers or of 16
constexpr int kVectors = 3;
constexpr std::int64_t kWordBytes = 4;  // of an operand's lane: a float32, or a pair of bfloat16
constexpr std::int64_t kStreams = 4;    // more than one is faster: each has a prefetcher of the CPU's own
constexpr std::int64_t kStreamStep = kReadStep / kStreams;
constexpr int kStreamVectors = kStreamStep / (kLanes * kWordBytes);
constexpr int kReadVectors = kStreams * kStreamVectors;
constexpr std::int64_t kWeightsAhead = 2048;  // bytes

}  // namespace

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)

struct FloatOperands {
  using Vector = Floats;
  static inline Vector load_weights(const std::byte* from) { return load(reinterpret_cast<const float*>(from)); }
  static inline Vector broadcast(const std::byte* from) { return set1(*reinterpret_cast<const float*>(from)); }
  static inline Floats multiply_add(Vector x, Vector weights, Floats sum) { return fma(x, weights, sum); }
};

struct PairOperands {
  using Vector = Pairs;
  static inline Vector load_weights(const std::byte* from) {
    return load_pairs(reinterpret_cast<const BFloat16*>(from));
  }
  static inline Vector broadcast(const std::byte* from) {
    return broadcast_pair(reinterpret_cast<const BFloat16*>(from));
  }
  static inline Floats multiply_add(Vector x, Vector weights, Floats sum) { return dot(x, weights, sum); }
};

static float read(const std::byte* data, std::int64_t num_bytes) {
  Floats sums[kReadVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kReadVectors; ++v) {
    sums[v] = zero();
  }
  const std::int64_t stream_bytes = num_bytes / kStreams;
  for (std::int64_t offset = 0; offset < stream_bytes; offset += kStreamStep) {
#pragma GCC unroll 16
    for (int v = 0; v < kReadVectors; ++v) {
      const std::byte* from =
          data + v / kStreamVectors * stream_bytes + offset + v % kStreamVectors * kLanes * kWordBytes;
      sums[v] = add(sums[v], load(reinterpret_cast<const float*>(from)));
    }
  }
#pragma GCC unroll 16
  for (int v = 1; v < kReadVectors; ++v) {
    sums[0] = add(sums[0], sums[v]);
  }
  return sum_of_lanes(sums[0]);
}

template <typename Operands>
static float multiply_in_registers(std::int64_t num_steps) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = set1(static_cast<float>(r * kVectors + v));  // no two alike, or they would be computed as one
    }
  }
  alignas(64) float ones[kLanes];
  for (float& one : ones) {
    one = 1.0F;
  }
  const auto x = Operands::broadcast(reinterpret_cast<const std::byte*>(ones));
  const auto weights = Operands::load_weights(reinterpret_cast<const std::byte*>(ones));
  for (std::int64_t step = 0; step < num_steps; ++step) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Operands::multiply_add(x, weights, sums[r][v]);
      }
    }
  }
  Floats sum = zero();
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum = add(sum, sums[r][v]);
    }
  }
  return sum_of_lanes(sum);
}

template <typename Operands>
static void multiply_from_cache(const std::byte* x, const std::byte* weight, std::int64_t num_steps, float* out) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = load(out + (r * kVectors + v) * kLanes);
    }
  }
  for (std::int64_t step = 0; step < num_steps; ++step) {
    typename Operands::Vector weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const std::byte* from = weight + (step * kVectors + v) * kLanes * kWordBytes;
      _mm_prefetch(reinterpret_cast<const char*>(from) + kWeightsAhead, _MM_HINT_T0);
      weights[v] = Operands::load_weights(from);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto value = Operands::broadcast(x + (step * kRows + r) * kWordBytes);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Operands::multiply_add(value, weights[v], sums[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store(out + (r * kVectors + v) * kLanes, sums[r][v]);
    }
  }
}

FASTPAGED_END_TARGET

MachineKernels machine_kernels() {
  MatrixKernel float32{.rows = kRows,
                       .columns = kVectors * kLanes,
                       .depth = 1,
                       .element_bytes = 4,
                       .in_registers = &multiply_in_registers<FloatOperands>,
                       .from_cache = &multiply_from_cache<FloatOperands>};
  MatrixKernel bfloat16 = float32;
  if (kHasDot) {
    bfloat16.depth = 2;
    bfloat16.element_bytes = 2;
    bfloat16.in_registers = &multiply_in_registers<PairOperands>;
    bfloat16.from_cache = &multiply_from_cache<PairOperands>;
  }
  return {.isa = kIsaName, .read = &read, .float32 = float32, .bfloat16 = bfloat16};
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
