#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/row_math.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
// bias: null for none.
template <typename Element>
static void normalize(const float* x, const float* weight, const float* bias, float eps, std::int64_t size,
                      Element* out) {
  const float rough_mean = sum(x, size) / static_cast<float>(size);
  const float mean = rough_mean + sum(x, size, rough_mean) / static_cast<float>(size);  // a large one has lost digits
  const Floats scale = inverse_root_of_mean(sum_of_squares(x, size, mean), size, eps);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::int64_t count = size - i;
    const Floats normed = mul(mul(sub(load(x + i, count), set1(mean)), scale), load(weight + i, count));
    store(out + i, bias == nullptr ? normed : add(normed, load(bias + i, count)), count);
  }
}
FASTPAGED_END_TARGET

void layer_norm(const LayerNormParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t hidden = params.x.shape[1];
  const auto* weight = params.weight.ptr<const float>();
  const auto* bias = params.bias.ptr<const float>();
  with_element(params.out.dtype, [&](auto element) {
    for_each_row(pool, params.x.shape[0], hidden, [&](std::int64_t t) {
      auto* x = params.x.row<float>(t);
      if (!params.residual.empty()) {
        add_to(x, params.residual.row<const float>(t), hidden);
      }
      normalize(x, weight, bias, params.eps, hidden, params.out.row<decltype(element)>(t));
    });
  });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
