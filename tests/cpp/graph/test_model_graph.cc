#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastpaged/graph/model_graph.h"
#include "graph/fake_ops.h"
#include "graph/twin_graph.h"

namespace fastpaged {
namespace {

using testing::BatchArrays;
using testing::fake_ops;
using testing::kHeadDim;
using testing::kMaxSamples;
using testing::kMaxTokens;
using testing::KVMemory;
using testing::kVocab;
using testing::TwinGraph;
using testing::Weights;

std::vector<float> logits(const ModelGraph& graph) {
  const TensorView view = graph.output();
  return {view.ptr<float>(), view.ptr<float>() + view.shape[0] * view.shape[1]};
}

// A random pass: layers of attention and of gated or plain blocks, their sums added up by the linear that makes them,
// by a norm, by an add of its own, or behind a norm in float32; some values read late.
BufferId record_random(TwinGraph& twin, std::int32_t num_layers, const TensorView& kv) {
  std::mt19937& random = twin.weights.random();
  const std::int64_t hidden = 4 + static_cast<std::int64_t>(random() % 13);
  BufferId x = twin.embedding(hidden);
  BufferId h = twin.rms_norm(x, nullptr);
  const BufferId early = h;  // read again in the last layer
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    const std::int64_t num_heads = 1 + static_cast<std::int64_t>(random() % 3);
    const BufferId a = twin.attention(twin.linear(h, (num_heads + 2) * kHeadDim), layer, kv);
    const BufferId o = twin.linear(a, hidden);
    if (random() % 3 == 0) {  // beside the block that follows
      twin.add(x, o);
    } else if (random() % 3 == 0) {  // o is read once more, so that something stands between
      h = twin.rms_norm(o, nullptr);
      twin.add(x, o);
    } else {
      h = random() % 2 == 0 ? twin.rms_norm(x, &o) : twin.layer_norm(x, &o);
    }
    const BufferId block_input = layer + 1 < num_layers ? h : early;
    const BufferId g =
        random() % 2 == 0 ? twin.gated_linear(block_input, 1 + layer % 5) : twin.activated_linear(block_input, 3);
    BufferId d = twin.linear(g, hidden);
    if (random() % 3 == 0) {
      twin.add(x, d);
      h = twin.rms_norm(x, nullptr);
      continue;
    }
    if (random() % 2 == 0) {
      d = twin.rms_norm(d, nullptr, true);
    }
    if (random() % 2 == 0) {
      h = twin.rms_norm(x, &d);
    } else {  // the stream goes on in the other buffer
      h = twin.layer_norm(d, &x);
      x = d;
    }
  }
  const BufferId rows = twin.gather_rows(x);
  const BufferId output = twin.linear(twin.rms_norm(rows, nullptr), kVocab);
  if (random() % 2 == 0) {
    twin.soft_cap(output);
  }
  return output;
}

TEST_CASE("a graph computes what the same calls compute when no buffer shares memory") {
  ThreadPool pool(1);
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    const std::int32_t num_layers = 1 + static_cast<std::int32_t>(seed % 5);
    const DType dtype = seed % 2 == 0 ? DType::kBFloat16 : DType::kFloat32;
    KVMemory kv(num_layers, 1, dtype);
    KVMemory twin_kv(num_layers, 1, dtype);
    TwinGraph twin(seed, pool, dtype);
    const BufferId output = record_random(twin, num_layers, twin_kv.view);
    twin.graph.finalize(output, kMaxTokens, kMaxSamples);
    twin.graph.check_invariants();
    twin.graph.bind_kv_cache(kv.view);
    std::mt19937& random = twin.weights.random();
    for (int step = 0; step < 4; ++step) {
      const std::int32_t first = 1 + static_cast<std::int32_t>(random() % 5);
      const std::int32_t second = static_cast<std::int32_t>(random() % 5);
      std::vector<std::int32_t> samples(random() % (kMaxSamples + 1));
      for (std::int32_t& row : samples) {
        row = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(first + second));
      }
      const BatchArrays arrays(first, second, samples, random);
      const std::vector<float> expected = twin.expected(output, arrays.batch());
      twin.graph.run(arrays.batch());
      REQUIRE(logits(twin.graph) == expected);
      REQUIRE(twin.graph.output().shape[0] == static_cast<std::int64_t>(samples.size()));
    }
  }
}

// embedding -> norm -> linear, and so on: a plain chain of `depth` blocks.
BufferId record_chain(ModelGraph& graph, Weights& weights, int depth) {
  const BufferId x = graph.buffer(RowKind::kTokens, 16, DType::kFloat32);
  graph.embedding(weights.bfloat16(kVocab, 16), {}, 1.0F, x);
  BufferId h = graph.buffer(RowKind::kTokens, 16, DType::kBFloat16);
  graph.rms_norm(x, nullptr, weights.vector(16), 0.0F, h);
  for (int i = 0; i < depth; ++i) {
    const BufferId y = graph.buffer(RowKind::kTokens, 16, DType::kFloat32);
    graph.linear(h, weights.packed(16, 16), {}, y);
    h = graph.buffer(RowKind::kTokens, 16, DType::kBFloat16);
    graph.rms_norm(x, &y, weights.vector(16), 0.0F, h);
  }
  const BufferId rows = graph.buffer(RowKind::kSamples, 16, DType::kFloat32);
  graph.gather_rows(x, rows);
  const BufferId head = graph.buffer(RowKind::kSamples, 16, DType::kBFloat16);
  graph.rms_norm(rows, nullptr, weights.vector(16), 0.0F, head);
  const BufferId out = graph.buffer(RowKind::kSamples, kVocab, DType::kFloat32);
  graph.linear(head, weights.packed(kVocab, 16), {}, out);
  return out;
}

TEST_CASE("a deeper model needs no larger arena") {
  ThreadPool pool(1);
  std::size_t arena_bytes = 0;
  for (const int depth : {2, 30}) {
    Weights weights(3);
    ModelGraph graph(fake_ops(), pool, DType::kBFloat16);
    const BufferId output = record_chain(graph, weights, depth);
    graph.finalize(output, 100, 10);
    graph.check_invariants();
    CHECK((arena_bytes == 0 || graph.arena_bytes() == arena_bytes));
    arena_bytes = graph.arena_bytes();
  }
}

TEST_CASE("a step without samples leaves the head out, a step without tokens runs nothing") {
  static int calls[2];  // op table entries are plain functions
  static std::int64_t norm_rows;
  OpTable counting = fake_ops();
  counting.gather_rows = [](const GatherRowsParams& p, ThreadPool& pool) {
    ++calls[0];
    testing::fake_gather_rows(p, pool);
  };
  counting.rms_norm = [](const RmsNormParams& p, ThreadPool& pool) {
    ++calls[1];
    norm_rows = p.x.shape[0];
    testing::fake_rms_norm(p, pool);
  };
  ThreadPool pool(1);
  Weights weights(5);
  ModelGraph graph(counting, pool, DType::kBFloat16);
  const BufferId output = record_chain(graph, weights, 0);
  graph.finalize(output, kMaxTokens, kMaxSamples);
  const BatchArrays with_samples(2, 3, {4}, weights.random());
  const BatchArrays without_samples(2, 3, {}, weights.random());

  calls[0] = calls[1] = 0;
  graph.run(with_samples.batch());
  CHECK(calls[0] == 1);
  CHECK(calls[1] == 2);
  CHECK(norm_rows == 1);
  graph.run(without_samples.batch());
  CHECK(calls[0] == 1);
  CHECK(calls[1] == 3);
  CHECK(norm_rows == 5);
  CHECK(graph.output().shape[0] == 0);
  graph.run(Batch{});
  CHECK(calls[1] == 3);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos) {
      MESSAGE("got: " << message);
      return false;
    }
  }
  return true;
}

TEST_CASE("recording names what does not fit, with both values") {
  ThreadPool pool(1);
  Weights weights(7);
  ModelGraph graph(fake_ops(), pool, DType::kBFloat16);
  const BufferId x = graph.buffer(RowKind::kTokens, 16, DType::kFloat32);
  const BufferId h = graph.buffer(RowKind::kTokens, 16, DType::kBFloat16);
  const BufferId y = graph.buffer(RowKind::kTokens, 48, DType::kFloat32);
  CHECK(says(error_of([&] { graph.rms_norm(x, nullptr, weights.vector(16), 0.0F, h); }), {"rms_norm: x", "written"}));
  CHECK(says(error_of([&] { graph.embedding(weights.bfloat16(kVocab, 20), {}, 1.0F, x); }), {"out", "20", "16"}));
  CHECK(says(error_of([&] { graph.embedding(weights.bfloat16(kVocab, 16), {}, 1.0F, 9); }), {"out", "got 9"}));
  CHECK(says(error_of([&] { graph.embedding(weights.vector(16), {}, 1.0F, x); }), {"table", "bfloat16", "float32"}));
  graph.embedding(weights.bfloat16(kVocab, 16), {}, 1.0F, x);
  CHECK(says(error_of([&] { graph.embedding(weights.bfloat16(kVocab, 16), {}, 1.0F, x); }), {"out", "written before"}));
  CHECK(says(error_of([&] { graph.rms_norm(x, nullptr, weights.vector(15), 0.0F, h); }), {"weight", "16", "15"}));
  CHECK(says(error_of([&] { graph.rms_norm(x, &x, weights.vector(16), 0.0F, h); }), {"residual"}));
  CHECK(says(error_of([&] { graph.linear(x, weights.packed(48, 16), {}, y); }), {"linear: x", "bfloat16", "float32"}));
  graph.rms_norm(x, nullptr, weights.vector(16), 0.0F, h);
  CHECK(says(error_of([&] { graph.linear(h, weights.packed(48, 17), {}, y); }), {"in_features", "17", "16"}));
  CHECK(says(error_of([&] { graph.linear(h, weights.packed(47, 16), {}, y); }), {"out", "47", "48"}));
  CHECK(says(error_of([&] { graph.linear(h, weights.packed(48, 16, "other"), {}, y); }), {"other", "fake"}));
  CHECK(says(error_of([&] { graph.linear(h, weights.packed(48, 16), {}, y, Activation::kSilu); }),
             {"linear: out", "[tokens, 48] bfloat16", "[tokens, 48] float32"}));
  const PackedLinear& gated = weights.packed(48, 16, "fake", DType::kBFloat16, /*gated=*/true);
  CHECK(says(error_of([&] { graph.linear(h, gated, {}, y); }), {"a gated weight must have an activation"}));
  CHECK(says(error_of([&] { graph.linear(h, gated, {}, y, Activation::kSilu); }), {"linear: out", "[tokens, 24] bf"}));
  graph.linear(h, weights.packed(48, 16), {}, y);

  const BufferId q = graph.buffer(RowKind::kTokens, 16, DType::kBFloat16);
  const BufferId odd = graph.buffer(RowKind::kTokens, 14, DType::kBFloat16);
  CHECK(says(error_of([&] { graph.rotary_cache_write(y, 0, 1, 16, {.cos_sin = weights.matrix(8, 4)}, odd); }),
             {"qkv", "48", "14"}));
  CHECK(says(error_of([&] { graph.rotary_cache_write(y, -1, 1, 16, {.cos_sin = weights.matrix(8, 4)}, q); }),
             {"layer", "-1"}));
  CHECK(says(error_of([&] { graph.paged_attention(h, 0, {}, q); }), {"rotary_cache_write"}));
  graph.rotary_cache_write(y, 2, 1, 16, {.cos_sin = weights.matrix(8, 4)}, q);
  const BufferId a = graph.buffer(RowKind::kTokens, 16, DType::kBFloat16);
  graph.paged_attention(q, 2, {}, a);
  const BufferId rows = graph.buffer(RowKind::kSamples, 16, DType::kFloat32);
  graph.gather_rows(x, rows);
  CHECK(says(error_of([&] { graph.gather_rows(rows, x); }), {"token rows"}));
  CHECK(says(error_of([&] { graph.finalize(x, 4, 4); }), {"output", "sample"}));
  CHECK(says(error_of([&] { graph.finalize(rows, 4, 4); }), {"never written"}));

  ModelGraph unused(fake_ops(), pool, DType::kBFloat16);
  CHECK(says(error_of([&] { unused.buffer(RowKind::kTokens, 0, DType::kFloat32); }), {"cols", "got 0"}));
  constexpr std::int64_t kTooWide = (std::int64_t{1} << 40) + 1;
  CHECK(says(error_of([&] { unused.buffer(RowKind::kTokens, kTooWide, DType::kFloat32); }), {"got 1099511627777"}));
  const BufferId output = record_chain(unused, weights, 1);
  CHECK(says(error_of([&] { unused.finalize(output, 0, 4); }), {"max_num_tokens", "got 0"}));
  CHECK(says(error_of([&] { unused.finalize(output, std::int64_t{1} << 40, 4); }), {"max_num_tokens"}));
  unused.finalize(output, 4, 4);
  CHECK(says(error_of([&] { unused.gather_rows(0, 1); }), {"finalized"}));
}

TEST_CASE("a KV cache of another shape is refused by name") {
  ThreadPool pool(1);
  TwinGraph twin(1, pool);
  KVMemory kv(2);
  const BufferId output = record_random(twin, 2, kv.view);
  twin.graph.finalize(output, kMaxTokens, kMaxSamples);
  const BatchArrays arrays(2, 3, {4}, twin.weights.random());
  CHECK(says(error_of([&] { twin.graph.run(arrays.batch()); }), {"bind_kv_cache"}));
  CHECK(says(error_of([&] { twin.graph.bind_kv_cache(KVMemory(1).view); }), {"[num_blocks, 2, 2, 1", "[6, 1, 2, 1"}));
  CHECK(says(error_of([&] { twin.graph.bind_kv_cache(KVMemory(2, 3).view); }), {"2, 3, 3, 16]"}));
}

// A graph whose first op with a KV cache writes `layer`; more can be recorded. Returns its qkv buffer.
BufferId record_cache_write(ModelGraph& graph, Weights& weights, std::int32_t layer) {
  const BufferId qkv = graph.buffer(RowKind::kTokens, 3 * kHeadDim, DType::kFloat32);
  graph.embedding(weights.bfloat16(kVocab, 3 * kHeadDim), {}, 1.0F, qkv);
  const BufferId q = graph.buffer(RowKind::kTokens, kHeadDim, DType::kBFloat16);
  graph.rotary_cache_write(qkv, layer, 1, kHeadDim, {.cos_sin = weights.matrix(32, kHeadDim)}, q);
  return qkv;
}

TEST_CASE("a layer that the bound KV cache does not have is refused where it is recorded") {
  ThreadPool pool(1);
  Weights weights(1);
  ModelGraph graph(fake_ops(), pool, DType::kBFloat16);
  const KVMemory kv(2);
  CHECK(says(error_of([&] { graph.bind_kv_cache(kv.view); }), {"bind_kv_cache", "no op"}));
  const BufferId qkv = record_cache_write(graph, weights, 0);
  graph.bind_kv_cache(kv.view);
  const BufferId q = graph.buffer(RowKind::kTokens, kHeadDim, DType::kBFloat16);
  const BufferId out = graph.buffer(RowKind::kTokens, kHeadDim, DType::kBFloat16);
  for (const std::int32_t layer : {2, 100000, std::numeric_limits<std::int32_t>::max()}) {
    CHECK(says(error_of([&] {
                 graph.rotary_cache_write(qkv, layer, 1, kHeadDim, {.cos_sin = weights.matrix(32, kHeadDim)}, q);
               }),
               {"rotary_cache_write: layer", "2 layers", "got " + std::to_string(layer)}));
  }
  graph.rotary_cache_write(qkv, 1, 1, kHeadDim, {.cos_sin = weights.matrix(32, kHeadDim)}, q);
  CHECK(says(error_of([&] { graph.paged_attention(q, 2, {}, out); }), {"paged_attention: layer", "got 2"}));
  graph.paged_attention(q, 1, {}, out);
  graph.check_invariants();
}

TEST_CASE("the largest layer number asks for a KV cache of as many layers") {
  ThreadPool pool(1);
  Weights weights(1);
  ModelGraph graph(fake_ops(), pool, DType::kBFloat16);
  record_cache_write(graph, weights, std::numeric_limits<std::int32_t>::max());
  CHECK(says(error_of([&] { graph.bind_kv_cache(KVMemory(2).view); }), {"[num_blocks, 2147483648, 2, 1"}));
}

TEST_CASE("an op that is refused leaves nothing behind") {
  ThreadPool pool(1);
  Weights weights(1);
  ModelGraph graph(fake_ops(), pool, DType::kBFloat16);
  record_cache_write(graph, weights, 0);
  const BufferId q = 1;
  const BufferId wrong = graph.buffer(RowKind::kTokens, kHeadDim + 1, DType::kBFloat16);
  const std::string before = graph.describe();
  CHECK(says(error_of([&] { graph.paged_attention(q, 9, {}, wrong); }), {"out"}));
  CHECK(graph.describe() == before);
  graph.bind_kv_cache(KVMemory(1).view);  // layer 9 does not count
}

TEST_CASE("a finalize that finds no memory leaves the graph as it was") {
  ThreadPool pool(1);
  Weights weights(1);
  ModelGraph graph(fake_ops(), pool, DType::kBFloat16);
  constexpr int kValues = 20;  // 8 TiB each with the largest budget, all alive at once: more than an address space
  const TensorView table = weights.bfloat16(kVocab, 1024);
  for (int i = 0; i < kValues; ++i) {
    graph.embedding(table, {}, 1.0F, graph.buffer(RowKind::kTokens, 1024, DType::kFloat32));
  }
  BufferId output = 0;
  for (int i = 0; i < kValues; ++i) {
    output = graph.buffer(RowKind::kSamples, 1024, DType::kFloat32);
    graph.gather_rows(i, output);
  }
  const BatchArrays arrays(2, 3, {4}, weights.random());
  const std::string before = graph.describe();
  CHECK_THROWS_AS(graph.finalize(output, std::numeric_limits<std::int32_t>::max(), 4), std::bad_alloc);
  CHECK(graph.describe() == before);
  CHECK(graph.arena_bytes() == 0);
  CHECK(says(error_of([&] { graph.run(arrays.batch()); }), {"finalized first"}));
  CHECK(says(error_of([&] { static_cast<void>(graph.output()); }), {"finalized first"}));

  graph.finalize(output, kMaxTokens, kMaxSamples);
  graph.check_invariants();
  graph.run(arrays.batch());
  const float first = testing::widen(table.row<BFloat16>(arrays.token_ids[4])[0]);
  CHECK(logits(graph).at(0) == first);
}

TEST_CASE("a batch with an index outside its table is refused before any op runs") {
  ThreadPool pool(1);
  TwinGraph twin(1, pool);
  KVMemory kv(1);
  const BufferId output = record_random(twin, 1, kv.view);
  twin.graph.finalize(output, 5, 1);
  twin.graph.bind_kv_cache(kv.view);
  const BatchArrays good(2, 3, {4}, twin.weights.random());
  twin.graph.run(good.batch());

  const auto refused = [&](auto&& spoil, const std::vector<std::string>& parts) {
    BatchArrays bad = good;
    spoil(bad);
    return says(error_of([&] { twin.graph.run(bad.batch()); }), parts);
  };
  CHECK(refused([](BatchArrays& b) { b.token_ids[1] = kVocab; }, {"token_ids", "11)", "got 11"}));
  CHECK(refused([](BatchArrays& b) { b.token_ids[1] = -1; }, {"token_ids", "got -1"}));
  CHECK(refused([](BatchArrays& b) { b.positions[4] = 32; }, {"positions", "32)"}));
  CHECK(refused([](BatchArrays& b) { b.slot_mapping[0] = 18; }, {"slot_mapping", "18)"}));
  CHECK(refused([](BatchArrays& b) { b.block_tables[5] = 6; }, {"block_tables", "6)"}));
  CHECK(refused([](BatchArrays& b) { b.sample_rows[0] = 5; }, {"sample_rows", "5)"}));
  CHECK(refused([](BatchArrays& b) { b.sample_rows = {1, 2}; }, {"sample_rows", "at most 1", "got 2"}));
  CHECK(refused([](BatchArrays& b) { b.token_ids.resize(6); }, {"token_ids", "at most 5", "got 6"}));
  CHECK(refused([](BatchArrays& b) { b.positions.pop_back(); }, {"positions", "5", "got 4"}));
  CHECK(refused([](BatchArrays& b) { b.context_lens[1] = 10; }, {"context_lens[1]", "[3, 9]", "got 10"}));
  CHECK(refused([](BatchArrays& b) { b.context_lens[1] = 2; }, {"context_lens[1]", "got 2"}));
  CHECK(refused([](BatchArrays& b) { b.query_start = {0, 2, 4}; }, {"query_start", "5", "got 4"}));
  CHECK(refused([](BatchArrays& b) { b.query_start = {1, 2, 5}; }, {"query_start", "got 1"}));
  CHECK(refused(
      [](BatchArrays& b) {
        b.query_start = {0, 5, 3};
        b.context_lens = {5, 3};
      },
      {"query_start", "must not decrease", "got 5 before 3"}));
}

TEST_CASE("describe lists every node with its buffers") {
  ThreadPool pool(1);
  Weights weights(3);
  ModelGraph graph(fake_ops(), pool, DType::kBFloat16);
  const BufferId output = record_chain(graph, weights, 1);
  graph.finalize(output, 100, 10);
  const std::string text = graph.describe();
  CHECK(says(text, {"7 nodes", "T <= 100, R <= 10", "1: rms_norm eps=0  #0 -> #1 [T, 16] bfloat16 @ ",
                    "3: rms_norm eps=0  #0 += #2 -> #3", "gather_rows  #0 -> #4 [R, 16] float32"}));
}

}  // namespace
}  // namespace fastpaged
