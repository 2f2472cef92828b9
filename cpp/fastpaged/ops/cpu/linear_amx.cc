// Linear layers and attention on the AMX tiles. This file holds the instructions and nothing else.
#include <cstdint>

#include "fastpaged/ops/cpu/amx_attention.h"
#include "fastpaged/ops/cpu/amx_linear.h"
#include "fastpaged/ops/cpu/ops.h"

namespace fastpaged::cpu {
namespace {

// As assembly, not intrinsics: with GCC those are macros that take literal register numbers.
class AmxTiles {
 public:
  static constexpr const char* kIsaName = "amx";

  AmxTiles() = default;
  ~AmxTiles() { asm volatile("tilerelease" ::: "memory"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  void configure(const TileRowCounts& rows) {
    struct alignas(64) Config {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    static_assert(sizeof(Config) == 64);
    for (int t = 0; t < kNumTiles; ++t) {
      config.rows[t] = rows[t];
      config.row_bytes[t] = rows[t] == 0 ? 0 : kTileRowBytes;
    }
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  template <int kC, int kA, int kB>
  void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace

OpTable amx_table() {
  OpTable table = amx_table_of<AmxTiles>();
  table.paged_attention = &avx512::amx_paged_attention<AmxTiles>;
  return table;
}

}  // namespace fastpaged::cpu
