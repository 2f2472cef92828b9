#include "fastpaged/ops/machine_kernels.h"

#include <algorithm>
#include <chrono>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/op_table.h"
#include "fastpaged/ops/reference/machine_kernels.h"
#if defined(__x86_64__)
#include "fastpaged/ops/cpu/machine_kernels.h"
#endif

namespace fastpaged {
namespace {

// Calls fn and returns how long that took.
template <typename Fn>
double seconds_of(const Fn& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The compiler must take this value for one that is looked at, and so compute it.
void keep(const float& value) {
  asm volatile("" ::"r"(&value) : "memory");
}

}  // namespace

MachineKernels machine_kernels(std::string_view isa) {
  const std::string_view name = op_table(isa).isa;  // known and supported
#if defined(__x86_64__)
  if (name == "amx") {
    return cpu::amx_machine_kernels();
  }
  if (name == "avx512" || name == "amx_emulated") {
    return cpu::avx512::machine_kernels();
  }
  if (name == "avx2") {
    return cpu::avx2::machine_kernels();
  }
#endif
  invariant(name == "scalar", "machine_kernels: an op table without kernels of its own");
  return reference::machine_kernels();
}

Measurement measure_read(const MachineKernels& kernels, std::span<const std::byte> buffer, std::int64_t piece_bytes,
                         std::int64_t num_passes, ThreadPool& pool) {
  invariant(piece_bytes >= 1 && num_passes >= 1, "measure_read: piece_bytes and num_passes are positive");
  const std::int64_t num_bytes = static_cast<std::int64_t>(buffer.size()) / kReadStep * kReadStep;
  const std::int64_t piece = (piece_bytes + kReadStep - 1) / kReadStep * kReadStep;
  const double seconds = seconds_of([&] {
    pool.parallel_for((num_bytes + piece - 1) / piece, [&](std::int64_t tile, int) {
      for (std::int64_t pass = 0; pass < num_passes; ++pass) {
        keep(kernels.read(buffer.data() + tile * piece, std::min(piece, num_bytes - tile * piece)));
      }
    });
  });
  return {.amount = static_cast<double>(num_bytes) * static_cast<double>(num_passes), .seconds = seconds};
}

MatrixProbe::MatrixProbe(const MatrixKernel& kernel, std::int64_t weight_bytes, ThreadPool& pool)
    : kernel_(kernel), pool_(&pool) {
  if (weight_bytes == 0) {
    return;
  }
  steps_ = std::max<std::int64_t>(1, kDepth / kernel.depth);
  num_blocks_ = std::max<std::int64_t>(1, weight_bytes / (steps_ * kernel.weight_bytes_per_step()));
  const std::int64_t sums_bytes = kernel.rows * kernel.columns * 4;
  const std::int64_t num_bytes =
      sums_bytes + steps_ * (kernel.x_bytes_per_step() + num_blocks_ * kernel.weight_bytes_per_step());
  constexpr auto kLineBytes = static_cast<std::int64_t>(sizeof(Line));
  lines_per_thread_ = (num_bytes + kLineBytes - 1) / kLineBytes;
  operands_.resize(static_cast<std::size_t>(lines_per_thread_ * pool.num_threads()));
  std::uint32_t random = 1;
  for (Line& line : operands_) {
    for (std::uint32_t& word : line.words) {
      random = random * 1664525U + 1013904223U;
      word = 0x3F003F00U | (random >> 8 & 0x007F007FU);  // in [0.5, 1), as a float32 and as two bfloat16
    }
  }
}

Measurement MatrixProbe::measure(std::int64_t num_passes) {
  invariant(num_passes >= 1, "MatrixProbe: num_passes is positive");
  const std::int64_t num_threads = pool_->num_threads();
  const auto pass = [&](std::int64_t tile) {
    if (num_blocks_ == 0) {
      keep(kernel_.in_registers(kStepsInRegisters));
      return;
    }
    auto* sums = reinterpret_cast<float*>(operands_.data() + tile * lines_per_thread_);
    const auto* x = reinterpret_cast<const std::byte*>(sums + kernel_.rows * kernel_.columns);
    const std::byte* weight = x + steps_ * kernel_.x_bytes_per_step();
    for (std::int64_t block = 0; block < num_blocks_; ++block) {
      kernel_.from_cache(x, weight + block * steps_ * kernel_.weight_bytes_per_step(), steps_, sums);
    }
  };
  const double seconds = seconds_of([&] {
    pool_->parallel_for(num_threads, [&](std::int64_t tile, int) {
      for (std::int64_t i = 0; i < num_passes; ++i) {
        pass(tile);
      }
    });
  });
  const std::int64_t num_steps = num_blocks_ == 0 ? kStepsInRegisters : steps_ * num_blocks_;
  return {.amount = static_cast<double>(num_steps * kernel_.flops_per_step()) * static_cast<double>(num_threads) *
                    static_cast<double>(num_passes),
          .seconds = seconds};
}

}  // namespace fastpaged
