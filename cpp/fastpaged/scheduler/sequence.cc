#include "fastpaged/scheduler/sequence.h"

#include <algorithm>
#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

Sequence::Sequence(SequenceId id, std::vector<TokenId> prompt_token_ids, BlockTable table)
    : id_(id),
      num_prompt_tokens_(static_cast<std::int32_t>(prompt_token_ids.size())),
      num_scored_(num_prompt_tokens_ - 1),
      token_ids_(std::move(prompt_token_ids)),
      table_(std::move(table)) {}

Sequence Sequence::fork(SequenceId id, std::int32_t branch, std::int32_t num_blocks) const {
  Sequence child(id, token_ids_, table_.fork(id, num_blocks));
  child.branch_ = branch;
  child.num_prompt_tokens_ = num_prompt_tokens_;
  child.num_scored_ = num_scored_;
  child.num_computed_tokens_ = num_computed_tokens_;
  child.most_computed_tokens_ = num_computed_tokens_;
  child.published_ = published_;
  return child;
}

void Sequence::score_prompt() {
  invariant(most_computed_tokens_ == 0, "Sequence: wants scores of what is computed");
  num_scored_ = 0;
}

std::int32_t Sequence::num_scores(std::int32_t num_tokens) const {
  return std::max(0, std::min(num_computed_tokens_ + num_tokens, num_prompt_tokens_ - 1) - num_scored_);
}

std::int32_t Sequence::num_rows(std::int32_t num_tokens) const {
  return num_scores(num_tokens) + (num_tokens == num_uncomputed_tokens() ? 1 : 0);
}

std::int32_t Sequence::most_tokens(std::int32_t wanted, std::int64_t num_rows) const {
  if (this->num_rows(wanted) <= num_rows) {
    return wanted;
  }
  if (num_scores(wanted) <= num_rows) {
    return wanted - 1;  // the row that is missing is the one to sample from
  }
  return num_scored_ - num_computed_tokens_ + static_cast<std::int32_t>(num_rows);
}

std::int32_t Sequence::advance(std::int32_t num_tokens) {
  invariant(num_tokens >= 0 && num_tokens <= num_uncomputed_tokens(), "Sequence: computed past its last token");
  const std::int32_t again = std::clamp(most_computed_tokens_ - num_computed_tokens_, 0, num_tokens);
  num_computed_tokens_ += num_tokens;
  most_computed_tokens_ = std::max(most_computed_tokens_, num_computed_tokens_);
  num_scored_ = std::max(num_scored_, std::min(num_computed_tokens_, num_prompt_tokens_ - 1));
  return again;
}

std::int32_t Sequence::adopt(KVCacheManager& kv_cache, const PrefixMatch& match) {
  invariant(num_computed_tokens_ == 0, "Sequence: would adopt what is computed");
  num_computed_tokens_ = kv_cache.adopt(table_, match, published_);
  most_computed_tokens_ = std::max(most_computed_tokens_, num_computed_tokens_);
  return num_computed_tokens_;
}

bool Sequence::publish(KVCacheManager& kv_cache, std::string_view root) {
  const PublishedPrefix before = published_;
  const std::uint64_t version = table_.version();
  kv_cache.publish(table_, token_ids_, num_computed_tokens_, root, published_);
  return published_.num_blocks > before.num_blocks || published_.last_entry != before.last_entry ||
         table_.version() != version;
}

void Sequence::stop_publishing() {
  if (table_.size() > 0) {
    published_ = {.epoch = kNever};
  }
}

void Sequence::forget_computed(BlockTable empty) {
  num_computed_tokens_ = 0;
  published_ = {};
  table_ = std::move(empty);
}

void Sequence::take_over_from(const Sequence& parent, std::int32_t num_tokens, std::int32_t num_blocks) {
  table_ = parent.table().fork(id_, num_blocks);
  num_computed_tokens_ = num_tokens;
  published_ = parent.published_;
  rebuild_ = {};
}

void Sequence::check_invariants(std::int32_t block_size) const {
  invariant(num_prompt_tokens_ > 0 && num_prompt_tokens_ <= num_tokens(), "Sequence: lost prompt tokens");
  invariant(num_computed_tokens_ >= 0 && num_computed_tokens_ <= num_tokens(),
            "Sequence: computed past its last token");
  invariant(num_scored_ >= std::min(num_computed_tokens_, num_prompt_tokens_ - 1) && num_scored_ < num_prompt_tokens_,
            "Sequence: a token of the prompt was computed and not scored");
  invariant(std::int64_t{table_.size()} * block_size >= num_computed_tokens_,
            "Sequence: the block table has no room for the computed tokens");
  invariant(rebuild_.from == nullptr || (num_computed_tokens_ == 0 && table_.size() == 0),
            "Sequence: holds blocks of its own while it waits for another's");
}

}  // namespace fastpaged
