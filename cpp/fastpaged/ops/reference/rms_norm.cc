#include <cmath>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {
namespace {

template <typename Out>
void normalize(float* x, const float* residual, const float* weight, float eps, std::int64_t hidden, Out* out) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < hidden; ++i) {
    if (residual != nullptr) {
      x[i] += residual[i];
    }
    sum += x[i] * x[i];
  }
  const float scale = 1.0F / std::sqrt(sum / static_cast<float>(hidden) + eps);
  for (std::int64_t i = 0; i < hidden; ++i) {
    out[i] = rounded_to<Out>(x[i] * scale * weight[i]);
  }
}

}  // namespace

void rms_norm(const RmsNormParams& params, ThreadPool& pool) {
  validate(params);
  const std::int64_t hidden = params.x.shape[1];
  const RowTiles tiles = RowTiles::of_size(params.x.shape[0], hidden);
  with_element(params.out.dtype, [&](auto element) {
    for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
      for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        const float* residual = params.residual.empty() ? nullptr : params.residual.row<const float>(t);
        normalize(params.x.row<float>(t), residual, params.weight.ptr<const float>(), params.eps, hidden,
                  params.out.row<decltype(element)>(t));
      }
    });
  });
}

}  // namespace fastpaged::reference
