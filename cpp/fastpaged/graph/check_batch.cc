#include "fastpaged/graph/check_batch.h"

#include <algorithm>
#include <span>
#include <string>

#include "fastpaged/base/check.h"

namespace fastpaged {
namespace {

void require_size(const char* name, std::size_t size, std::int64_t expected) {
  require(static_cast<std::int64_t>(size) == expected, [&] {
    return "batch." + std::string(name) + " must have " + std::to_string(expected) + " elements, got " +
           std::to_string(size);
  });
}

void require_at_most(const char* name, std::size_t size, std::int64_t limit) {
  require(static_cast<std::int64_t>(size) <= limit, [&] {
    return "batch." + std::string(name) + " must have at most " + std::to_string(limit) + " elements, got " +
           std::to_string(size);
  });
}

void require_in_range(const char* name, std::span<const std::int32_t> values, std::int64_t bound) {
  std::int32_t low = 0;
  std::int32_t high = -1;
  for (const std::int32_t value : values) {  // no early exit: the compiler turns this into vector code
    low = std::min(low, value);
    high = std::max(high, value);
  }
  require(low >= 0 && high < bound, [&] {
    return "batch." + std::string(name) + " must lie in [0, " + std::to_string(bound) + "), got " +
           std::to_string(low < 0 ? low : high);
  });
}

void check_sequences(const Batch& batch, std::int64_t block_size) {
  const std::size_t num_sequences = batch.context_lens.size();
  const std::int64_t room = batch.max_blocks_per_sequence * block_size;
  require(batch.query_start.front() == 0,
          [&] { return "batch.query_start must begin with 0, got " + std::to_string(batch.query_start.front()); });
  for (std::size_t s = 0; s < num_sequences; ++s) {
    const std::int32_t length = batch.query_start[s + 1] - batch.query_start[s];
    require(length >= 0, [&] {
      return "batch.query_start must not decrease, got " + std::to_string(batch.query_start[s]) + " before " +
             std::to_string(batch.query_start[s + 1]);
    });
    require(batch.context_lens[s] >= length && batch.context_lens[s] <= room, [&] {
      return "batch.context_lens[" + std::to_string(s) + "] must lie in [" + std::to_string(length) + ", " +
             std::to_string(room) + "], got " + std::to_string(batch.context_lens[s]);
    });
  }
  require(static_cast<std::size_t>(batch.query_start.back()) == batch.token_ids.size(), [&] {
    return "batch.query_start must end with the number of tokens, " + std::to_string(batch.token_ids.size()) +
           ", got " + std::to_string(batch.query_start.back());
  });
}

}  // namespace

void check_batch(const Batch& batch, const BatchLimits& limits) {
  const std::int64_t num_tokens = static_cast<std::int64_t>(batch.token_ids.size());
  const std::int64_t num_sequences = static_cast<std::int64_t>(batch.context_lens.size());
  require_at_most("token_ids", batch.token_ids.size(), limits.num_tokens);
  require_at_most("sample_rows", batch.sample_rows.size(), limits.num_samples);
  require_in_range("sample_rows", batch.sample_rows, num_tokens);
  if (num_tokens == 0) {
    return;  // nothing will run
  }
  require_in_range("token_ids", batch.token_ids, limits.vocab_size);
  if (limits.reads_positions) {
    require_size("positions", batch.positions.size(), num_tokens);
    require_in_range("positions", batch.positions, limits.max_positions);
  }
  if (limits.num_blocks == 0) {
    return;  // no op looks at sequences
  }
  require_size("slot_mapping", batch.slot_mapping.size(), num_tokens);
  require_size("query_start", batch.query_start.size(), num_sequences + 1);
  require_size("block_tables", batch.block_tables.size(), num_sequences * batch.max_blocks_per_sequence);
  require_in_range("slot_mapping", batch.slot_mapping, limits.num_blocks * limits.block_size);
  require_in_range("block_tables", batch.block_tables, limits.num_blocks);
  check_sequences(batch, limits.block_size);
}

}  // namespace fastpaged
