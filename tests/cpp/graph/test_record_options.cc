// What recording says about the options of the ops, and what a batch must have for them.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "fastpaged/graph/model_graph.h"
#include "graph/fake_ops.h"
#include "graph/twin_graph.h"

namespace fastpaged {
namespace {

using testing::BatchArrays;
using testing::fake_ops;
using testing::kHeadDim;
using testing::KVMemory;
using testing::kVocab;
using testing::Weights;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

// A graph with something to read: x float32 [T, 48], h bfloat16 [T, 48], q of two heads in one group.
struct Recording {
  explicit Recording(DType dtype = DType::kBFloat16) : weights(1), graph(fake_ops(), pool, dtype) {
    x = graph.buffer(RowKind::kTokens, 48, DType::kFloat32);
    graph.embedding(weights.table(kVocab, 48, dtype), {}, 1.0F, x);
    h = graph.buffer(RowKind::kTokens, 48, dtype);
    graph.rms_norm(x, nullptr, weights.vector(48), 0.0F, h);
  }
  BufferId buffer(std::int64_t cols, DType dtype = DType::kFloat32) {
    return graph.buffer(RowKind::kTokens, cols, dtype);
  }

  ThreadPool pool{1};
  Weights weights;
  ModelGraph graph;
  BufferId x;
  BufferId h;
};

TEST_CASE("a graph computes in bfloat16 or float32, its buffers in that or float32") {
  ThreadPool pool(1);
  CHECK(error_of([&] { ModelGraph(fake_ops(), pool, DType::kInt32); }) ==
        "ModelGraph: dtype must be bfloat16 or float32, got int32");
  ModelGraph wide(fake_ops(), pool, DType::kFloat32);
  CHECK(error_of([&] { wide.buffer(RowKind::kTokens, 4, DType::kBFloat16); }) ==
        "buffer: dtype must be float32, got bfloat16");
  ModelGraph narrow(fake_ops(), pool, DType::kBFloat16);
  CHECK(error_of([&] { narrow.buffer(RowKind::kTokens, 4, DType::kInt32); }) ==
        "buffer: dtype must be float32 or bfloat16, got int32");
}

TEST_CASE("the options of embedding and linear are checked where they are recorded") {
  Recording r;
  const TensorView table = r.weights.bfloat16(kVocab, 48);
  const BufferId out = r.buffer(48);
  CHECK(error_of([&] { r.graph.embedding(table, r.weights.matrix(5, 11), 1.0F, out); }) ==
        "embedding: position_table must have as many columns as the table = 48, got 11");
  CHECK(error_of([&] { r.graph.embedding(table, r.weights.bfloat16(5, 48), 1.0F, out); }) ==
        "embedding: position_table must be a float32 array of rank 2 with dense rows, got bfloat16 of rank 2");
  CHECK(error_of([&] { r.graph.embedding(table, {}, kNan, out); }).starts_with("embedding: scale must be finite"));
  const PackedLinear& weight = r.weights.packed(48, 48);
  CHECK(error_of([&] { r.graph.linear(r.h, weight, r.weights.vector(11), out); }) ==
        "linear: bias must have as many elements as the weight has out_features = 48, got 11");
  CHECK(error_of([&] { r.graph.linear(r.h, r.weights.packed(48, 48, "fake", DType::kFloat32), {}, out); }) ==
        "linear: weight must be packed as bfloat16, as the graph computes, got float32");
  r.graph.linear(r.h, weight, r.weights.vector(48), out);
}

TEST_CASE("a norm may write float32 or the activation dtype, and layer_norm's bias has a column for each of x") {
  Recording r;
  const TensorView weight = r.weights.vector(48);
  const BufferId out = r.buffer(48, DType::kBFloat16);
  CHECK(error_of([&] { r.graph.layer_norm(r.x, nullptr, weight, r.weights.vector(13), 0.0F, out); }) ==
        "layer_norm: bias must have as many elements as x has columns = 48, got 13");
  CHECK(error_of([&] {
          r.graph.layer_norm(r.x, nullptr, weight, {}, -1.0F, out);
        }).starts_with("layer_norm: eps must be finite and >= 0"));
  r.graph.layer_norm(r.x, nullptr, weight, {}, 0.0F, out);
  r.graph.rms_norm(r.x, nullptr, weight, 0.0F, r.buffer(48));
  CHECK(error_of([&] { r.graph.rms_norm(r.x, nullptr, weight, 0.0F, out); }).find("written before") !=
        std::string::npos);
}

TEST_CASE("ops in place say what they cannot add or bend") {
  Recording r;
  CHECK(error_of([&] { r.graph.add(r.x, r.x); }) == "add: y must be another buffer than x, both are 0");
  CHECK(error_of([&] { r.graph.add(r.x, r.h); }) == "add: y must be float32, buffer 1 is bfloat16");
  const BufferId wide = r.buffer(14);
  CHECK(error_of([&] { r.graph.add(r.x, wide); }).find("written by an earlier op") != std::string::npos);
  r.graph.linear(r.h, r.weights.packed(14, 48), {}, wide);
  CHECK(error_of([&] { r.graph.add(r.x, wide); }) == "add: y must be [tokens, 48] as x is, got [tokens, 14]");
  for (const float cap : {0.0F, -1.0F, kNan, std::numeric_limits<float>::infinity()}) {
    CHECK(error_of([&] { r.graph.soft_cap(r.x, cap); }).starts_with("soft_cap: cap must be finite and > 0, got"));
  }
  CHECK(error_of([&] { r.graph.soft_cap(r.h, 1.0F); }) == "soft_cap: x must be float32, buffer 1 is bfloat16");
  r.graph.soft_cap(r.x, 1.0F);
}

TEST_CASE("the options of attention are checked where they are recorded") {
  Recording r;
  const BufferId qkv = r.buffer(4 * kHeadDim);
  r.graph.linear(r.h, r.weights.packed(4 * kHeadDim, 48), {}, qkv);
  const BufferId q = r.buffer(2 * kHeadDim, DType::kBFloat16);
  const auto write = [&](const RotaryOptions& options, std::int64_t num_kv_heads = 1,
                         std::int64_t head_dim = kHeadDim) {
    return error_of([&] { r.graph.rotary_cache_write(qkv, 0, num_kv_heads, head_dim, options, q); });
  };
  for (const std::int64_t rotary : {3, 18}) {
    CHECK(write({.cos_sin = r.weights.matrix(8, rotary)}) ==
          "rotary_cache_write: cos_sin must have an even number of columns, at most head_dim = 16, got " +
              std::to_string(rotary));
  }
  CHECK(write({.q_norm = r.weights.vector(kHeadDim)}) ==
        "rotary_cache_write: q_norm and k_norm must be given both or neither");
  CHECK(write({.q_norm = r.weights.vector(kHeadDim), .k_norm = r.weights.vector(5)}) ==
        "rotary_cache_write: k_norm must have as many elements as a head = 16, got 5");
  CHECK(write({}, 2).starts_with("rotary_cache_write: qkv must have (Hq + 2 Hkv) * D columns"));
  CHECK(write({}, 0).starts_with("rotary_cache_write: qkv must have (Hq + 2 Hkv) * D columns"));
  CHECK(write({}, std::int64_t{1} << 62).starts_with("rotary_cache_write: qkv must have (Hq + 2 Hkv) * D columns"));
  for (const std::int64_t head_dim : {-16, 0, 1, 8, 24, 257, 272}) {
    CHECK(write({}, 1, head_dim) ==
          "rotary_cache_write: head_dim must be a multiple of 16, at most 256, got " + std::to_string(head_dim));
  }
  CHECK(write({}) == "no error");

  const BufferId out = r.buffer(2 * kHeadDim, DType::kBFloat16);
  const auto attend = [&](const AttentionOptions& options) {
    return error_of([&] { r.graph.paged_attention(q, 0, options, out); });
  };
  CHECK(attend({.scale = kNan}).starts_with("paged_attention: scale must be finite"));
  CHECK(attend({.soft_cap = -1.0F}).starts_with("paged_attention: soft_cap must be finite and >= 0"));
  CHECK(attend({.window = -1}) == "paged_attention: window must be >= 0, got -1");
  CHECK(attend({.alibi_slopes = r.weights.vector(1)}) ==
        "paged_attention: alibi_slopes must have one element for each head of q = 2, got 1");
  CHECK(attend({.soft_cap = 1.0F, .window = 1, .alibi_slopes = r.weights.vector(2)}) == "no error");
}

TEST_CASE("a KV cache of the other dtype is refused") {
  Recording r(DType::kFloat32);
  const BufferId q = r.buffer(kHeadDim);
  r.graph.rotary_cache_write(r.x, 0, 1, kHeadDim, {}, q);
  CHECK(error_of([&] { r.graph.bind_kv_cache(KVMemory(1).view); }) ==
        "bind_kv_cache: kv_cache must be a float32 array of rank 6, got bfloat16 of rank 6");
  const KVMemory kv(1, 1, DType::kFloat32);
  r.graph.bind_kv_cache(kv.view);
  r.graph.check_invariants();
}

TEST_CASE("a KV cache of 8 bits is bytes, head_dim + 4 for each slot") {
  Recording r(DType::kFloat32);
  const BufferId q = r.buffer(kHeadDim);
  r.graph.rotary_cache_write(r.x, 0, 1, kHeadDim, {}, q);
  std::vector<std::uint32_t> words(2 * 2 * 8 * (kHeadDim + 4) / 4);
  const auto bind = [&](std::initializer_list<std::int64_t> shape, DType dtype) {
    return error_of([&] { r.graph.bind_kv_cache(TensorView::dense(words.data(), dtype, shape)); });
  };
  CHECK(bind({2, 1, 2, 1, 8 * (kHeadDim + 4)}, DType::kInt8) == "no error");
  r.graph.check_invariants();
  CHECK(bind({1, 2, 2, 1, 8 * (kHeadDim + 4)}, DType::kFp8E4M3) == "no error");  // more layers than are recorded
  const std::string wanted = "bind_kv_cache: kv_cache must be [num_blocks, 1, 2, 1, block_size * " +
                             std::to_string(kHeadDim + 4) + "] bytes of fp8_e5m2, got [";
  CHECK(bind({2, 1, 2, 1, 9}, DType::kFp8E5M2) == wanted + "2, 1, 2, 1, 9]");
  CHECK(bind({2, 1, 2, 1, 0}, DType::kFp8E5M2) == wanted + "2, 1, 2, 1, 0]");
  CHECK(bind({1, 1, 2, 2, kHeadDim + 4}, DType::kFp8E5M2).starts_with(wanted));
  CHECK(bind({2, 2, 1, kHeadDim + 4}, DType::kFp8E5M2).starts_with(wanted));
  CHECK(bind({1, 1, 2, 1, 2, kHeadDim}, DType::kFp8E5M2).starts_with(wanted));
}

// A graph that ends in sampled rows of x; with the rotation's table of `rotary` positions, or none.
void finish(Recording& r, std::int64_t rotary, const KVMemory& kv) {
  const BufferId q = r.buffer(kHeadDim, DType::kBFloat16);
  RotaryOptions options;
  if (rotary > 0) {
    options.cos_sin = r.weights.matrix(rotary, 2);
  }
  r.graph.rotary_cache_write(r.x, 0, 1, kHeadDim, options, q);
  const BufferId rows = r.graph.buffer(RowKind::kSamples, 48, DType::kFloat32);
  r.graph.gather_rows(r.x, rows);
  r.graph.finalize(rows, 9, 4);
  r.graph.bind_kv_cache(kv.view);
}

TEST_CASE("positions must lie in every table that is read by them") {
  const KVMemory kv(1);
  std::mt19937 random(1);
  BatchArrays arrays(2, 3, {4}, random);
  for (const auto& [positions, rotary, limit] : {std::tuple{7, 20, 7}, {20, 7, 7}, {7, 0, 7}, {0, 7, 7}}) {
    Recording r;
    if (positions > 0) {
      r.graph.embedding(r.weights.bfloat16(kVocab, 48), r.weights.matrix(positions, 48), 1.0F, r.buffer(48));
    }
    finish(r, rotary, kv);
    arrays.positions[4] = limit - 1;
    CHECK(error_of([&] { r.graph.run(arrays.batch()); }) == "no error");
    arrays.positions[4] = limit;
    CHECK(error_of([&] { r.graph.run(arrays.batch()); }) == "batch.positions must lie in [0, 7), got 7");
    arrays.positions[4] = -1;
    CHECK(error_of([&] { r.graph.run(arrays.batch()); }) == "batch.positions must lie in [0, 7), got -1");
  }
}

TEST_CASE("without a table by position no position is looked at, and without attention one still is") {
  const KVMemory kv(1);
  std::mt19937 random(1);
  BatchArrays arrays(2, 3, {4}, random);
  arrays.positions = {1 << 30};
  Recording attention;
  finish(attention, 0, kv);
  CHECK(error_of([&] { attention.graph.run(arrays.batch()); }) == "no error");

  Recording table;
  table.graph.embedding(table.weights.bfloat16(kVocab, 48), table.weights.matrix(7, 48), 1.0F, table.buffer(48));
  const BufferId rows = table.graph.buffer(RowKind::kSamples, 48, DType::kFloat32);
  table.graph.gather_rows(table.x, rows);
  table.graph.finalize(rows, 9, 4);
  CHECK(error_of([&] { table.graph.run(arrays.batch()); }) == "batch.positions must have 5 elements, got 1");
  arrays.positions = {0, 1, 0, 1, 7};
  CHECK(error_of([&] { table.graph.run(arrays.batch()); }) == "batch.positions must lie in [0, 7), got 7");
}

TEST_CASE("describe says every option") {
  Recording r;
  r.graph.embedding(r.weights.bfloat16(kVocab, 48), r.weights.matrix(7, 48), 3.5F, r.buffer(48));
  r.graph.soft_cap(r.x, 30.0F);
  r.graph.add(r.x, 2);
  r.graph.linear(r.h, r.weights.packed(48, 48), r.weights.vector(48), r.buffer(48, DType::kBFloat16),
                 Activation::kRelu);
  r.graph.linear(r.h, r.weights.packed(48, 48, "fake", DType::kBFloat16, /*gated=*/true), {},
                 r.buffer(24, DType::kBFloat16), Activation::kSilu);
  const std::string text = r.graph.describe();
  for (const char* part : {"graph for fake in bfloat16: 7 nodes", "2: embedding vocab=11 scale=3.5 positions=7 -> #2",
                           "3: soft_cap cap=30  #0 -> #0 [T, 48] float32", "4: add  #0 += #2 -> #0",
                           "5: linear weight=[48, 48] bias relu  #1 -> #3 [T, 48] bfloat16",
                           "6: linear weight=[48, 48] gated silu  #1 -> #4 [T, 24] bfloat16"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
}

}  // namespace
}  // namespace fastpaged
