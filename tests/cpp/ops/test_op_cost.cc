// What an op costs, against counting it out one element after the other.
#include "fastpaged/ops/op_cost.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "fastpaged/ops/machine_limits.h"
#include "fastpaged/ops/packed_linear.h"

namespace fastpaged {
namespace {

// Shapes matter, and the numbers of int32 arrays; nobody reads the rest.
TensorView shaped(DType dtype, std::initializer_list<std::int64_t> shape) {
  static std::byte somewhere{};
  return TensorView::dense(&somewhere, dtype, shape);
}

TensorView ints(std::vector<std::int32_t>& values) {
  return TensorView::dense(values.data(), DType::kInt32, {static_cast<std::int64_t>(values.size())});
}

std::int64_t roll(std::mt19937& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(most - least + 1));
}

DType some_dtype(std::mt19937& random) {
  return roll(random, 0, 1) == 0 ? DType::kFloat32 : DType::kBFloat16;
}

// Of a cache beside activations of `dtype`, and what a key or a value takes in it.
DType some_kv_dtype(std::mt19937& random, DType dtype) {
  const DType dtypes[] = {dtype, DType::kFp8E4M3, DType::kFp8E5M2, DType::kInt8};
  return dtypes[roll(random, 0, 3)];
}
std::int64_t vector_bytes(DType kv_dtype, std::int64_t head_dim) {
  return is_kv_code(kv_dtype) ? head_dim + 4 : head_dim * static_cast<std::int64_t>(size_of(kv_dtype));
}

void check_equal(const OpCost& cost, const OpCost& counted) {
  CHECK((cost.weight_bytes == counted.weight_bytes));
  CHECK((cost.kv_bytes == counted.kv_bytes));
  CHECK((cost.activation_bytes == counted.activation_bytes));
  CHECK((cost.flops == counted.flops));
}

TEST_CASE("a linear layer reads each weight once, multiplies it with every row, and finishes every sum") {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t rows = roll(random, 1, 9);
    const std::int64_t in = roll(random, 1, 40);
    const bool gated = roll(random, 0, 2) == 0;
    const bool activates = gated || roll(random, 0, 1) == 1;
    const bool adds = !activates && roll(random, 0, 1) == 1;
    const bool has_bias = roll(random, 0, 1) == 1;
    const std::int64_t out = roll(random, 1, 40);
    const std::int64_t sums = gated ? 2 * out : out;
    const DType dtype = some_dtype(random);
    const DType out_dtype = activates ? dtype : DType::kFloat32;
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const PackedLinear weight(sums, in, dtype, 1 << 16, "scalar");  // padded, as packed weights are
    OpCost counted;
    for (std::int64_t n = 0; n < sums; ++n) {
      counted.weight_bytes += in * size + (has_bias ? 4 : 0);
      for (std::int64_t k = 0; k < in; ++k) {
        counted.flops += 2 * rows;
      }
      counted.flops += has_bias ? rows : 0;
    }
    for (std::int64_t output = 0; output < rows * out; ++output) {
      counted.activation_bytes += static_cast<std::int64_t>(size_of(out_dtype)) * (adds ? 2 : 1);
      counted.flops += (activates ? 2 : 0) + (gated ? 1 : 0) + (adds ? 1 : 0);
    }
    counted.activation_bytes += rows * in * size;
    LinearParams params{.x = shaped(dtype, {rows, in}),
                        .weight = &weight,
                        .bias = has_bias ? shaped(DType::kFloat32, {sums}) : TensorView{},
                        .out = shaped(out_dtype, {rows, out}),
                        .adds = adds};
    if (activates) {
      params.activation = Activation::kSilu;
    }
    check_equal(op_cost(params), counted);
  }
}

// A step of sequences that have some tokens in the cache and some to compute.
struct AttentionStep {
  explicit AttentionStep(std::mt19937& random) {
    std::vector<std::int32_t> blocks(kNumBlocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    for (std::int64_t s = roll(random, 0, 5); s > 0; --s) {
      const auto num_queries = static_cast<std::int32_t>(roll(random, 0, 12));
      query_start.push_back(query_start.back() + num_queries);
      context_lens.push_back(num_queries + static_cast<std::int32_t>(roll(random, 0, 30)));
      std::ranges::shuffle(blocks, random);  // of its own some, and some that others hold as well
      block_tables.insert(block_tables.end(), blocks.begin(), blocks.begin() + kBlocksPerSequence);
    }
  }
  [[nodiscard]] std::int64_t num_sequences() const { return static_cast<std::int64_t>(context_lens.size()); }
  [[nodiscard]] std::int32_t block_of(std::int64_t sequence, std::int64_t key) const {
    return block_tables[static_cast<std::size_t>(sequence * kBlocksPerSequence + key / kBlockSize)];
  }

  static constexpr std::int64_t kNumBlocks = 20;
  static constexpr std::int64_t kBlockSize = 8;
  static constexpr std::int64_t kBlocksPerSequence = 6;
  std::vector<std::int32_t> query_start{0};
  std::vector<std::int32_t> context_lens;
  std::vector<std::int32_t> block_tables;
};

TEST_CASE("attention reads the keys that some query sees, a shared block's once, and multiplies those each one sees") {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    AttentionStep step(random);
    const std::int64_t kv_heads = roll(random, 1, 3);
    const std::int64_t heads = kv_heads * roll(random, 1, 3);
    const std::int64_t head_dim = 16;
    const DType dtype = some_dtype(random);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const DType kv_dtype = some_kv_dtype(random, dtype);
    const std::int64_t window = roll(random, 0, 1) * roll(random, 1, 40);
    OpCost counted;
    std::map<std::int32_t, std::int64_t> sequence_of;  // by block: the first that reads it
    for (std::int64_t s = 0; s < step.num_sequences(); ++s) {
      std::set<std::int64_t> read;
      const std::int32_t* starts = &step.query_start[static_cast<std::size_t>(s)];
      const std::int64_t context = step.context_lens[static_cast<std::size_t>(s)];
      for (std::int64_t query = context - (starts[1] - starts[0]); query < context; ++query) {
        for (std::int64_t key = 0; key <= query; ++key) {
          if (window == 0 || key > query - window) {
            if (sequence_of.emplace(step.block_of(s, key), s).first->second == s) {
              read.insert(key);
            }
            counted.flops += heads * (2 * head_dim + 2 * head_dim);
          }
        }
      }
      counted.kv_bytes += static_cast<std::int64_t>(read.size()) * kv_heads * 2 * vector_bytes(kv_dtype, head_dim);
    }
    const std::int64_t num_tokens = step.query_start.back();
    counted.activation_bytes = 2 * num_tokens * heads * head_dim * size;
    PagedAttentionParams params{
        .q = shaped(dtype, {num_tokens, heads, head_dim}),
        .kv_cache = shaped(kv_dtype, {AttentionStep::kNumBlocks, 2, kv_heads, AttentionStep::kBlockSize, head_dim}),
        .query_start = ints(step.query_start),
        .context_lens = ints(step.context_lens),
        .block_tables = TensorView::dense(step.block_tables.data(), DType::kInt32,
                                          {step.num_sequences(), AttentionStep::kBlocksPerSequence}),
        .out = shaped(dtype, {num_tokens, heads * head_dim}),
        .window = static_cast<std::int32_t>(window)};
    check_equal(op_cost(params), counted);
  }
}

TEST_CASE("norms read and write each element of the sum where there is a residual, and only read it where not") {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    const std::int64_t rows = roll(random, 1, 9);
    const std::int64_t cols = roll(random, 1, 30);
    const bool adds = roll(random, 0, 1) == 1;
    const bool has_bias = roll(random, 0, 1) == 1;
    const DType dtype = some_dtype(random);
    OpCost rms{.weight_bytes = cols * 4};
    OpCost layer{.weight_bytes = cols * (has_bias ? 8 : 4)};
    for (std::int64_t element = 0; element < rows * cols; ++element) {
      const std::int64_t bytes = (adds ? 4 + 4 + 4 : 4) + static_cast<std::int64_t>(size_of(dtype));
      rms.activation_bytes += bytes;
      rms.flops += (adds ? 1 : 0) + 2 + 2;  // x += residual; square, sum; scale, weight
      layer.activation_bytes += bytes;
      layer.flops += (adds ? 1 : 0) + 1 + 1 + 2 + 2 + (has_bias ? 1 : 0);  // sum; minus mean; variance; scale, weight
    }
    const TensorView x = shaped(DType::kFloat32, {rows, cols});
    const TensorView residual = adds ? x : TensorView{};
    const TensorView weight = shaped(DType::kFloat32, {cols});
    const TensorView out = shaped(dtype, {rows, cols});
    check_equal(op_cost(RmsNormParams{.x = x, .residual = residual, .weight = weight, .out = out}), rms);
    check_equal(
        op_cost(LayerNormParams{
            .x = x, .residual = residual, .weight = weight, .bias = has_bias ? weight : TensorView{}, .out = out}),
        layer);
  }
}

TEST_CASE("rotation writes a key and a value of each token, and turns queries and keys but no values") {
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    const std::int64_t tokens = roll(random, 1, 9);
    const std::int64_t kv_heads = roll(random, 1, 3);
    const std::int64_t heads = kv_heads * roll(random, 1, 3);
    const std::int64_t head_dim = 32;
    const std::int64_t rotary = 8 * roll(random, 0, 4);
    const bool has_norm = roll(random, 0, 1) == 1;
    const DType dtype = some_dtype(random);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const DType kv_dtype = some_kv_dtype(random, dtype);
    OpCost counted{.weight_bytes = has_norm ? 2 * head_dim * 4 : 0};
    for (std::int64_t token = 0; token < tokens; ++token) {
      counted.activation_bytes += (heads + 2 * kv_heads) * head_dim * 4 + heads * head_dim * size + rotary * 4;
      counted.kv_bytes += 2 * kv_heads * vector_bytes(kv_dtype, head_dim);
      for (std::int64_t head = 0; head < heads + kv_heads; ++head) {
        counted.flops += has_norm ? 4 * head_dim : 0;
        for (std::int64_t pair = 0; pair < rotary / 2; ++pair) {
          counted.flops += 2 * (1 + 1 + 1);  // two elements: two products and their sum each
        }
      }
    }
    const TensorView norm = has_norm ? shaped(DType::kFloat32, {head_dim}) : TensorView{};
    check_equal(
        op_cost(RotaryCacheWriteParams{.qkv = shaped(DType::kFloat32, {tokens, (heads + 2 * kv_heads) * head_dim}),
                                       .slot_mapping = {},
                                       .cos_sin = rotary > 0 ? shaped(DType::kFloat32, {100, rotary}) : TensorView{},
                                       .q_norm = norm,
                                       .k_norm = norm,
                                       .kv_cache = shaped(kv_dtype, {5, 2, kv_heads, 16, head_dim}),
                                       .q = shaped(dtype, {tokens, heads, head_dim})}),
        counted);
  }
}

TEST_CASE("what works element by element reads its inputs and writes its output") {
  const TensorView wide = shaped(DType::kFloat32, {3, 10});
  const TensorView half = shaped(DType::kFloat32, {3, 5});
  check_equal(op_cost(SoftCapParams{.x = half}), {.activation_bytes = 15 * 8, .flops = 45});
  check_equal(op_cost(AddParams{.x = half, .y = half}), {.activation_bytes = 15 * 12, .flops = 15});
  check_equal(op_cost(GatherRowsParams{.x = wide, .rows = {}, .out = half}), {.activation_bytes = 15 * 8});
  EmbeddingParams embedding{.token_ids = {}, .table = shaped(DType::kBFloat16, {100, 5}), .out = half};
  check_equal(op_cost(embedding), {.weight_bytes = 15 * 2, .activation_bytes = 15 * 4, .flops = 15});
  embedding.position_table = shaped(DType::kFloat32, {50, 5});
  check_equal(op_cost(embedding), {.weight_bytes = 15 * (2 + 4), .activation_bytes = 15 * 4, .flops = 30});
}

TEST_CASE("an op's limit is its slowest kind of work, and a rate that is not known limits nothing") {
  const OpCost cost{.weight_bytes = 300, .kv_bytes = 100, .activation_bytes = 50, .flops = 1000};
  MachineLimits limits{.memory_rate = 100.0, .cache_rate = 1000.0, .shared_cache_rate = 5.0, .cache_bytes = 50};
  CHECK((limits.seconds(cost) == doctest::Approx(4.0)));
  limits.flop_rate = 200.0;
  CHECK((limits.seconds(cost) == doctest::Approx(5.0)));
  limits.cache_bytes = 49;  // the activations come from behind the cache now
  CHECK((limits.seconds(cost) == doctest::Approx(10.0)));
  CHECK((limits.step_seconds(cost) == doctest::Approx(5.0)));
  CHECK((MachineLimits{}.seconds(cost) == 0.0));
}

}  // namespace
}  // namespace fastpaged
