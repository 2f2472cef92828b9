#include <cmath>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {
namespace {

template <typename Value>
float mean_of(std::int64_t size, const Value& value) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < size; ++i) {
    sum += value(i);
  }
  return sum / static_cast<float>(size);
}

// One running sum loses digits of a mean that is large beside the deviation, and float32 may not hold that mean at all:
// so it is taken in two parts, the second being the mean of what the first leaves. bias: null for none.
template <typename Out>
void normalize(const float* x, const float* weight, const float* bias, float eps, std::int64_t hidden, Out* out) {
  const float rough_mean = mean_of(hidden, [&](std::int64_t i) { return x[i]; });
  const float rest = mean_of(hidden, [&](std::int64_t i) { return x[i] - rough_mean; });
  const auto centred = [&](std::int64_t i) { return (x[i] - rough_mean) - rest; };
  const float variance = mean_of(hidden, [&](std::int64_t i) { return centred(i) * centred(i); });
  const float scale = 1.0F / std::sqrt(variance + eps);
  for (std::int64_t i = 0; i < hidden; ++i) {
    const float scaled = centred(i) * scale * weight[i];
    out[i] = rounded_to<Out>(bias == nullptr ? scaled : scaled + bias[i]);
  }
}

}  // namespace

void layer_norm(const LayerNormParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t hidden = params.x.shape[1];
  const auto* bias = params.bias.ptr<const float>();
  const RowTiles tiles = RowTiles::of_size(params.x.shape[0], hidden);
  with_element(params.out.dtype, [&](auto element) {
    for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
      for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        auto* x = params.x.row<float>(t);
        for (std::int64_t i = 0; !params.residual.empty() && i < hidden; ++i) {
          x[i] += params.residual.row<const float>(t)[i];
        }
        normalize(x, params.weight.ptr<const float>(), bias, params.eps, hidden, params.out.row<decltype(element)>(t));
      }
    });
  });
}

}  // namespace fastpaged::reference
