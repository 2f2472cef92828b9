#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
// position: null for none.
template <typename Element>
static void embed(const Element* row, float scale, const float* position, std::int64_t size, float* out) {
  const Floats scales = set1(scale);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t count = size - i;
    const Floats scaled = mul(load(row + i, count), scales);
    store(out + i, position == nullptr ? scaled : add(scaled, load(position + i, count)), count);
  }
}
FASTPAGED_END_TARGET

void embedding(const EmbeddingParams& params, ThreadPool& pool) {
  validate(params);
  const auto* token_ids = params.token_ids.ptr<const std::int32_t>();
  const auto* positions = params.positions.ptr<const std::int32_t>();
  const bool has_positions = !params.position_table.empty();
  const std::int64_t hidden = params.out.shape[1];
  with_element(params.table.dtype, [&](auto element) {
    for_each_row(pool, params.out.shape[0], hidden, [&](std::int64_t t) {
      const float* position = has_positions ? params.position_table.row<const float>(positions[t]) : nullptr;
      embed(params.table.row<const decltype(element)>(token_ids[t]), params.scale, position, hidden,
            params.out.row<float>(t));
    });
  });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
