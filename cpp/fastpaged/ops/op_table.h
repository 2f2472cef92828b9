// OpTable: the kernels of one instruction set, chosen once at run time.
//
//   scalar        plain C++ loops (ops/reference): the oracle of the tests, and what serves CPUs without the others
//   avx2          AVX2 with fused multiply-add; bfloat16 is widened to float32
//   avx512        AVX-512 with its bfloat16 dot product
//   amx           AMX tiles for the linear layers and attention in bfloat16, AVX-512 for the rest
//   amx_emulated  the amx kernels with each tile instruction carried out in software: the tests' way to run them
//                 on a CPU without AMX; never chosen by itself
//
// Every table serves both activation dtypes, bfloat16 and float32. For one named table, an output element's bits depend
// on its own inputs alone: never on other rows, on the number of rows, on the block size, or on the thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastpaged/base/thread_pool.h"
#include "fastpaged/ops/logit_passes.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/params.h"

namespace fastpaged {

struct OpTable {
  const char* isa;
  // Names how pack_linear lays a weight out, with a version: what one table packed, and was kept on disk, serves all
  // tables of the same layout, and no later build that lays it out in another way.
  const char* weight_layout = "";
  // parts: [N_i, K] bfloat16 or float32 weights stacked along N (q, k and v; gate and up), packed as dtype, bfloat16 or
  // float32: float32 is rounded to bfloat16, bfloat16 widened. Any N >= 1 and K >= 1.
  PackedLinear (*pack_linear)(std::span<const TensorView> parts, DType dtype, ThreadPool& pool);
  // The same of a gated weight: the first half of the rows are gates, the second as many ups.
  PackedLinear (*pack_gated_linear)(std::span<const TensorView> parts, DType dtype, ThreadPool& pool);
  // num_bytes of what they make, padding included. REQUIRES: sizes >= 1, an even out_features where gated, bytes that
  // an int64 can count.
  std::size_t (*packed_bytes)(std::int64_t out_features, std::int64_t in_features, DType dtype, bool gated);
  void (*embedding)(const EmbeddingParams& params, ThreadPool& pool);
  void (*rms_norm)(const RmsNormParams& params, ThreadPool& pool);
  void (*layer_norm)(const LayerNormParams& params, ThreadPool& pool);
  void (*linear)(const LinearParams& params, ThreadPool& pool);
  void (*rotary_cache_write)(const RotaryCacheWriteParams& params, ThreadPool& pool);
  void (*paged_attention)(const PagedAttentionParams& params, ThreadPool& pool);
  void (*soft_cap)(const SoftCapParams& params, ThreadPool& pool);
  void (*add)(const AddParams& params, ThreadPool& pool);
  void (*gather_rows)(const GatherRowsParams& params, ThreadPool& pool);
  // Not an op of a model: what the sampler goes over logits with. Never null.
  const LogitPasses* logit_passes;
};

// Every table this build knows, and those this CPU can run, best first.
std::vector<std::string> known_isas();
std::vector<std::string> supported_isas();

// The table called `isa`. Throws std::invalid_argument naming the known and the supported ones.
const OpTable& op_table(std::string_view isa);

// FASTPAGED_ISA if it is set (an unknown or unsupported value throws std::invalid_argument), else the best supported.
std::string default_isa();

}  // namespace fastpaged
