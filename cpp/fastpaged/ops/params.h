// One plain struct per op: the whole contract between a model graph and a kernel.
// T tokens, S sequences, R sampled rows, H hidden size, D head size, Hq / Hkv query / KV heads.
// A is the activation dtype of the graph, bfloat16 or float32: what feeds the linear layers, what the weights are kept
// in, and the KV cache, but where that is of 8-bit codes. Everything that is summed stays float32.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "fastpaged/base/tensor_view.h"

namespace fastpaged {

class PackedLinear;
class Workspace;

// out[t] = table[token_ids[t]] * scale, + position_table[positions[t]] if given
struct EmbeddingParams {
  TensorView token_ids;         // [T] int32, in vocabulary (checked at the door)
  TensorView positions{};       // [T] int32; read with a position_table only
  TensorView table;             // [vocab, H] A
  TensorView position_table{};  // [max_positions, H] float32, or empty()
  TensorView out;               // [T, H] float32
  float scale = 1.0F;
};

// x += residual (if given), then out = x / sqrt(mean(x^2) + eps) * weight
struct RmsNormParams {
  TensorView x;           // [T, H] float32, updated in place when there is a residual
  TensorView residual{};  // [T, H] float32, or empty()
  TensorView weight;      // [H] float32
  TensorView out;         // [T, H] bfloat16 or float32
  float eps = 0.0F;
};

// x += residual (if given), then out = (x - mean(x)) / sqrt(variance(x) + eps) * weight, + bias if given.
// The variance is that of the differences from the mean, so that a large mean costs no digits but those that a float32
// of its size lacks.
struct LayerNormParams {
  TensorView x;           // [T, H] float32, updated in place when there is a residual
  TensorView residual{};  // [T, H] float32, or empty()
  TensorView weight;      // [H] float32
  TensorView bias{};      // [H] float32, or empty()
  TensorView out;         // [T, H] bfloat16 or float32
  float eps = 0.0F;
};

enum class Activation : std::uint8_t {
  kSilu,      // x / (1 + e^-x)
  kGelu,      // x / 2 * (1 + erf(x / sqrt 2))
  kGeluTanh,  // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
  kRelu,      // max(x, 0); NaN stays NaN
};

// "silu", "gelu", "gelu_tanh", "relu". Throws std::invalid_argument naming what is allowed.
Activation activation_from_name(std::string_view name);
const char* name_of(Activation activation);

// y = x @ weight^T, accumulated in float32 in one order over K for every M, + bias if given; then
//   out = y                                  of a plain weight
//   out += y                                 if it adds
//   out = activation(y)                      with an activation
//   out = activation(its gates) * its ups    of a gated weight, which needs one; row by row, y is N/2 gates, N/2 ups
// None of it is rounded but what an activation has made, once.
struct LinearParams {
  TensorView x;                          // [M, K] A, the dtype the weight was packed in
  const PackedLinear* weight = nullptr;  // [N, K], packed for the op table that runs it
  TensorView bias{};                     // [N] float32, or empty()
  TensorView out;                        // [M, N] float32; [M, N] A with an activation; [M, N / 2] A of a gated weight
  std::optional<Activation> activation{};  // excludes adds
  bool adds = false;
};

// For q and k of every head: the RMS norm over the head (if given), then the rotation of its first `rotary` elements
// (if given; halves paired: i with i + rotary / 2; the rest passes). Writes k and v to their slots, hands q on.
struct RotaryCacheWriteParams {
  TensorView qkv;           // [T, (Hq + 2 Hkv) * D] float32: all q heads, then k, then v
  TensorView positions{};   // [T] int32; read with cos_sin only
  TensorView slot_mapping;  // [T] int32: block * block_size + offset
  TensorView cos_sin{};     // [max_positions, rotary] float32: rotary/2 cosines, then as many sines; or empty()
  TensorView q_norm{};      // [D] float32, or empty()
  TensorView k_norm{};      // [D] float32, or empty(); both or none
  // [num_blocks, 2 (K|V), Hkv, block_size, D] A, or 8-bit codes: one layer's strided view. Each [block_size, D] is one
  // piece of memory, in the order of kv_layout.h; of codes, with their scales, D + 4 bytes for each slot.
  TensorView kv_cache;
  TensorView q;           // [T, Hq, D] A, out
  float norm_eps = 0.0F;  // of q_norm and k_norm
};

// Causal attention of T queries over paged K and V; Hq / Hkv queries share each KV head.
// Query t of sequence s stands at position context_lens[s] - (query_start[s+1] - query_start[s]) + (t -
// query_start[s]), and sees the keys at positions from max(0, position - window + 1) to its own.
// Score of a key: s = q . k * scale; s = soft_cap * tanh(s / soft_cap), with a cap; s += alibi_slopes[head] *
// (key position - query position), with slopes.
struct PagedAttentionParams {
  TensorView q;               // [T, Hq, D] A
  TensorView kv_cache;        // as above
  TensorView query_start;     // [S + 1] int32
  TensorView context_lens;    // [S] int32
  TensorView block_tables;    // [S, max_blocks] int32
  TensorView alibi_slopes{};  // [Hq] float32, or empty()
  TensorView out;             // [T, Hq * D] A
  float scale = 1.0F;
  float soft_cap = 0.0F;    // 0: none
  std::int32_t window = 0;  // 0: none
  // Kept from call to call by whoever calls often; null: the call allocates its own.
  Workspace* workspace = nullptr;
};

// x = cap * tanh(x / cap)
struct SoftCapParams {
  TensorView x;  // [T, N] float32, updated in place
  float cap = 1.0F;
};

// x += y
struct AddParams {
  TensorView x;  // [T, H] float32, updated in place
  TensorView y;  // [T, H] float32
};

// out[r] = x[rows[r]]
struct GatherRowsParams {
  TensorView x;     // [T, H] float32
  TensorView rows;  // [R] int32
  TensorView out;   // [R, H] float32
};

}  // namespace fastpaged
