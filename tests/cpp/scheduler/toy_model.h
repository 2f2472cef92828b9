// A language model small enough to be obvious: the next token is a hash of the whole context. It runs on a Batch the
// way a real one does, writing each token into its slot and reading the context back through the block tables, so that
// one wrong slot, position or table shows in the output.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "fastpaged/base/batch.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged::test {

inline constexpr TokenId kVocabSize = 50;

inline TokenId next_token(const std::vector<TokenId>& context) {
  std::uint32_t hash = 2166136261U;
  for (const TokenId token : context) {
    hash = (hash ^ static_cast<std::uint32_t>(token + 1)) * 16777619U;
  }
  return static_cast<TokenId>(hash % kVocabSize);
}

// What a request must answer, whatever runs beside it.
struct PlainAnswer {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::kLength;
};

inline PlainAnswer answer_plainly(const NewRequest& request, const SchedulerConfig& config) {
  PlainAnswer answer;
  std::vector<TokenId> context = request.prompt_token_ids;
  const std::int64_t capacity = std::int64_t{config.num_blocks} * config.block_size;
  while (std::ssize(context) <= capacity) {
    const TokenId token = next_token(context);
    context.push_back(token);
    answer.tokens.push_back(token);
    for (const TokenId stop : request.stop.stop_token_ids) {
      if (token == stop) {
        answer.reason = FinishReason::kStop;
        return answer;
      }
    }
    if (std::ssize(answer.tokens) == request.stop.max_tokens || std::ssize(context) == config.max_model_len) {
      break;
    }
  }
  return answer;
}

class ToyModel {
 public:
  explicit ToyModel(const KVCacheManager& kv_cache)
      : block_size_(kv_cache.block_size()), slots_(static_cast<std::size_t>(kv_cache.capacity())) {}

  // What a free block holds must not matter.
  void poison(const std::vector<BlockId>& blocks) {
    for (const BlockId block : blocks) {
      for (std::int32_t i = 0; i < block_size_; ++i) {
        slots_[block * block_size_ + i] = {};
      }
    }
  }

  std::vector<SampledToken> run(const Batch& batch) {
    write(batch);
    std::vector<SampledToken> sampled;
    std::size_t sequence = 0;
    for (const std::int32_t row : batch.sample_rows) {
      while (batch.query_start[sequence + 1] <= row) {
        ++sequence;
      }
      REQUIRE(batch.query_start[sequence + 1] == row + 1);  // the last row of its sequence
      sampled.push_back({next_token(read(batch, sequence)), true});
    }
    return sampled;
  }

 private:
  struct Slot {
    TokenId token = -1;
    std::int32_t position = -1;
  };

  void write(const Batch& batch) {
    const std::set<std::int32_t> unique(batch.slot_mapping.begin(), batch.slot_mapping.end());
    REQUIRE(unique.size() == batch.slot_mapping.size());
    for (std::size_t i = 0; i < batch.token_ids.size(); ++i) {
      slots_.at(batch.slot_mapping[i]) = {batch.token_ids[i], batch.positions[i]};
    }
    for (std::size_t sequence = 0; sequence < batch.context_lens.size(); ++sequence) {
      const std::int32_t held = (batch.context_lens[sequence] + block_size_ - 1) / block_size_;
      for (std::int32_t i = held; i < batch.max_blocks_per_sequence; ++i) {
        REQUIRE(batch.block_tables[sequence * batch.max_blocks_per_sequence + i] == 0);
      }
    }
  }

  [[nodiscard]] std::vector<TokenId> read(const Batch& batch, std::size_t sequence) const {
    std::vector<TokenId> context;
    for (std::int32_t position = 0; position < batch.context_lens[sequence]; ++position) {
      const std::size_t entry = sequence * batch.max_blocks_per_sequence + position / block_size_;
      const Slot& slot = slots_.at(batch.block_tables[entry] * block_size_ + position % block_size_);
      REQUIRE(slot.position == position);
      context.push_back(slot.token);
    }
    return context;
  }

  std::int32_t block_size_;
  std::vector<Slot> slots_;
};

}  // namespace fastpaged::test
