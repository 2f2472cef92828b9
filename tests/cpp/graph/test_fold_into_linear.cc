// add() of what a linear computes: that linear adds it itself.
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "fastpaged/graph/model_graph.h"
#include "graph/fake_ops.h"
#include "graph/twin_graph.h"

namespace fastpaged {
namespace {

using testing::fake_ops;
using testing::kVocab;
using testing::Weights;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("what a linear adds to another buffer is never in memory, and nothing may read it") {
  ThreadPool pool(1);
  Weights weights(4);
  ModelGraph graph(fake_ops(), pool, DType::kBFloat16);
  const auto tokens = [&](std::int64_t cols, DType dtype) { return graph.buffer(RowKind::kTokens, cols, dtype); };
  const BufferId x = tokens(16, DType::kFloat32);
  graph.embedding(weights.bfloat16(kVocab, 16), {}, 1.0F, x);
  const BufferId h = tokens(16, DType::kBFloat16);
  graph.rms_norm(x, nullptr, weights.vector(16), 0.0F, h);
  const BufferId y = tokens(16, DType::kFloat32);
  graph.linear(h, weights.packed(16, 16), {}, y);
  graph.add(x, y);
  CHECK(graph.describe().find("2: linear weight=[16, 16] added  #1 -> #0 [T, 16] float32\n") != std::string::npos);
  const std::string gone = " must still be there, buffer 2 is not: the linear that computed it has added it to another";
  CHECK(error_of([&] { graph.soft_cap(y, 1.0F); }) == "soft_cap: x" + gone);
  CHECK(error_of([&] { graph.add(x, y); }) == "add: y" + gone);
  CHECK(error_of([&] { graph.linear(h, weights.packed(16, 16), {}, y); }).find("written before") != std::string::npos);
  const BufferId rows = graph.buffer(RowKind::kSamples, 16, DType::kFloat32);
  graph.gather_rows(x, rows);
  graph.finalize(rows, 100, 1);
  graph.check_invariants();
  CHECK(graph.arena_bytes() == 100 * 16 * (4 + 2) + 64);  // x and h; one row
}

TEST_CASE(
    "a linear that reads what it would add to, or has an activation, or is not the last, leaves the sum to an op") {
  ThreadPool pool(1);
  Weights weights(4);
  ModelGraph graph(fake_ops(), pool, DType::kFloat32);
  const auto buffer = [&] { return graph.buffer(RowKind::kTokens, 16, DType::kFloat32); };
  const PackedLinear& square = weights.packed(16, 16, "fake", DType::kFloat32);
  const BufferId x = buffer();
  graph.embedding(weights.matrix(kVocab, 16), {}, 1.0F, x);
  const BufferId h = buffer();
  graph.rms_norm(x, nullptr, weights.vector(16), 0.0F, h);
  const auto last_node = [&](BufferId source, std::optional<Activation> activation, BufferId later) {
    const BufferId y = buffer();
    graph.linear(source, square, {}, y, activation);
    if (later >= 0) {
      graph.soft_cap(later, 1.0F);
    }
    graph.add(x, y);
    const std::string text = graph.describe();
    return text.substr(text.rfind(": ", text.rfind(" -> ")) + 2, 6);
  };
  CHECK(last_node(x, {}, -1) == "add  #");
  CHECK(last_node(h, Activation::kRelu, -1) == "add  #");
  CHECK(last_node(h, {}, h) == "add  #");
  CHECK(last_node(h, {}, -1) == "linear");
}

}  // namespace
}  // namespace fastpaged
