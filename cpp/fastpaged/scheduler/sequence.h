// Sequence: the tokens of one decoding branch, how far they are computed, and the blocks that hold them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/block_table.h"

namespace fastpaged {

// Invariant: 0 <= num_computed_tokens <= num_tokens; the table has room for the computed tokens.
class Sequence {
 public:
  Sequence(SequenceId id, std::vector<TokenId> prompt_token_ids, BlockTable table);

  [[nodiscard]] SequenceId id() const { return id_; }
  [[nodiscard]] std::span<const TokenId> token_ids() const { return token_ids_; }  // prompt, then output
  [[nodiscard]] std::int32_t num_tokens() const { return static_cast<std::int32_t>(token_ids_.size()); }
  [[nodiscard]] std::int32_t num_prompt_tokens() const { return num_prompt_tokens_; }
  [[nodiscard]] std::int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens_; }
  [[nodiscard]] std::int32_t num_computed_tokens() const { return num_computed_tokens_; }  // K and V are in the cache
  [[nodiscard]] std::int32_t num_uncomputed_tokens() const { return num_tokens() - num_computed_tokens_; }
  [[nodiscard]] bool decodes() const { return num_uncomputed_tokens() == 1; }

  void append(TokenId token) { token_ids_.push_back(token); }
  void advance(std::int32_t num_tokens);  // these many more are computed
  void forget_computed();                 // back to 0 and the blocks given back: to be recomputed

  [[nodiscard]] BlockTable& table() { return table_; }
  [[nodiscard]] const BlockTable& table() const { return table_; }
  void check_invariants(std::int32_t block_size) const;

 private:
  SequenceId id_;
  std::int32_t num_prompt_tokens_;
  std::int32_t num_computed_tokens_ = 0;
  std::vector<TokenId> token_ids_;
  BlockTable table_;
};

}  // namespace fastpaged
