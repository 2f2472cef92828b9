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
                          .weight_layout = reference::kWeightLayout,
                          .pack_linear = &reference::pack_linear,
                          .pack_gated_linear = &reference::pack_gated_linear,
                          .packed_bytes = &reference::packed_bytes,
                          .embedding = &reference::embedding,
                          .rms_norm = &reference::rms_norm,
                          .layer_norm = &reference::layer_norm,
                          .linear = &reference::linear,
                          .rotary_cache_write = &reference::rotary_cache_write,
                          .paged_attention = &reference::paged_attention,
                          .soft_cap = &reference::soft_cap,
                          .add = &reference::add,
                          .gather_rows = &reference::gather_rows,
                          .logit_passes = &scalar_logit_passes};

bool always() {
  return true;
}

#if defined(__x86_64__)

bool has_avx2() {
  return cpu_features().avx2_fma;
}
bool has_avx512() {
  return cpu_features().avx512_bf16;
}
bool has_amx() {
  return cpu_features().amx_bf16;
}

#endif

}  // namespace

std::span<const NamedTable> all_tables() {
  static const NamedTable tables[] = {
#if defined(__x86_64__)
      {cpu::amx_table(), &has_amx},
      {cpu::avx512::table(), &has_avx512},
      {cpu::avx2::table(), &has_avx2},
#endif
      {kScalar, &always},
#if defined(__x86_64__)
      {cpu::amx_emulated_table(), &has_avx512},
#endif
  };
  return tables;
}

}  // namespace fastpaged
