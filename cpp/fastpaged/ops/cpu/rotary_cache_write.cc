#include <cstring>

#include "fastpaged/ops/cpu/code_vectors.h"
#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/row_math.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/element.h"
#include "fastpaged/ops/kv_layout.h"
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

// Put a key or value where the layout has its elements: rounded to them, or as codes and a scale.
FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)
template <typename Element>
static void place_key(const KVLayout<Element>& cache, std::int64_t slot, const float* x, Element* keys) {
  alignas(64) Element key[kMaxHeadDim];
  convert(x, cache.head_dim(), key);
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
static void place_value(const KVLayout<Element>& cache, std::int64_t slot, const float* x, Element* values) {
  alignas(64) Element value[kMaxHeadDim];
  convert(x, cache.head_dim(), value);
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

template <typename Element>
static void place_key(const KVCodeLayout<Element>& cache, std::int64_t slot, const float* key, std::uint8_t* keys) {
  alignas(64) std::uint8_t codes[kMaxHeadDim];
  const float scale = quantize_vector(cache.dtype(), key, cache.head_dim(), codes);
  std::memcpy(keys + cache.scale(slot), &scale, sizeof(scale));
  std::uint8_t* const to = keys + cache.key_code(slot, 0);
  if (!cache.is_tiled()) {
    std::memcpy(to, codes, static_cast<std::size_t>(cache.head_dim()));
    return;
  }
  constexpr std::int64_t kTogether = KVOrder<Element>::kInPairs ? 2 : 1;
  for (std::int64_t d = 0; d < cache.head_dim(); d += kTogether) {
    std::memcpy(to + d * kKeyTile, codes + d, kTogether);
  }
}

template <typename Element>
static void place_value(const KVCodeLayout<Element>& cache, std::int64_t slot, const float* value,
                        std::uint8_t* values) {
  alignas(64) std::uint8_t codes[kMaxHeadDim];
  const float scale = quantize_vector(cache.dtype(), value, cache.head_dim(), codes);
  std::memcpy(values + cache.scale(slot), &scale, sizeof(scale));
  std::uint8_t* const to = values + cache.value_code(slot, 0);
  if (!cache.is_tiled() || !KVOrder<Element>::kInPairs) {
    std::memcpy(to, codes, static_cast<std::size_t>(cache.head_dim()));
    return;
  }
  for (std::int64_t d = 0; d < cache.head_dim(); d += kLanes) {
    store_alternate(to + 2 * d, codes + d);
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
static void fetch_places(const KVCodeLayout<Element>& cache, std::int64_t slot, const std::uint8_t* keys,
                         const std::uint8_t* values) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t last = cache.head_dim() - 1;
  for (std::int64_t at = cache.key_code(slot, 0); at <= cache.key_code(slot, last); at += kLine) {
    __builtin_prefetch(keys + at, 1);
  }
  for (std::int64_t at = cache.value_code(slot, 0); at <= cache.value_code(slot, last); at += kLine) {
    __builtin_prefetch(values + at, 1);
  }
  __builtin_prefetch(keys + cache.scale(slot), 1);
  __builtin_prefetch(values + cache.scale(slot), 1);
}

template <typename Element, typename Cache>
static void write_token(const RotaryCacheWriteParams& params, const Cache& cache, std::int64_t t) {
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
  alignas(64) float key[kMaxHeadDim];
  change.norm = params.k_norm.ptr<const float>();
  for (std::int64_t head = 0; head < cache.num_kv_heads(); ++head, from += head_dim) {
    write_head(from, change, head_dim, key);
    place_key(cache, in_block, key, cache.keys(block, head));
  }
  for (std::int64_t head = 0; head < cache.num_kv_heads(); ++head, from += head_dim) {
    place_value(cache, in_block, from, cache.values(block, head));
  }
}

// A token's keys and values lie over many lines of memory, and take as long as far more elements in a row.
constexpr std::int64_t kElementsPerTile = 4096;

template <typename Element, typename Cache>
static void write_tokens(const RotaryCacheWriteParams& params, const Cache& cache, ThreadPool& pool) {
  const RowTiles tiles = RowTiles::of_size(params.qkv.shape[0], params.qkv.shape[1], kElementsPerTile);
  for_each_tile(pool, tiles.count(), [&](std::int64_t tile) {
    for (std::int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      write_token<Element>(params, cache, t);
    }
  });
}

void rotary_cache_write(const RotaryCacheWriteParams& params, ThreadPool& pool) {
  validate(params);
  with_element(params.q.dtype, [&](auto element) {
    using Element = decltype(element);
    if (is_kv_code(params.kv_cache.dtype)) {
      write_tokens<Element>(params, KVCodeLayout<Element>(params.kv_cache), pool);
    } else {
      write_tokens<Element>(params, KVLayout<Element>(params.kv_cache), pool);
    }
  });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
