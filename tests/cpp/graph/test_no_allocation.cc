#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "fastpaged/graph/model_graph.h"
#include "graph/fake_ops.h"

namespace {
std::atomic<int> num_allocations{0};
}  // namespace

// This test binary's own allocator: malloc that counts.
void* operator new(std::size_t num_bytes, const std::nothrow_t& /*tag*/) noexcept {
  ++num_allocations;
  return std::malloc(num_bytes);
}
void* operator new(std::size_t num_bytes) {
  void* const memory = operator new(num_bytes, std::nothrow);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*num_bytes*/) noexcept {
  std::free(memory);
}

namespace fastpaged {
namespace {

TEST_CASE("a run allocates nothing") {
  ThreadPool pool(1);
  ModelGraph graph(testing::fake_ops(), pool);
  std::vector<BFloat16> table(8 * 4);
  const std::vector<float> weight(4, 1.0F);
  const BufferId x = graph.buffer(RowKind::kTokens, 4, DType::kFloat32);
  const BufferId rows = graph.buffer(RowKind::kSamples, 4, DType::kFloat32);
  const BufferId h = graph.buffer(RowKind::kSamples, 4, DType::kBFloat16);
  const BufferId out = graph.buffer(RowKind::kSamples, 2, DType::kFloat32);
  PackedLinear head(2, 4, 2 * 4 * sizeof(float), "fake");
  graph.embedding(TensorView::dense(table.data(), DType::kBFloat16, {8, 4}), x);
  graph.gather_rows(x, rows);
  graph.rms_norm(rows, nullptr, TensorView::dense(const_cast<float*>(weight.data()), DType::kFloat32, {4}), 0.0F, h);
  graph.linear(h, head, out);
  graph.finalize(out, 16, 16);

  const std::vector<std::int32_t> token_ids = {1, 2, 7};
  const std::vector<std::int32_t> sample_rows = {2};
  Batch batch;
  batch.token_ids = token_ids;
  batch.sample_rows = sample_rows;
  const int before = num_allocations;
  graph.run(batch);
  CHECK(num_allocations - before == 0);
  const std::vector<float> counted(5);
  CHECK(num_allocations - before >= 1);
}

}  // namespace
}  // namespace fastpaged
