// Multiplying on the AMX tiles: two tiles of 16 rows by two of 16 columns, 32 deep, as in the linear layer.
#include <cstddef>
#include <cstdint>

#include "fastpaged/ops/cpu/amx_tile.h"
#include "fastpaged/ops/cpu/machine_kernels.h"

namespace fastpaged::cpu {
namespace {

constexpr std::int64_t kTileBytes = kTileRows * kTileRowBytes;
constexpr std::int64_t kColumns = 2 * 16;

// Sums are tiles 0 to 3, rows 4 and 5, weights 6 and 7. As assembly: see linear_amx.cc.
class WholeTiles {
 public:
  WholeTiles() {
    struct alignas(64) Config {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < kNumTiles; ++tile) {
      config.row_bytes[tile] = kTileRowBytes;
      config.rows[tile] = kTileRows;
    }
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  ~WholeTiles() { asm volatile("tilerelease" ::: "memory"); }
  WholeTiles(const WholeTiles&) = delete;
  WholeTiles& operator=(const WholeTiles&) = delete;

  template <int kTile>
  void load(const void* from, std::int64_t stride = kTileRowBytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  template <int kSums, int kX, int kWeights>
  void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeights));
  }
  void dot_all() {
    dot<0, 4, 6>();
    dot<1, 4, 7>();
    dot<2, 5, 6>();
    dot<3, 5, 7>();
  }
};

float multiply_in_registers(std::int64_t num_steps) {
  WholeTiles tiles;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    tiles.dot_all();
  }
  alignas(64) float sums[16 * 16] = {};
  tiles.store<0>(sums, kTileRowBytes);
  return sums[0];
}

void multiply_from_cache(const std::byte* x, const std::byte* weight, std::int64_t num_steps, float* sums) {
  constexpr std::int64_t kStride = kColumns * 4;  // bytes
  float* below = sums + kTileRows * kColumns;
  WholeTiles tiles;
  tiles.load<0>(sums, kStride);
  tiles.load<1>(sums + 16, kStride);
  tiles.load<2>(below, kStride);
  tiles.load<3>(below + 16, kStride);
  for (std::int64_t step = 0; step < num_steps; ++step, x += 2 * kTileBytes, weight += 2 * kTileBytes) {
    tiles.load<4>(x);
    tiles.load<6>(weight);
    tiles.dot<0, 4, 6>();
    tiles.load<7>(weight + kTileBytes);
    tiles.dot<1, 4, 7>();
    tiles.load<5>(x + kTileBytes);
    tiles.dot<2, 5, 6>();
    tiles.dot<3, 5, 7>();
  }
  tiles.store<0>(sums, kStride);
  tiles.store<1>(sums + 16, kStride);
  tiles.store<2>(below, kStride);
  tiles.store<3>(below + 16, kStride);
}

}  // namespace

MachineKernels amx_machine_kernels() {
  MachineKernels kernels = avx512::machine_kernels();
  kernels.isa = "amx";
  kernels.bfloat16 = {.rows = 2 * kTileRows,
                      .columns = kColumns,
                      .depth = 32,
                      .element_bytes = 2,
                      .in_registers = &multiply_in_registers,
                      .from_cache = &multiply_from_cache};
  return kernels;
}

}  // namespace fastpaged::cpu
