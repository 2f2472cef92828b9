#include "fastpaged/ops/validate.h"

#include <limits>
#include <string>
#include <string_view>

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

void expect_heads(ShapeCheck& check) {
  check.expect_size("Hkv", 1, kAnySize);
  check.expect_size("D", 16, kMaxHeadDim);
  if (check.size("D") % 16 != 0) {
    check.fail("D must be a multiple of 16, got " + std::to_string(check.size("D")));
  }
  if (check.size("Hq") < 1 || check.size("Hq") % check.size("Hkv") != 0) {
    check.fail("Hq must be a multiple of Hkv=" + std::to_string(check.size("Hkv")) + ", got " +
               std::to_string(check.size("Hq")));
  }
}

void expect_kv_cache(ShapeCheck& check, const TensorView& kv_cache) {
  check.bind("2", 2);
  check.expect_strided("kv_cache", kv_cache, DType::kBFloat16, {"num_blocks", "2", "Hkv", "block_size", "D"});
  check.expect_size("block_size", 1, kMaxBlockSize);
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

Activation activation_from_name(std::string_view name) {
  require(name == "silu", [&] { return "activation must be 'silu', got '" + std::string(name) + "'"; });
  return Activation::kSilu;
}

void validate(const EmbeddingParams& params) {
  ShapeCheck check("embedding");
  check.expect("token_ids", params.token_ids, DType::kInt32, {"T"});
  check.expect("table", params.table, DType::kBFloat16, {"vocab", "H"});
  check.expect("out", params.out, DType::kFloat32, {"T", "H"});
  expect_indices(check, "token_ids", params.token_ids.ptr<const std::int32_t>(), check.size("T"), check.size("vocab"));
}

void validate(const RmsNormParams& params) {
  ShapeCheck check("rms_norm");
  check.expect("x", params.x, DType::kFloat32, {"T", "H"});
  check.expect("weight", params.weight, DType::kFloat32, {"H"});
  check.expect("out", params.out, DType::kBFloat16, {"T", "H"});
  if (!params.residual.empty()) {
    check.expect("residual", params.residual, DType::kFloat32, {"T", "H"});
  }
  check.expect_size("H", 1, kAnySize);
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
  check.expect("x", params.x, DType::kBFloat16, {"M", "K"});
  check.expect("out", params.out, DType::kFloat32, {"M", "N"});
}

void validate(const RotaryCacheWriteParams& params) {
  ShapeCheck check("rotary_cache_write");
  check.expect("q", params.q, DType::kBFloat16, {"T", "Hq", "D"});
  expect_kv_cache(check, params.kv_cache);
  expect_heads(check);
  check.bind("(Hq + 2 Hkv) * D", (check.size("Hq") + 2 * check.size("Hkv")) * check.size("D"));
  check.expect("qkv", params.qkv, DType::kFloat32, {"T", "(Hq + 2 Hkv) * D"});
  check.expect("positions", params.positions, DType::kInt32, {"T"});
  check.expect("slot_mapping", params.slot_mapping, DType::kInt32, {"T"});
  check.expect("cos_sin", params.cos_sin, DType::kFloat32, {"max_positions", "D"});
  expect_indices(check, "positions", params.positions.ptr<const std::int32_t>(), check.size("T"),
                 check.size("max_positions"));
  expect_indices(check, "slot_mapping", params.slot_mapping.ptr<const std::int32_t>(), check.size("T"),
                 check.size("num_blocks") * check.size("block_size"));
}

void validate(const PagedAttentionParams& params) {
  ShapeCheck check("paged_attention");
  check.expect("q", params.q, DType::kBFloat16, {"T", "Hq", "D"});
  expect_kv_cache(check, params.kv_cache);
  expect_heads(check);
  check.bind("Hq * D", check.size("Hq") * check.size("D"));
  check.expect("out", params.out, DType::kBFloat16, {"T", "Hq * D"});
  check.expect("context_lens", params.context_lens, DType::kInt32, {"S"});
  check.bind("S + 1", check.size("S") + 1);
  check.expect("query_start", params.query_start, DType::kInt32, {"S + 1"});
  check.expect("block_tables", params.block_tables, DType::kInt32, {"S", "max_blocks"});
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

void validate(const GatedActivationParams& params) {
  ShapeCheck check("gated_activation");
  check.expect("out", params.out, DType::kBFloat16, {"T", "F"});
  check.bind("2 F", 2 * check.size("F"));
  check.expect("gate_up", params.gate_up, DType::kFloat32, {"T", "2 F"});
}

void validate(const GatherRowsParams& params) {
  ShapeCheck check("gather_rows");
  check.expect("x", params.x, DType::kFloat32, {"T", "H"});
  check.expect("rows", params.rows, DType::kInt32, {"R"});
  check.expect("out", params.out, DType::kFloat32, {"R", "H"});
  expect_indices(check, "rows", params.rows.ptr<const std::int32_t>(), check.size("R"), check.size("T"));
}

}  // namespace fastpaged
