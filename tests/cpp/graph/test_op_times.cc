// What a timed graph counts: calls that are alike, what they cost, and what the limits allow each of them.
#include "fastpaged/graph/op_times.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fastpaged/graph/model_graph.h"
#include "graph/fake_ops.h"
#include "graph/twin_graph.h"

namespace fastpaged {
namespace {

using testing::Weights;

// embedding, two linear layers of one shape, a norm of sampled rows, a head of another shape.
struct Recorded {
  explicit Recorded(ThreadPool& pool) : weights(5), graph(testing::fake_ops(), pool, DType::kBFloat16) {
    const BufferId x = graph.buffer(RowKind::kTokens, 4, DType::kFloat32);
    graph.embedding(weights.bfloat16(testing::kVocab, 4), {}, 1.0F, x);
    BufferId last = x;
    for (int layer = 0; layer < 2; ++layer) {
      const BufferId h = graph.buffer(RowKind::kTokens, 4, DType::kBFloat16);
      graph.rms_norm(last, nullptr, weights.vector(4), 0.0F, h);
      last = graph.buffer(RowKind::kTokens, 4, DType::kFloat32);
      graph.linear(h, weights.packed(4, 4), {}, last);
    }
    const BufferId rows = graph.buffer(RowKind::kSamples, 4, DType::kFloat32);
    graph.gather_rows(last, rows);
    const BufferId h = graph.buffer(RowKind::kSamples, 4, DType::kBFloat16);
    graph.rms_norm(rows, nullptr, weights.vector(4), 0.0F, h);
    const BufferId logits = graph.buffer(RowKind::kSamples, 7, DType::kFloat32);
    graph.linear(h, weights.packed(7, 4), {}, logits);
    graph.finalize(logits, 16, 16);
  }
  void run(std::int32_t num_tokens, std::vector<std::int32_t> sample_rows) {
    const std::vector<std::int32_t> token_ids(static_cast<std::size_t>(num_tokens), 1);
    Batch batch;
    batch.token_ids = token_ids;
    batch.sample_rows = sample_rows;
    graph.run(batch);
  }
  [[nodiscard]] const OpTime& of(const std::string& label) const {
    for (const OpTime& times : graph.op_times()->times()) {
      if (times.label() == label) {
        return times;
      }
    }
    FAIL("no op called " << label);
    return graph.op_times()->times().front();
  }

  Weights weights;
  ModelGraph graph;
};

TEST_CASE("linear layers of one shape are counted together, and those of another apart") {
  ThreadPool pool(1);
  Recorded recorded(pool);
  recorded.graph.time_ops();
  recorded.run(3, {1});
  recorded.run(5, {});  // the nodes on sampled rows are left out
  const OpTime& square = recorded.of("linear 4x4");
  CHECK((square.num_calls == 4));
  CHECK((square.cost.weight_bytes == 4 * 16 * 2));
  CHECK((square.cost.flops == 2 * 16 * 2 * (3 + 5)));
  CHECK((square.cost.activation_bytes == 2 * (3 + 5) * 4 * (2 + 4)));
  const OpTime& head = recorded.of("linear 4x7");
  CHECK((head.num_calls == 1));
  CHECK((head.cost.flops == 2 * 28));
  CHECK((std::string(head.name()) == "linear"));
  CHECK((recorded.of("rms_norm").num_calls == 2 + 1 + 2));
  CHECK((recorded.of("embedding").cost.weight_bytes == (3 + 5) * 4 * 2));
  CHECK((recorded.graph.op_times()->runs_limit_seconds() == 0.0));  // no rate is known
}

TEST_CASE("limits are those of each call, not of their sum") {
  ThreadPool pool(1);
  Recorded recorded(pool);
  // 32 bytes of weights in 32 s; 32 flops a token in 8 s: 3 tokens are bound by memory, 5 by arithmetic.
  recorded.graph.time_ops({.memory_rate = 1.0, .flop_rate = 4.0});
  recorded.run(3, {});
  recorded.run(5, {});
  CHECK((recorded.of("linear 4x4").limit_seconds == doctest::Approx(2 * 32.0 + 2 * 40.0)));
}

TEST_CASE("a run's limit is that of its memory and of its arithmetic as wholes") {
  ThreadPool pool(1);
  Recorded recorded(pool);
  recorded.graph.time_ops({.memory_rate = 1.0, .cache_rate = 1e-9, .cache_bytes = 1 << 20, .flop_rate = 1e9});
  recorded.run(3, {});
  const double bytes = 3 * 4 * 2 + 2 * (4 * 4 + 32);  // rows of the table; two norms and two linear layers
  CHECK((recorded.graph.op_times()->runs_limit_seconds() == doctest::Approx(bytes)));
  recorded.run(3, {});
  CHECK((recorded.graph.op_times()->runs_limit_seconds() == doctest::Approx(2 * bytes)));
  recorded.graph.time_ops();
  CHECK((recorded.graph.op_times()->times().empty()));
}

TEST_CASE("attention with a window has a name of its own") {
  OpTime times;
  times.op = 5;
  CHECK((times.label() == "paged_attention"));
  times.shape = {512, 0};
  CHECK((times.label() == "paged_attention window 512"));
}

}  // namespace
}  // namespace fastpaged
