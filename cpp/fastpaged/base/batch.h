// Batch: one step's inputs as flat int32 arrays. Scheduling writes them, the model reads them;
// nothing else passes between the two.
#pragma once

#include <cstdint>
#include <span>

namespace fastpaged {

// Views into arrays that a BatchBuilder owns; valid until its next build().
// T tokens and S sequences in this step; R rows of logits, to sample a token from or to score one of the prompt.
struct Batch {
  std::span<const std::int32_t> token_ids;     // [T]
  std::span<const std::int32_t> positions;     // [T] absolute position of each token in its sequence
  std::span<const std::int32_t> slot_mapping;  // [T] block_id * block_size + offset: where K and V go
  std::span<const std::int32_t> query_start;   // [S + 1] tokens of sequence s: [query_start[s], query_start[s + 1])
  std::span<const std::int32_t> context_lens;  // [S] tokens in the cache once this step's have been written
  std::span<const std::int32_t> block_tables;  // [S, max_blocks_per_sequence] row-major, padded with 0
  std::int32_t max_blocks_per_sequence = 0;
  std::span<const std::int32_t> sample_rows;  // [R] token index whose logits are wanted, ascending
};

}  // namespace fastpaged
