// Sequence: the tokens of one decoding branch, how far they are computed, and the blocks that hold them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/block_table.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged {

// Invariant: 0 <= num_computed_tokens <= num_tokens; the table has room for the computed tokens; what is computed is
// scored.
class Sequence {
 public:
  Sequence(SequenceId id, std::vector<TokenId> prompt_token_ids, BlockTable table);
  // A branch of this sequence: its tokens, and its first num_computed tokens' blocks, shared.
  [[nodiscard]] Sequence fork(SequenceId id, std::int32_t branch, std::int32_t num_blocks) const;

  [[nodiscard]] SequenceId id() const { return id_; }
  [[nodiscard]] std::int32_t branch() const { return branch_; }  // which of its request's, from 0: its sample_index
  [[nodiscard]] std::span<const TokenId> token_ids() const { return token_ids_; }  // prompt, then output
  [[nodiscard]] std::int32_t num_tokens() const { return static_cast<std::int32_t>(token_ids_.size()); }
  [[nodiscard]] std::int32_t num_prompt_tokens() const { return num_prompt_tokens_; }
  [[nodiscard]] std::int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens_; }
  [[nodiscard]] std::int32_t num_computed_tokens() const { return num_computed_tokens_; }  // K and V are in the cache
  [[nodiscard]] std::int32_t num_uncomputed_tokens() const { return num_tokens() - num_computed_tokens_; }

  // Scores: the logprobs of the prompt's own tokens, if the request wants them. Each position whose next token is the
  // prompt's then needs a row of logits when it is first computed; recomputed, it needs none. A row of its own goes to
  // the last known token, to sample from.
  void score_prompt();                                                   // REQUIRES: nothing is computed yet
  [[nodiscard]] std::int32_t num_scored() const { return num_scored_; }  // positions, from 0 on, that need no row
  [[nodiscard]] std::int32_t num_scores(std::int32_t num_tokens) const;  // rows for them, if so many more are computed
  [[nodiscard]] std::int32_t num_rows(std::int32_t num_tokens) const;    // all rows of the same
  // The most tokens, up to `wanted` (<= num_uncomputed_tokens), that do with so many rows. REQUIRES: num_rows > 0.
  [[nodiscard]] std::int32_t most_tokens(std::int32_t wanted, std::int64_t num_rows) const;

  void append(TokenId token) { token_ids_.push_back(token); }
  // These many more are computed. Returns how many of them had been computed before, and forgotten.
  std::int32_t advance(std::int32_t num_tokens);
  // Shares the blocks of a match with these tokens; what they hold counts as computed. Returns how many tokens that is.
  // REQUIRES: nothing is computed, and the match stops short of what is to be scored and of the last token.
  std::int32_t adopt(KVCacheManager& kv_cache, const PrefixMatch& match);
  // Lets others find what is computed. Whether there is more of it than before, or in other blocks.
  bool publish(KVCacheManager& kv_cache, std::string_view root);
  // What it holds, and what it is about to compute after that, is not to be found by anybody, until it is recomputed.
  void stop_publishing();
  [[nodiscard]] bool publishes() const { return published_.epoch != kNever; }
  [[nodiscard]] std::int32_t num_published_blocks() const { return published_.num_blocks; }
  // Back to 0, and the blocks given back, to be recomputed into `empty`.
  void forget_computed(BlockTable empty);

  // The place in a fork tree that is being recomputed: this sequence's first num_tokens tokens are another one's, and
  // it takes over their blocks once that one has computed them. Until then it holds none. Always more tokens than that
  // one has, or itself waits for.
  struct Rebuild {
    Sequence* from = nullptr;  // null: not waiting for anybody
    std::int32_t num_tokens = 0;
  };
  [[nodiscard]] const Rebuild& rebuild() const { return rebuild_; }
  void rebuild_from(Sequence& parent, std::int32_t num_tokens) { rebuild_ = {&parent, num_tokens}; }
  // Shares the parent's blocks of num_tokens tokens; they count as computed. num_blocks: how many hold them.
  void take_over_from(const Sequence& parent, std::int32_t num_tokens, std::int32_t num_blocks);

  [[nodiscard]] BlockTable& table() { return table_; }
  [[nodiscard]] const BlockTable& table() const { return table_; }
  void check_invariants(std::int32_t block_size) const;

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};  // an epoch that never comes

  SequenceId id_;
  std::int32_t branch_ = 0;
  std::int32_t num_prompt_tokens_;
  std::int32_t num_computed_tokens_ = 0;
  std::int32_t most_computed_tokens_ = 0;  // ever
  std::int32_t num_scored_;                // all that may be scored, if none is wanted
  std::vector<TokenId> token_ids_;
  BlockTable table_;
  PublishedPrefix published_;
  Rebuild rebuild_;
};

}  // namespace fastpaged
