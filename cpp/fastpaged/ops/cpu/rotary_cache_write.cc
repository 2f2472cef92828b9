#include <cstring>

#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/row_math.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/reference/ops.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {
namespace {

// What becomes of a head of q or k: its norm, then its rotation.
struct HeadChange {
  const float* norm;     // [D], or null
  float eps;             // of the norm
  const float* cos_sin;  // [rotary] of the token's position, or null
  std::int64_t rotary;   // 0 without
};

}  // namespace

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
template <typename Element>
static void rotate(const float* x, const float* cos_sin, std::int64_t rotary, Element* out) {
  const std::int64_t half = rotary / 2;
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const std::int64_t count = half - i;
    const Floats low = load(x + i, count);
    const Floats high = load(x + half + i, count);
    const Floats cosine = load(cos_sin + i, count);
    const Floats sine = load(cos_sin + half + i, count);
    store(out + i, fms(low, cosine, mul(high, sine)), count);
    store(out + half + i, fma(high, cosine, mul(low, sine)), count);
  }
}

template <typename Element>
static void write_head(const float* x, const HeadChange& change, std::int64_t head_dim, Element* out) {
  alignas(64) float normed[kMaxHeadDim];
  if (change.norm != nullptr) {
    rms_normalize(x, change.norm, change.eps, head_dim, normed);
    x = normed;
  }
  rotate(x, change.cos_sin, change.rotary, out);
  convert(x + change.rotary, head_dim - change.rotary, out + change.rotary);
}
FASTPAGED_END_TARGET

// Puts a key or value, written in order, where the layout has its elements.
FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
template <typename Element>
static void place_key(const KVLayout<Element>& cache, std::int64_t slot, const Element* key, Element* keys) {
  Element* const to = keys + cache.key_element(slot, 0);
  if (!cache.is_tiled()) {
    std::memcpy(to, key, static_cast<std::size_t>(cache.head_dim()) * sizeof(Element));
    return;
  }
  constexpr std::int64_t kUnit = 4 / static_cast<std::int64_t>(sizeof(Element));  // elements that stay together
  for (std::int64_t d = 0; d < cache.head_dim(); d += kUnit) {
    std::memcpy(to + d * kKeyTile, key + d, 4);
  }
}

template <typename Element>
static void place_value(const KVLayout<Element>& cache, std::int64_t slot, const Element* value, Element* values) {
  Element* const to = values + cache.value_element(slot, 0);
  if (!cache.is_tiled() || !KVLayout<Element>::kInPairs) {
    std::memcpy(to, value, static_cast<std::size_t>(cache.head_dim()) * sizeof(Element));
    return;
  }
  for (std::int64_t d = 0; d < cache.head_dim(); d += kLanes) {
    if constexpr (KVLayout<Element>::kInPairs) {
      store_alternate(to + 2 * d, value + d);
    }
  }
}

FASTPAGED_END_TARGET

// Asks for the memory of a token's key and value, which lie over many lines: before q is computed, so that no store
// waits for them.
template <typename Element>
static void fetch_places(const KVLayout<Element>& cache, std::int64_t slot, const Element* keys,
                         const Element* values) {
  constexpr std::int64_t kUnit = 4 / static_cast<std::int64_t>(sizeof(Element));
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(Element));
  const std::int64_t step = cache.is_tiled() ? kUnit : kLine;
  for (std::int64_t d = 0; d < cache.head_dim(); d += step) {
    __builtin_prefetch(keys + cache.key_element(slot, d), 1);
  }
  const Element* const end = values + cache.value_element(slot, cache.head_dim() - 1);
  for (const Element* line = values + cache.value_element(slot, 0); line <= end; line += kLine) {
    __builtin_prefetch(line, 1);
  }
}

template <typename Element>
static void write_token(const RotaryCacheWriteParams& params, const KVLayout<Element>& cache, std::int64_t t) {
  const std::int64_t num_heads = params.q.shape[1];
  const std::int64_t head_dim = params.q.shape[2];
  const std::int64_t slot = params.slot_mapping.ptr<const std::int32_t>()[t];
  const std::int64_t block = slot / cache.block_size();
  const std::int64_t in_block = slot % cache.block_size();
  for (std::int64_t head = 0; head < cache.num_kv_heads(); ++head) {
    fetch_places(cache, in_block, cache.keys(block, head), cache.values(block, head));
  }
  HeadChange change{.norm = params.q_norm.ptr<const float>(), .eps = params.norm_eps, .cos_sin = nullptr, .rotary = 0};
  if (!params.cos_sin.empty()) {
    change.cos_sin = params.cos_sin.row<const float>(params.positions.ptr<const std::int32_t>()[t]);
    change.rotary = params.cos_sin.shape[1];
  }
  const auto* from = params.qkv.row<const float>(t);
  for (std::int64_t head = 0; head < num_heads; ++head, from += head_dim) {
    write_head(from, change, head_dim, params.q.row<Element>(t) + head * head_dim);
  }
  alignas(64) Element vector[kMaxHeadDim];
  change.norm = params.k_norm.ptr<const float>();
  for (std::int64_t head = 0; head < cache.num_kv_heads(); ++head, from += head_dim) {
    write_head(from, change, head_dim, vector);
    place_key(cache, in_block, vector, cache.keys(block, head));
  }
  for (std::int64_t head = 0; head < cache.num_kv_heads(); ++head, from += head_dim) {
    convert(from, head_dim, vector);
    place_value(cache, in_block, vector, cache.values(block, head));
  }
}

// A token's keys and values lie over many lines of memory, and take as long as far more elements in a row.
constexpr std::int64_t kElementsPerTile = 4096;

void rotary_cache_write(const RotaryCacheWriteParams& params, ThreadPool& pool) {
  if (is_kv_code(params.kv_cache.dtype)) {
    return reference::rotary_cache_write(params, pool);
  }
  validate(params);
  const RowTiles tiles = RowTiles::of_size(params.qkv.shape[0], params.qkv.shape[1], kElementsPerTile);
  with_element(params.q.dtype, [&](auto element) {
    const KVLayout<decltype(element)> cache(params.kv_cache);
    for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
      for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        write_token(params, cache, t);
      }
    });
  });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
