// One plain struct per op: the whole contract between a model graph and a kernel.
// T tokens, S sequences, R sampled rows, H hidden size, D head size, Hq / Hkv query / KV heads.
// bfloat16 feeds the matrix unit and the KV cache; everything that is summed stays float32.
#pragma once

#include <cstdint>
#include <string_view>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

class PackedLinear;
class Workspace;

// out[t] = table[token_ids[t]]
struct EmbeddingParams {
  TensorView token_ids;  // [T] int32, in vocabulary (checked at the door)
  TensorView table;      // [vocab, H] bfloat16
  TensorView out;        // [T, H] float32
};

// x += residual (if given), then out = x / sqrt(mean(x^2) + eps) * weight
struct RmsNormParams {
  TensorView x;         // [T, H] float32, updated in place when there is a residual
  TensorView residual;  // [T, H] float32, or empty()
  TensorView weight;    // [H] float32
  TensorView out;       // [T, H] bfloat16
  float eps = 0.0F;
};

// out = x @ weight^T, accumulated in float32 in one order over K for every M
struct LinearParams {
  TensorView x;                          // [M, K] bfloat16
  const PackedLinear* weight = nullptr;  // [N, K], packed for the op table that runs it
  TensorView out;                        // [M, N] float32
};

// Rotates q and k (halves of a head paired: i with i + D/2), writes k and v to their slots, hands q on.
struct RotaryCacheWriteParams {
  TensorView qkv;           // [T, (Hq + 2 Hkv) * D] float32: all q heads, then k, then v
  TensorView positions;     // [T] int32
  TensorView slot_mapping;  // [T] int32: block * block_size + offset
  TensorView cos_sin;       // [max_positions, D] float32: D/2 cosines, then D/2 sines
  TensorView kv_cache;      // [num_blocks, 2 (K|V), Hkv, block_size, D] bfloat16, one layer's strided view
  TensorView q;             // [T, Hq, D] bfloat16, out
};

// Causal attention of T queries over paged K and V; Hq / Hkv queries share each KV head.
// Query t of sequence s stands at position context_lens[s] - (query_start[s+1] - query_start[s]) + (t -
// query_start[s]).
struct PagedAttentionParams {
  TensorView q;             // [T, Hq, D] bfloat16
  TensorView kv_cache;      // as above
  TensorView query_start;   // [S + 1] int32
  TensorView context_lens;  // [S] int32
  TensorView block_tables;  // [S, max_blocks] int32
  TensorView out;           // [T, Hq * D] bfloat16
  float scale = 1.0F;       // applied to q . k
  // Kept from call to call by whoever calls often; null: the call allocates its own.
  Workspace* workspace = nullptr;
};

enum class Activation : std::uint8_t { kSilu };

// "silu". Throws std::invalid_argument naming what is allowed.
Activation activation_from_name(std::string_view name);

// out = activation(gate) * up
struct GatedActivationParams {
  TensorView gate_up;  // [T, 2 F] float32: F gates, then F ups
  TensorView out;      // [T, F] bfloat16
  Activation activation = Activation::kSilu;
};

// out[r] = x[rows[r]]
struct GatherRowsParams {
  TensorView x;     // [T, H] float32
  TensorView rows;  // [R] int32
  TensorView out;   // [R, H] float32
};

}  // namespace fastpaged
