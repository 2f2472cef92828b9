// The one place that knows which tables an architecture has.
#include "fastpaged/ops/tables.h"

#include "fastpaged/base/cpu_features.h"
#include "fastpaged/ops/reference/ops.h"
#if defined(__x86_64__)
#include "fastpaged/ops/cpu/ops.h"
#endif

namespace fastpaged {
namespace {

constexpr OpTable kScalar{.isa = "scalar",
                          .pack_linear = &reference::pack_linear,
                          .embedding = &reference::embedding,
                          .rms_norm = &reference::rms_norm,
                          .layer_norm = &reference::layer_norm,
                          .linear = &reference::linear,
                          .rotary_cache_write = &reference::rotary_cache_write,
                          .paged_attention = &reference::paged_attention,
                          .activation = &reference::activation,
                          .gated_activation = &reference::gated_activation,
                          .soft_cap = &reference::soft_cap,
                          .add = &reference::add,
                          .gather_rows = &reference::gather_rows};

bool always() {
  return true;
}

#if defined(__x86_64__)

constexpr OpTable kAvx512{.isa = "avx512",
                          .pack_linear = &cpu::pack_linear_avx512,
                          .embedding = &cpu::embedding,
                          .rms_norm = &cpu::rms_norm,
                          .layer_norm = &reference::layer_norm,
                          .linear = &cpu::linear_avx512,
                          .rotary_cache_write = &cpu::rotary_cache_write,
                          .paged_attention = &cpu::paged_attention,
                          .activation = &reference::activation,
                          .gated_activation = &cpu::gated_activation,
                          .soft_cap = &reference::soft_cap,
                          .add = &reference::add,
                          .gather_rows = &cpu::gather_rows};

// The avx512 table, but for the linear layers.
constexpr OpTable with_linear(const char* isa, decltype(OpTable::pack_linear) pack, decltype(OpTable::linear) linear) {
  OpTable table = kAvx512;
  table.isa = isa;
  table.pack_linear = pack;
  table.linear = linear;
  return table;
}

constexpr OpTable kAmx = with_linear("amx", &cpu::pack_linear_amx, &cpu::linear_amx);
constexpr OpTable kAmxEmulated = with_linear("amx_emulated", &cpu::pack_linear_amx_emulated, &cpu::linear_amx_emulated);

bool has_avx512() {
  return cpu_features().avx512_bf16;
}
bool has_amx() {
  return cpu_features().amx_bf16;
}

constexpr NamedTable kTables[] = {
    {kAmx, &has_amx}, {kAvx512, &has_avx512}, {kScalar, &always}, {kAmxEmulated, &has_avx512}};

#else

constexpr NamedTable kTables[] = {{kScalar, &always}};

#endif

}  // namespace

std::span<const NamedTable> all_tables() {
  return kTables;
}

}  // namespace fastpaged
