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

// Element [t][c] of a matrix of bfloat16 or float32.
inline float get(const TensorView& x, std::int64_t t, std::int64_t c) {
  return x.dtype == DType::kFloat32 ? x.row<float>(t)[c] : widen(x.row<BFloat16>(t)[c]);
}

inline void put(const TensorView& x, std::int64_t t, std::int64_t c, float value) {
  if (x.dtype == DType::kFloat32) {
    x.row<float>(t)[c] = value;
  } else {
    x.row<BFloat16>(t)[c] = narrow(value);
  }
}

inline void fake_embedding(const EmbeddingParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t t = 0; t < p.out.shape[0]; ++t) {
    for (std::int64_t c = 0; c < p.out.shape[1]; ++c) {
      float& out = p.out.row<float>(t)[c];
      out = get(p.table, p.token_ids.ptr<std::int32_t>()[t], c) * p.scale;
      if (!p.position_table.empty()) {
        out += p.position_table.row<float>(p.positions.ptr<std::int32_t>()[t])[c];
      }
    }
  }
}

inline void fake_rms_norm(const RmsNormParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t t = 0; t < p.x.shape[0]; ++t) {
    for (std::int64_t c = 0; c < p.x.shape[1]; ++c) {
      float& x = p.x.row<float>(t)[c];
      x += p.residual.empty() ? 0.0F : p.residual.row<float>(t)[c];
      put(p.out, t, c, x * p.weight.ptr<float>()[c] + p.eps);
    }
  }
}

inline void fake_layer_norm(const LayerNormParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t t = 0; t < p.x.shape[0]; ++t) {
    for (std::int64_t c = 0; c < p.x.shape[1]; ++c) {
      float& x = p.x.row<float>(t)[c];
      x += p.residual.empty() ? 0.0F : p.residual.row<float>(t)[c];
      const float bias = p.bias.empty() ? 0.0F : p.bias.ptr<float>()[c];
      put(p.out, t, c, x * p.weight.ptr<float>()[c] - p.eps + bias);
    }
  }
}

inline float fake_activate(Activation activation, float x) {
  return x * (1.0F + 0.25F * static_cast<float>(activation));
}

// Whatever it is packed as, a weight is [N, K] float32.
inline void fake_linear(const LinearParams& p, ThreadPool& /*pool*/) {
  const std::int64_t k = p.weight->in_features();
  const std::int64_t num_outs = p.out.shape[1];
  const float* weight = reinterpret_cast<const float*>(p.weight->data());
  const auto product = [&](std::int64_t t, std::int64_t n) {
    float sum = p.bias.empty() ? 0.0F : p.bias.ptr<float>()[n];
    for (std::int64_t i = 0; i < k; ++i) {
      sum += get(p.x, t, i) * weight[n * k + i];
    }
    return sum;
  };
  for (std::int64_t t = 0; t < p.x.shape[0]; ++t) {
    for (std::int64_t n = 0; n < num_outs; ++n) {
      float y = product(t, n);
      if (p.activation) {
        y = fake_activate(*p.activation, y);
      }
      if (p.weight->gated()) {
        y -= 0.5F * product(t, num_outs + n);
      }
      put(p.out, t, n, p.adds ? get(p.out, t, n) + y : y);
    }
  }
}

// Queries are qkv + position (with a rotation) + their norm; the cache keeps one number per slot: the sum of the row,
// and the norm of keys.
inline void fake_rotary_cache_write(const RotaryCacheWriteParams& p, ThreadPool& /*pool*/) {
  const std::int64_t block_size = p.kv_cache.shape[3];
  for (std::int64_t t = 0; t < p.q.shape[0]; ++t) {
    float sum = 0.0F;
    for (std::int64_t c = 0; c < p.qkv.shape[1]; ++c) {
      sum += p.qkv.row<float>(t)[c];
    }
    const std::int64_t head_dim = p.q.shape[2];
    const float position = p.cos_sin.empty() ? 0.0F : static_cast<float>(p.positions.ptr<std::int32_t>()[t]);
    for (std::int64_t c = 0; c < p.q.shape[1] * head_dim; ++c) {
      const float norm = p.q_norm.empty() ? 0.0F : p.q_norm.ptr<float>()[c % head_dim] + p.norm_eps;
      put(p.q, t, c, p.qkv.row<float>(t)[c] + 0.125F * position + norm);
    }
    const std::int32_t slot = p.slot_mapping.ptr<std::int32_t>()[t];
    const float k_norm = p.k_norm.empty() ? 0.0F : p.k_norm.ptr<float>()[0];
    put(p.kv_cache, slot / block_size, slot % block_size * p.kv_cache.strides[3], sum + k_norm);
  }
}

// Each query is added to what the cache holds for its sequence's first token, and to the options.
inline void fake_paged_attention(const PagedAttentionParams& p, ThreadPool& /*pool*/) {
  const std::int32_t* query_start = p.query_start.ptr<std::int32_t>();
  for (std::int64_t s = 0; s < p.context_lens.shape[0]; ++s) {
    const float first = get(p.kv_cache, *p.block_tables.row<std::int32_t>(s), 0);
    const float options = p.soft_cap + 0.25F * static_cast<float>(p.window);
    for (std::int32_t t = query_start[s]; t < query_start[s + 1]; ++t) {
      for (std::int64_t c = 0; c < p.out.shape[1]; ++c) {
        const float slope = p.alibi_slopes.empty() ? 0.0F : p.alibi_slopes.ptr<float>()[c / p.q.shape[2]];
        put(p.out, t, c, get(p.q, t, c) * p.scale + first + options + slope);
      }
    }
  }
}

inline void fake_soft_cap(const SoftCapParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t t = 0; t < p.x.shape[0]; ++t) {
    for (std::int64_t c = 0; c < p.x.shape[1]; ++c) {
      p.x.row<float>(t)[c] -= 0.125F * p.cap;
    }
  }
}

inline void fake_add(const AddParams& p, ThreadPool& /*pool*/) {
  for (std::int64_t t = 0; t < p.x.shape[0]; ++t) {
    for (std::int64_t c = 0; c < p.x.shape[1]; ++c) {
      p.x.row<float>(t)[c] += p.y.row<float>(t)[c];
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
      .pack_gated_linear = nullptr,
      .packed_bytes = nullptr,
      .embedding = fake_embedding,
      .rms_norm = fake_rms_norm,
      .layer_norm = fake_layer_norm,
      .linear = fake_linear,
      .rotary_cache_write = fake_rotary_cache_write,
      .paged_attention = fake_paged_attention,
      .soft_cap = fake_soft_cap,
      .add = fake_add,
      .gather_rows = fake_gather_rows,
      .logit_passes = nullptr,  // a graph samples nothing
  };
  return table;
}

}  // namespace fastpaged::testing
