#include "fastpaged/ops/validate.h"

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/packed_linear.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

constexpr std::int64_t kAnySize = std::numeric_limits<std::int64_t>::max();

// Every element of row-dense indices lies in [0, limit).
void expect_indices(const ShapeCheck& check, const char* field, const std::int32_t* indices, std::int64_t count,
                    std::int64_t limit) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || indices[i] >= limit) {
      check.fail(std::string(field) + " must be in 0.." + std::to_string(limit - 1) + ", got " +
                 std::to_string(indices[i]));
    }
  }
}

// Each of the T tokens has one, in a table of max_positions.
void expect_positions(ShapeCheck& check, const TensorView& positions) {
  check.expect("positions", positions, DType::kInt32, {"T"});
  expect_indices(check, "positions", positions.ptr<const std::int32_t>(), check.size("T"), check.size("max_positions"));
}

void expect_finite(const ShapeCheck& check, const char* field, float value) {
  if (!std::isfinite(value)) {
    check.fail(std::string(field) + " must be finite, got " + std::to_string(value));
  }
}

void expect_eps(const ShapeCheck& check, const char* field, float eps) {
  if (!std::isfinite(eps) || eps < 0.0F) {
    check.fail(std::string(field) + " must be finite and >= 0, got " + std::to_string(eps));
  }
}

// What rms_norm and layer_norm have in common.
template <typename Params>
void expect_norm(ShapeCheck& check, const Params& params) {
  check.expect("x", params.x, DType::kFloat32, {"T", "H"});
  check.expect("weight", params.weight, DType::kFloat32, {"H"});
  check.expect_activation("out", params.out, {"T", "H"});
  if (!params.residual.empty()) {
    check.expect("residual", params.residual, DType::kFloat32, {"T", "H"});
  }
  check.expect_size("H", 1, kAnySize);
  expect_eps(check, "eps", params.eps);
}

void expect_heads(ShapeCheck& check) {
  check.expect_size("Hkv", 1, kAnySize);
  check.expect_size("D", kHeadDimStep, kMaxHeadDim);
  if (!is_head_dim(check.size("D"))) {
    check.fail("D must be a multiple of " + std::to_string(kHeadDimStep) + ", got " + std::to_string(check.size("D")));
  }
  if (check.size("Hq") < 1 || check.size("Hq") % check.size("Hkv") != 0) {
    check.fail("Hq must be a multiple of Hkv=" + std::to_string(check.size("Hkv")) + ", got " +
               std::to_string(check.size("Hq")));
  }
}

// Codes and scales of a slot are D + 4 bytes, and what a scale is read from lies on a multiple of its size.
void expect_kv_codes(const ShapeCheck& check, const TensorView& kv_cache) {
  if (kv_cache.strides[3] != kv_cache.shape[4] + kKVScaleBytes) {
    check.fail("kv_cache must have its scales beside its codes");
  }
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(kv_cache.data) % kKVScaleBytes == 0 &&
                          kv_cache.strides[0] % kKVScaleBytes == 0 && kv_cache.strides[1] % kKVScaleBytes == 0 &&
                          kv_cache.strides[2] % kKVScaleBytes == 0;
  if (!is_aligned) {
    check.fail("kv_cache must be aligned to " + std::to_string(kKVScaleBytes) + " bytes, with its strides");
  }
}

void expect_kv_cache(ShapeCheck& check, const TensorView& kv_cache) {
  check.bind("2", 2);
  check.expect_kv_cache("kv_cache", kv_cache, {"num_blocks", "2", "Hkv", "block_size", "D"});
  check.expect_size("block_size", 1, kMaxBlockSize);
  if (is_kv_code(kv_cache.dtype)) {
    return expect_kv_codes(check, kv_cache);
  }
  if (kv_cache.shape[3] > 1 && kv_cache.strides[3] != kv_cache.shape[4]) {
    check.fail("kv_cache must be contiguous along its last two axes");
  }
}

// Sequence s has between 1 and context_lens[s] queries, and its table covers the context with blocks that exist.
void expect_sequence(const ShapeCheck& check, const PagedAttentionParams& params, std::int64_t s) {
  const std::int64_t first = params.query_start.ptr<const std::int32_t>()[s];
  const std::int64_t last = params.query_start.ptr<const std::int32_t>()[s + 1];
  const std::int64_t context = params.context_lens.ptr<const std::int32_t>()[s];
  const std::int64_t block_size = check.size("block_size");
  if (last < first) {
    check.fail("query_start must not decrease, got " + std::to_string(first) + ", " + std::to_string(last));
  }
  if (context < last - first || context > check.size("max_blocks") * block_size) {
    check.fail("context_lens[" + std::to_string(s) + "] must be in " + std::to_string(last - first) + ".." +
               std::to_string(check.size("max_blocks") * block_size) + ", got " + std::to_string(context));
  }
  expect_indices(check, "block_tables", params.block_tables.row<const std::int32_t>(s),
                 (context + block_size - 1) / block_size, check.size("num_blocks"));
}

}  // namespace

void validate(const EmbeddingParams& params) {
  ShapeCheck check("embedding");
  check.expect("token_ids", params.token_ids, DType::kInt32, {"T"});
  check.expect_activation("table", params.table, {"vocab", "H"});
  check.expect("out", params.out, DType::kFloat32, {"T", "H"});
  expect_finite(check, "scale", params.scale);
  expect_indices(check, "token_ids", params.token_ids.ptr<const std::int32_t>(), check.size("T"), check.size("vocab"));
  if (!params.position_table.empty()) {
    check.expect("position_table", params.position_table, DType::kFloat32, {"max_positions", "H"});
    expect_positions(check, params.positions);
  }
}

void validate(const RmsNormParams& params) {
  ShapeCheck check("rms_norm");
  expect_norm(check, params);
}

void validate(const LayerNormParams& params) {
  ShapeCheck check("layer_norm");
  expect_norm(check, params);
  if (!params.bias.empty()) {
    check.expect("bias", params.bias, DType::kFloat32, {"H"});
  }
}

void validate(const LinearParams& params, const char* isa) {
  ShapeCheck check("linear");
  if (params.weight == nullptr) {
    check.fail("weight must be given");
  }
  if (std::string_view(params.weight->isa()) != isa) {
    check.fail("weight must be packed for '" + std::string(isa) + "', got one packed for '" + params.weight->isa() +
               "'");
  }
  check.bind("N", params.weight->out_features());
  check.bind("K", params.weight->in_features());
  check.expect("x", params.x, params.weight->dtype(), {"M", "K"});
  if (params.weight->gated() && !params.activation) {
    check.fail("activation must be given with a gated weight");
  }
  if (params.adds && params.activation) {
    check.fail("adds must be false with an activation, whose result is not added to");
  }
  check.bind("N / 2", params.weight->out_features() / 2);
  check.expect("out", params.out, params.activation ? params.weight->dtype() : DType::kFloat32,
               {"M", params.weight->gated() ? "N / 2" : "N"});
  if (!params.bias.empty()) {
    check.expect("bias", params.bias, DType::kFloat32, {"N"});
  }
}

void validate(const RotaryCacheWriteParams& params) {
  ShapeCheck check("rotary_cache_write");
  check.expect_activation("q", params.q, {"T", "Hq", "D"});
  expect_kv_cache(check, params.kv_cache);
  expect_heads(check);
  check.bind("(Hq + 2 Hkv) * D", (check.size("Hq") + 2 * check.size("Hkv")) * check.size("D"));
  check.expect("qkv", params.qkv, DType::kFloat32, {"T", "(Hq + 2 Hkv) * D"});
  check.expect("slot_mapping", params.slot_mapping, DType::kInt32, {"T"});
  expect_indices(check, "slot_mapping", params.slot_mapping.ptr<const std::int32_t>(), check.size("T"),
                 check.size("num_blocks") * check.size("block_size"));
  if (!params.cos_sin.empty()) {
    check.expect("cos_sin", params.cos_sin, DType::kFloat32, {"max_positions", "rotary"});
    check.expect_size("rotary", 2, check.size("D"));
    if (check.size("rotary") % 2 != 0) {
      check.fail("rotary must be even, got " + std::to_string(check.size("rotary")));
    }
    expect_positions(check, params.positions);
  }
  if (params.q_norm.empty() != params.k_norm.empty()) {
    check.fail("q_norm and k_norm must be given both or neither");
  }
  if (!params.q_norm.empty()) {
    check.expect("q_norm", params.q_norm, DType::kFloat32, {"D"});
    check.expect("k_norm", params.k_norm, DType::kFloat32, {"D"});
    expect_eps(check, "norm_eps", params.norm_eps);
  }
}

void validate(const PagedAttentionParams& params) {
  ShapeCheck check("paged_attention");
  check.expect_activation("q", params.q, {"T", "Hq", "D"});
  expect_kv_cache(check, params.kv_cache);
  expect_heads(check);
  check.bind("Hq * D", check.size("Hq") * check.size("D"));
  check.expect_activation("out", params.out, {"T", "Hq * D"});
  check.expect("context_lens", params.context_lens, DType::kInt32, {"S"});
  check.bind("S + 1", check.size("S") + 1);
  check.expect("query_start", params.query_start, DType::kInt32, {"S + 1"});
  check.expect("block_tables", params.block_tables, DType::kInt32, {"S", "max_blocks"});
  if (!params.alibi_slopes.empty()) {
    check.expect("alibi_slopes", params.alibi_slopes, DType::kFloat32, {"Hq"});
  }
  expect_finite(check, "scale", params.scale);
  if (!std::isfinite(params.soft_cap) || params.soft_cap < 0.0F) {
    check.fail("soft_cap must be finite and >= 0, got " + std::to_string(params.soft_cap));
  }
  if (params.window < 0) {
    check.fail("window must be >= 0, got " + std::to_string(params.window));
  }
  const auto* query_start = params.query_start.ptr<const std::int32_t>();
  const std::int64_t num_sequences = check.size("S");
  if (query_start[0] != 0 || query_start[num_sequences] != check.size("T")) {
    check.fail("query_start must run from 0 to T=" + std::to_string(check.size("T")) + ", got " +
               std::to_string(query_start[0]) + " to " + std::to_string(query_start[num_sequences]));
  }
  for (std::int64_t s = 0; s < num_sequences; ++s) {
    expect_sequence(check, params, s);
  }
}

void validate(const SoftCapParams& params) {
  ShapeCheck check("soft_cap");
  check.expect("x", params.x, DType::kFloat32, {"T", "N"});
  if (!std::isfinite(params.cap) || params.cap <= 0.0F) {
    check.fail("cap must be finite and > 0, got " + std::to_string(params.cap));
  }
}

void validate(const AddParams& params) {
  ShapeCheck check("add");
  check.expect("x", params.x, DType::kFloat32, {"T", "H"});
  check.expect("y", params.y, DType::kFloat32, {"T", "H"});
}

void validate(const GatherRowsParams& params) {
  ShapeCheck check("gather_rows");
  check.expect("x", params.x, DType::kFloat32, {"T", "H"});
  check.expect("rows", params.rows, DType::kInt32, {"R"});
  check.expect("out", params.out, DType::kFloat32, {"R", "H"});
  expect_indices(check, "rows", params.rows.ptr<const std::int32_t>(), check.size("R"), check.size("T"));
}

}  // namespace fastpaged
