#include <algorithm>
#include <array>
#include <cmath>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/reference/for_each_tile.h"
#include "fastpaged/ops/reference/kv_access.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/row_tiles.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::reference {
namespace {

// What becomes of a head of q or k: its norm, then its rotation.
struct HeadChange {
  const float* norm;     // [D], or null
  float eps;             // of the norm
  const float* cos_sin;  // [rotary] of the token's position, or null
  std::int64_t rotary;
};

void normalize(float* head, const HeadChange& change, std::int64_t head_dim) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    sum += head[i] * head[i];
  }
  const float scale = 1.0F / std::sqrt(sum / static_cast<float>(head_dim) + change.eps);
  for (std::int64_t i = 0; i < head_dim; ++i) {
    head[i] = head[i] * scale * change.norm[i];
  }
}

void rotate(float* head, const HeadChange& change) {
  const std::int64_t half = change.rotary / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const float cosine = change.cos_sin[i];
    const float sine = change.cos_sin[i + half];
    const float low = head[i];
    const float high = head[i + half];
    head[i] = low * cosine - high * sine;
    head[i + half] = high * cosine + low * sine;
  }
}

using Head = std::array<float, kMaxHeadDim>;

Head changed_head(const float* from, const HeadChange& change, std::int64_t head_dim) {
  Head head{};
  std::copy_n(from, head_dim, head.begin());
  if (change.norm != nullptr) {
    normalize(head.data(), change, head_dim);
  }
  if (change.cos_sin != nullptr) {
    rotate(head.data(), change);
  }
  return head;
}

template <typename A, typename Cache>
void write_token(const RotaryCacheWriteParams& params, const Cache& cache, std::int64_t t) {
  const std::int64_t num_heads = params.q.shape[1];
  const std::int64_t head_dim = params.q.shape[2];
  const std::int64_t slot = params.slot_mapping.ptr<const std::int32_t>()[t];
  const std::int64_t block = slot / cache.block_size();
  const std::int64_t offset = slot % cache.block_size();
  HeadChange change{.norm = params.q_norm.ptr<const float>(), .eps = params.norm_eps, .cos_sin = nullptr, .rotary = 0};
  if (!params.cos_sin.empty()) {
    change.cos_sin = params.cos_sin.row<const float>(params.positions.ptr<const std::int32_t>()[t]);
    change.rotary = params.cos_sin.shape[1];
  }
  const auto* from = params.qkv.row<const float>(t);
  for (std::int64_t head = 0; head < num_heads; ++head, from += head_dim) {
    A* const q = params.q.row<A>(t) + head * head_dim;
    const Head changed = changed_head(from, change, head_dim);
    std::transform(changed.begin(), changed.begin() + head_dim, q, rounded_to<A>);
  }
  change.norm = params.k_norm.ptr<const float>();
  for (std::int64_t head = 0; head < cache.num_kv_heads(); ++head, from += head_dim) {
    cache.write_key(block, head, offset, changed_head(from, change, head_dim).data());
  }
  for (std::int64_t head = 0; head < cache.num_kv_heads(); ++head, from += head_dim) {
    cache.write_value(block, head, offset, from);
  }
}

}  // namespace

void rotary_cache_write(const RotaryCacheWriteParams& params, ThreadPool& pool) {
  validate(params);
  const RowTiles tiles = RowTiles::of_size(params.qkv.shape[0], params.qkv.shape[1]);
  with_kv_access(params.kv_cache, params.q.dtype, [&](const auto& cache, auto element) {
    for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
      for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        write_token<decltype(element)>(params, cache, t);
      }
    });
  });
}

}  // namespace fastpaged::reference
