// An op table whose ops are a few plain lines each. They are not a model's arithmetic; they mix every input into
// every output, so that a buffer overwritten too early, or one row too many or too few, changes the result.
#pragma once

#include <cstdint>
#include <cstring>

#include "fastpaged/ops/op_table.h"

namespace fastpaged::testing {

inline float widen(BFloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result = 0.0F;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

inline BFloat16 narrow(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return {static_cast<std::uint16_t>(bits >> 16)};
}

inline void fake_embedding(const EmbeddingParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t t = 0; t < p.out.shape[0]; ++t) {
    for (std::int64_t c = 0; c < p.out.shape[1]; ++c) {
      p.out.row<float>(t)[c] = widen(p.table.row<BFloat16>(p.token_ids.ptr<std::int32_t>()[t])[c]);
    }
  }
}

inline void fake_rms_norm(const RmsNormParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t t = 0; t < p.x.shape[0]; ++t) {
    for (std::int64_t c = 0; c < p.x.shape[1]; ++c) {
      float& x = p.x.row<float>(t)[c];
      x += p.residual.empty() ? 0.0F : p.residual.row<float>(t)[c];
      p.out.row<BFloat16>(t)[c] = narrow(x * p.weight.ptr<float>()[c] + p.eps);
    }
  }
}

inline void fake_linear(const LinearParams& p, ThreadPool& /*pool*/) {
  const std::int64_t k = p.weight->in_features();
  const float* weight = reinterpret_cast<const float*>(p.weight->data());
  for (std::int64_t t = 0; t < p.x.shape[0]; ++t) {
    for (std::int64_t n = 0; n < p.out.shape[1]; ++n) {
      float sum = 0.0F;
      for (std::int64_t i = 0; i < k; ++i) {
        sum += widen(p.x.row<BFloat16>(t)[i]) * weight[n * k + i];
      }
      p.out.row<float>(t)[n] = sum;
    }
  }
}

// Queries are qkv + position; the cache keeps one number per slot: the sum of the row.
inline void fake_rotary_cache_write(const RotaryCacheWriteParams& p, ThreadPool& /*pool*/) {
  const std::int64_t block_size = p.kv_cache.shape[3];
  for (std::int64_t t = 0; t < p.q.shape[0]; ++t) {
    float sum = 0.0F;
    for (std::int64_t c = 0; c < p.qkv.shape[1]; ++c) {
      sum += p.qkv.row<float>(t)[c];
    }
    for (std::int64_t c = 0; c < p.q.shape[1] * p.q.shape[2]; ++c) {
      p.q.row<BFloat16>(t)[c] =
          narrow(p.qkv.row<float>(t)[c] + 0.125F * static_cast<float>(p.positions.ptr<std::int32_t>()[t]));
    }
    const std::int32_t slot = p.slot_mapping.ptr<std::int32_t>()[t];
    p.kv_cache.row<BFloat16>(slot / block_size)[slot % block_size * p.kv_cache.strides[3]] = narrow(sum);
  }
}

// Each query is added to what the cache holds for its sequence's first token.
inline void fake_paged_attention(const PagedAttentionParams& p, ThreadPool& /*pool*/) {
  const std::int32_t* query_start = p.query_start.ptr<std::int32_t>();
  for (std::int64_t s = 0; s < p.context_lens.shape[0]; ++s) {
    const float first = widen(*p.kv_cache.row<BFloat16>(*p.block_tables.row<std::int32_t>(s)));
    for (std::int32_t t = query_start[s]; t < query_start[s + 1]; ++t) {
      for (std::int64_t c = 0; c < p.out.shape[1]; ++c) {
        p.out.row<BFloat16>(t)[c] = narrow(widen(p.q.row<BFloat16>(t)[c]) * p.scale + first);
      }
    }
  }
}

inline void fake_gated_activation(const GatedActivationParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t t = 0; t < p.out.shape[0]; ++t) {
    for (std::int64_t c = 0; c < p.out.shape[1]; ++c) {
      p.out.row<BFloat16>(t)[c] =
          narrow(p.gate_up.row<float>(t)[c] - 0.5F * p.gate_up.row<float>(t)[p.out.shape[1] + c]);
    }
  }
}

inline void fake_gather_rows(const GatherRowsParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t r = 0; r < p.out.shape[0]; ++r) {
    std::memcpy(p.out.row<float>(r), p.x.row<float>(p.rows.ptr<std::int32_t>()[r]),
                static_cast<std::size_t>(p.out.shape[1]) * sizeof(float));
  }
}

inline const OpTable& fake_ops() {
  static const OpTable table = {
      .isa = "fake",
      .pack_linear = nullptr,
      .embedding = fake_embedding,
      .rms_norm = fake_rms_norm,
      .linear = fake_linear,
      .rotary_cache_write = fake_rotary_cache_write,
      .paged_attention = fake_paged_attention,
      .gated_activation = fake_gated_activation,
      .gather_rows = fake_gather_rows,
  };
  return table;
}

}  // namespace fastpaged::testing
