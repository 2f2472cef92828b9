#include "fastpaged/scheduler/sequence.h"

#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

Sequence::Sequence(SequenceId id, std::vector<TokenId> prompt_token_ids, BlockTable table)
    : id_(id),
      num_prompt_tokens_(static_cast<std::int32_t>(prompt_token_ids.size())),
      token_ids_(std::move(prompt_token_ids)),
      table_(std::move(table)) {}

void Sequence::advance(std::int32_t num_tokens) {
  invariant(num_tokens >= 0 && num_tokens <= num_uncomputed_tokens(), "Sequence: computed past its last token");
  num_computed_tokens_ += num_tokens;
}

void Sequence::forget_computed() {
  num_computed_tokens_ = 0;
  table_.clear();
}

void Sequence::check_invariants(std::int32_t block_size) const {
  invariant(num_prompt_tokens_ > 0 && num_prompt_tokens_ <= num_tokens(), "Sequence: lost prompt tokens");
  invariant(num_computed_tokens_ >= 0 && num_computed_tokens_ <= num_tokens(),
            "Sequence: computed past its last token");
  invariant(std::int64_t{table_.size()} * block_size >= num_computed_tokens_,
            "Sequence: the block table has no room for the computed tokens");
}

}  // namespace fastpaged
