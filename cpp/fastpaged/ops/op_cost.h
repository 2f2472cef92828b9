// What an op costs at the least, whoever computes it: the bytes that must move and the arithmetic that must be done.
#pragma once

#include <cstdint>

#include "fastpaged/ops/params.h"

namespace fastpaged {

// Bytes come apart by where they come from: weights and K and V out of memory, for no cache holds them from one step to
// the next; activations out of a cache, where the op before has left them.
//
// Of flops, a multiplication and an addition are two. Only what grows with an op's data counts: not addresses, not the
// loops around. A function such as exp is one, and attention's softmax none: no machine is bound by them.
struct OpCost {
  std::int64_t weight_bytes = 0;      // each weight once, however many rows share it; of tables the rows looked up
  std::int64_t kv_bytes = 0;          // read or written; a block that several sequences read once, as by the first
  std::int64_t activation_bytes = 0;  // read and written
  std::int64_t flops = 0;

  [[nodiscard]] std::int64_t memory_bytes() const { return weight_bytes + kv_bytes; }
  OpCost& operator+=(const OpCost& other);
};

// REQUIRES: params are those of a call: with views of this step's rows and, for attention, the batch's arrays.
OpCost op_cost(const EmbeddingParams& params);
OpCost op_cost(const RmsNormParams& params);
OpCost op_cost(const LayerNormParams& params);
OpCost op_cost(const LinearParams& params);
OpCost op_cost(const RotaryCacheWriteParams& params);
// Keys that no query sees, outside of every window, are neither read nor multiplied. Linear in sequences and their
// blocks; takes a bit of memory for each block of the cache.
OpCost op_cost(const PagedAttentionParams& params);
OpCost op_cost(const SoftCapParams& params);
OpCost op_cost(const AddParams& params);
OpCost op_cost(const GatherRowsParams& params);

}  // namespace fastpaged
