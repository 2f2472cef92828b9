// A language model small enough to be obvious: the next token is a hash of who asks and the whole context. It runs on
// a Batch the way a real one does: copies first, then it writes each token into its slot and reads the context back
// through the block tables, so that one wrong copy, slot, position or table shows in the output.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <vector>

#include "fastpaged/base/batch.h"
#include "fastpaged/base/block_copy.h"
#include "fastpaged/request/sampling_params.h"
#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged::test {

inline constexpr TokenId kVocabSize = 50;

// Who asks: all that a draw may depend on beside the context. Two samples of a request, or of two of one seed, may
// speak alike.
using Voice = std::uint32_t;

inline Voice voice_of(std::uint64_t seed, std::int32_t sample_index) {
  return static_cast<Voice>(seed) * 31U + static_cast<Voice>(sample_index) / 2U;
}

inline TokenId next_token(const std::vector<TokenId>& context, Voice voice) {
  std::uint32_t hash = 2166136261U ^ voice;
  for (const TokenId token : context) {
    hash = (hash ^ static_cast<std::uint32_t>(token + 1)) * 16777619U;
  }
  return static_cast<TokenId>((hash ^ (hash >> 16)) % kVocabSize);
}

// What a branch must answer from here on, whatever runs beside it.
struct PlainAnswer {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::kLength;
};

// context: the branch's tokens so far, num_answered of them its own or its parents' output.
inline PlainAnswer answer_plainly(std::vector<TokenId> context, std::int64_t num_answered, Voice voice,
                                  const StopConditions& stop, const SchedulerConfig& config) {
  PlainAnswer answer;
  const std::int64_t capacity = std::int64_t{config.num_blocks} * config.block_size;
  while (std::ssize(context) <= capacity) {
    const TokenId token = next_token(context, voice);
    context.push_back(token);
    answer.tokens.push_back(token);
    for (const TokenId end : stop.stop_token_ids) {
      if (token == end) {
        answer.reason = FinishReason::kStop;
        return answer;
      }
    }
    if (++num_answered == stop.max_tokens || std::ssize(context) == config.max_model_len) {
      break;
    }
  }
  return answer;
}

class ToyModel {
 public:
  explicit ToyModel(const KVCacheManager& kv_cache)
      : block_size_(kv_cache.block_size()),
        device_(static_cast<std::size_t>(kv_cache.capacity())),
        host_(static_cast<std::size_t>(kv_cache.host_pool().num_blocks() * kv_cache.block_size())) {}

  void copy(std::span<const BlockCopy> copies) {
    for (const BlockCopy& copy : copies) {
      REQUIRE(copy.num_blocks > 0);
      REQUIRE((copy.kind != CopyKind::kCopyOnWrite || std::abs(copy.destination - copy.source) >= copy.num_blocks));
      const std::vector<Slot>& from = copy.kind == CopyKind::kSwapIn ? host_ : device_;
      std::vector<Slot>& to = copy.kind == CopyKind::kSwapOut ? host_ : device_;
      for (std::int32_t i = 0; i < copy.num_blocks * block_size_; ++i) {
        to.at(copy.destination * block_size_ + i) = from.at(copy.source * block_size_ + i);
      }
    }
  }

  // What a free block holds must not matter.
  void poison_free_blocks(const KVCacheManager& kv_cache) {
    poison(device_, kv_cache.device_pool().free_blocks());
    poison(host_, kv_cache.host_pool().free_blocks());
  }

  // requests: in order of their rows.
  std::vector<SampledToken> run(const Batch& batch, std::span<const SampleRequest> requests) {
    const std::vector<std::vector<TokenId>> contexts = compute(batch);
    std::vector<SampledToken> sampled;
    for (const SampleRequest& request : requests) {
      const Voice voice = voice_of(request.params.seed, request.sample_index);
      sampled.push_back({next_token(contexts.at(request.row), voice), true});
    }
    return sampled;
  }

  // What each row of logits comes from: all tokens up to its own, as the cache has them.
  std::vector<std::vector<TokenId>> compute(const Batch& batch) {
    write(batch);
    std::vector<std::vector<TokenId>> contexts;
    std::size_t sequence = 0;
    for (const std::int32_t row : batch.sample_rows) {
      while (batch.query_start[sequence + 1] <= row) {
        ++sequence;
      }
      contexts.push_back(read(batch, sequence, batch.positions[row] + 1));
    }
    return contexts;
  }

 private:
  struct Slot {
    TokenId token = -1;
    std::int32_t position = -1;
  };

  void poison(std::vector<Slot>& slots, const std::vector<BlockId>& blocks) const {
    for (const BlockId block : blocks) {
      for (std::int32_t i = 0; i < block_size_; ++i) {
        slots.at(block * block_size_ + i) = {};
      }
    }
  }

  void write(const Batch& batch) {
    const std::set<std::int32_t> unique(batch.slot_mapping.begin(), batch.slot_mapping.end());
    REQUIRE(unique.size() == batch.slot_mapping.size());
    for (std::size_t i = 0; i < batch.token_ids.size(); ++i) {
      device_.at(batch.slot_mapping[i]) = {batch.token_ids[i], batch.positions[i]};
    }
  }

  [[nodiscard]] std::vector<TokenId> read(const Batch& batch, std::size_t sequence, std::int32_t num_tokens) const {
    REQUIRE(num_tokens <= batch.context_lens[sequence]);
    std::vector<TokenId> context;
    for (std::int32_t position = 0; position < num_tokens; ++position) {
      const std::size_t entry = sequence * batch.max_blocks_per_sequence + position / block_size_;
      const Slot& slot = device_.at(batch.block_tables[entry] * block_size_ + position % block_size_);
      REQUIRE(slot.position == position);
      context.push_back(slot.token);
    }
    return context;
  }

  std::int32_t block_size_;
  std::vector<Slot> device_;
  std::vector<Slot> host_;
};

}  // namespace fastpaged::test
