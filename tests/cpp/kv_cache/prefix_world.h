// PrefixWorld: random requests over two small pools, and everything there is to see held against SlowPrefixCache.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"
#include "kv_cache/prefixes_occurred.h"
#include "kv_cache/slot_contents.h"
#include "kv_cache/slow_prefix_cache.h"
#include "random.h"

namespace fastpaged::test {

inline std::size_t size(std::int32_t number) {
  return static_cast<std::size_t>(number);
}

class PrefixWorld {
 public:
  PrefixWorld(Random& random, PrefixesOccurred& occurred)
      : random_(random),
        occurred_(occurred),
        roomy_(random.once_in(6)),
        num_blocks_(roomy_ ? 96 : random.between(3, 14)),
        block_size_(roomy_ ? 4 : random.between(1, 4)),
        num_host_blocks_(random.between(0, 12)),
        host_tier_(!random.once_in(4)),
        vocab_size_(roomy_ ? 4 : random.between(1, 3)),
        real_(num_blocks_, block_size_, num_host_blocks_,
              {.enabled = true, .hash_mask = any_mask(), .host_tier = host_tier_}),
        slow_(num_blocks_, block_size_, num_host_blocks_),
        contents_(block_size_) {
    slow_.host_tier = host_tier_;
  }

  void do_something() {
    const std::int32_t choice = random_.between(1, 100);
    if (requests_.empty() || choice <= 20) {
      start();
    } else if (choice <= 65) {
      compute();
    } else if (choice <= 73) {
      fork();
    } else if (choice <= 86) {
      finish();
    } else if (choice <= 90) {
      swap(true);
    } else if (choice <= 95) {
      swap(false);
    } else if (choice <= 97) {
      recompute();
    } else if (choice <= 98) {
      turn();
    } else if (random_.once_in(2)) {
      reset();
    } else if (roomy_) {
      come_in_a_crowd();
    }
    random_.once_in(20) ? lose_copies() : run_copies();
  }

  void look_something_up() {
    const SlowText text = any_text();
    static_cast<void>(look_up(text, random_.between(0, static_cast<std::int32_t>(text.size()) + 1)));
    wait();
  }

  void compare() {
    real_.check_invariants();
    REQUIRE(real_.num_free_blocks() == slow_.device.num_free());
    REQUIRE(real_.prefix_cache().num_cached() == std::ssize(slow_.entries));
    compare_pool(real_.device_pool(), slow_.device);
    compare_pool(real_.host_pool(), slow_.host);
    REQUIRE(real_.num_prefix_gains() == slow_.num_gains);
    REQUIRE(real_.num_evicted_blocks() == slow_.num_evicted);
    REQUIRE(real_.num_host_evicted_blocks() == slow_.num_host_evicted);
    REQUIRE(real_.num_demoted_blocks() == slow_.num_demoted);
    REQUIRE(real_.num_promoted_blocks() == slow_.num_promoted);
    for (const auto& [owner, request] : requests_) {
      const BlockTable& table = tables_.at(owner);
      const SlowTable& plain = slow_.tables.at(owner);
      REQUIRE(table.size() == plain.size());
      for (const auto& [index, block] : plain.blocks) {
        REQUIRE(table.blocks()[index] == block);
      }
      REQUIRE(contents_.hold(plain.on_host, table.blocks(), request.text, 0, size(request.num_computed)));
    }
  }

  void end() {
    tables_.clear();
    CHECK(real_.num_free_blocks() == num_blocks_);
    CHECK(real_.host_pool().num_free() == num_host_blocks_);
    real_.reset_prefix_cache();
    for (const BlockPool* pool : {&real_.device_pool(), &real_.host_pool()}) {
      CHECK(pool->cached_free_blocks().empty());
      CHECK(std::ssize(pool->free_blocks()) == pool->num_blocks());
    }
    real_.check_invariants();
    occurred_.evicted += static_cast<int>(slow_.num_evicted);
    occurred_.host_evicted += static_cast<int>(slow_.num_host_evicted);
    occurred_.demoted += static_cast<int>(slow_.num_demoted);
    occurred_.promoted += static_cast<int>(slow_.num_promoted);
    occurred_.taken_as_copies += static_cast<int>(slow_.num_taken_as_copies);
    occurred_.taken_over += slow_.num_taken_over;
    occurred_.duplicates += slow_.num_duplicates;
  }

 private:
  std::uint64_t any_mask() {
    const std::uint64_t masks[] = {~std::uint64_t{0}, 1, 1, 0};
    return masks[random_.between(0, 3)];
  }

  TokenId any_token() { return random_.between(0, vocab_size_ - 1); }
  SequenceId any_owner() { return random_.one_of(requests_).first; }

  // Often the beginning of one that was there before, and on from there.
  SlowText any_text() {
    SlowText text{random_.once_in(4) ? "tenant" : "", {}};
    if (!texts_.empty() && !random_.once_in(3)) {
      const SlowText& other = random_.one_of(texts_);
      text = other.first(size(random_.between(0, static_cast<std::int32_t>(other.size()))));
    }
    for (std::int32_t i = random_.between(text.size() == 0 ? 1 : 0, 2 * block_size_); i > 0; --i) {
      text.tokens.push_back(any_token());
    }
    return text;
  }

  std::pair<PrefixMatch, SlowMatch> look_up(const SlowText& text, std::int32_t max_tokens) {
    const PrefixMatch match = real_.match_prefix(text.tokens, max_tokens, text.root);
    const SlowMatch expected = slow_.match(text, max_tokens);
    REQUIRE(match.blocks == expected.blocks);
    REQUIRE(match.host_blocks == expected.host_blocks);
    REQUIRE(match.num_in_use == expected.num_in_use);
    REQUIRE(match.num_partial_tokens == expected.num_partial_tokens);
    if (expected.partial_block) {
      REQUIRE(match.partial_block == expected.partial_block->block);
      REQUIRE(match.partial_on_host == expected.partial_block->on_host);
    }
    const std::int32_t num_on_device = static_cast<std::int32_t>(match.blocks.size()) * block_size_;
    const std::int32_t num_whole = match.num_blocks() * block_size_;
    REQUIRE(match.num_device_tokens(block_size_) ==
            num_on_device + (match.partial_on_host || num_whole > num_on_device ? 0 : match.num_partial_tokens));
    REQUIRE(match.num_tokens == num_whole + match.num_partial_tokens);
    REQUIRE(match.num_tokens <= std::min(max_tokens, static_cast<std::int32_t>(text.size())));
    REQUIRE(contents_.hold(false, match.blocks, text, 0, size(num_on_device)));
    REQUIRE(contents_.hold(true, match.host_blocks, text, size(num_on_device), size(num_whole)));
    const BlockId partial[] = {match.partial_block};
    REQUIRE(contents_.hold(match.partial_on_host, partial, text, size(num_whole), size(match.num_tokens)));
    ++occurred_.lookups;
    occurred_.whole += match.blocks.empty() ? 0 : 1;
    occurred_.on_host += match.host_blocks.empty() ? 0 : 1;
    occurred_.partial += match.num_partial_tokens > 0 ? 1 : 0;
    occurred_.partial_on_host += match.partial_on_host ? 1 : 0;
    occurred_.crowded +=
        std::ssize(slow_.children(text.first(size(num_whole)))) > PrefixCache::kMaxChildrenTried ? 1 : 0;
    return {match, expected};
  }

  // One that waits for room needs at most as many blocks less as the cache has gained since.
  void wait() {
    const auto need_of = [&](const SlowText& text) {
      const auto num_tokens = static_cast<std::int32_t>(text.size());
      return real_.blocks_for(num_tokens) - real_.match_prefix(text.tokens, num_tokens - 1, text.root).num_in_use;
    };
    const std::int64_t gains = static_cast<std::int64_t>(real_.num_prefix_gains() - waiting_.gains);
    REQUIRE(need_of(waiting_.text) >= waiting_.need - gains);
    if (random_.once_in(20)) {
      waiting_.text = any_text();
      waiting_.need = need_of(waiting_.text);
      waiting_.gains = real_.num_prefix_gains();
    }
  }

  void start() {
    if (requests_.size() >= 6) {
      return finish();
    }
    const SequenceId owner = next_owner_++;
    PrefixRequest& request = requests_[owner];
    request.text = any_text();
    tables_.emplace(owner, real_.make_table(owner));
    slow_.tables[owner];
    if (!random_.once_in(8)) {
      adopt(owner);
    }
  }

  // More children of one node than are looked at.
  void come_in_a_crowd() {
    for (std::int32_t i = 0; i < 2 * PrefixCache::kMaxChildrenTried; ++i) {
      const SequenceId owner = next_owner_++;
      requests_[owner];
      tables_.emplace(owner, real_.make_table(owner));
      slow_.tables[owner];
      compute(owner, block_size_);
      if (requests_.contains(owner)) {
        finish(owner);
      }
    }
  }

  void adopt(SequenceId owner) {
    PrefixRequest& request = requests_.at(owner);
    const auto num_tokens = static_cast<std::int32_t>(request.text.size());
    const auto [match, expected] = look_up(request.text, random_.once_in(4) ? num_tokens : num_tokens - 1);
    request.num_computed = real_.adopt(tables_.at(owner), match, request.published);
    REQUIRE(request.num_computed == slow_.adopt(owner, expected));
    request.known = true;
    occurred_.revived += match.num_revived();
    occurred_.no_room_for_a_copy += request.num_computed < match.num_tokens ? 1 : 0;
  }

  void compute() {
    const SequenceId owner = any_owner();
    slow_.tables.at(owner).on_host ? swap(false) : compute(owner, random_.between(1, 2 * block_size_));
  }

  void compute(SequenceId owner, std::int32_t count) {
    PrefixRequest& request = requests_.at(owner);
    BlockTable& table = tables_.at(owner);
    const std::int32_t end = request.num_computed + count;
    REQUIRE(real_.missing_blocks(table, request.num_computed, count) ==
            slow_.missing(owner, request.num_computed, count));
    const std::size_t num_cached = slow_.entries.size();
    const std::uint64_t num_evicted = slow_.num_evicted;
    const bool fits = slow_.reserve(owner, request.num_computed, count);
    REQUIRE(real_.reserve(table, request.num_computed, count) == fits);
    if (!fits) {
      return finish(owner);
    }
    const auto num_forgotten = static_cast<int>(num_cached - slow_.entries.size());
    if (slow_.num_evicted == num_evicted && num_forgotten > 0) {
      ++occurred_.forgotten_by_writing;
      occurred_.forgotten_with_it += num_forgotten - 1;
    }
    real_.check_writable(table, request.num_computed, count);
    contents_.copy(real_.copies().copies());
    CHECK(one_by_one(real_.take_copies()) == std::exchange(slow_.copies, {}));
    for (std::int32_t i = request.num_computed; i < end; ++i) {
      if (i == static_cast<std::int32_t>(request.text.size())) {
        request.text.tokens.push_back(any_token());
      }
      contents_.write(table.blocks(), request.text, size(i));
    }
    request.num_computed = end;
    texts_.push_back(request.text);
    if (!random_.once_in(5)) {
      publish(owner);
    }
  }

  void publish(SequenceId owner) {
    PrefixRequest& request = requests_.at(owner);
    BlockTable& table = tables_.at(owner);
    const std::uint64_t version = table.version();
    const std::vector<BlockId> before(table.blocks().begin(), table.blocks().end());
    real_.publish(table, request.text.tokens, request.num_computed, request.text.root, request.published);
    CHECK((table.version() > version) == !std::ranges::equal(before, table.blocks()));
    request.known = true;
    if (!request.stale) {
      slow_.publish(owner, request.text, request.num_computed);
      ++occurred_.published;
    }
  }

  void fork() {
    const SequenceId parent = any_owner();
    if (requests_.size() >= 6) {
      return finish();
    }
    const SequenceId owner = next_owner_++;
    PrefixRequest request = requests_.at(parent);  // `published` too, whatever the branch shares of it
    request.num_computed = random_.once_in(2) ? request.num_computed : random_.between(0, request.num_computed);
    request.text = request.text.first(size(request.num_computed));
    request.text.tokens.push_back(any_token());
    const std::int32_t num_shared = real_.blocks_for(request.num_computed);
    slow_.fork(parent, owner, num_shared);
    tables_.emplace(owner, tables_.at(parent).fork(owner, num_shared));
    requests_.emplace(owner, std::move(request));
    ++occurred_.forks;
    if (random_.once_in(3)) {
      finish(parent);  // and the branch may have a block that is full, but not its own beyond its middle
      slow_.tables.at(owner).on_host ? swap(false) : compute(owner, 1);
    }
  }

  void finish() { finish(any_owner()); }

  void finish(SequenceId owner) {
    slow_.truncate(owner, 0);
    slow_.tables.erase(owner);
    tables_.erase(owner);
    requests_.erase(owner);
  }

  // Any of those that are in the other tier, with or without those that share blocks with them.
  void swap(bool to_host) {
    std::vector<SequenceId> owners;
    std::vector<BlockTable*> tables;
    for (auto& [owner, table] : tables_) {
      if (slow_.tables.at(owner).on_host != to_host && !random_.once_in(3)) {
        owners.push_back(owner);
        tables.push_back(&table);
      }
    }
    if (!to_host) {
      std::set<BlockId> blocks;
      for (const SequenceId owner : owners) {
        for (const auto& [index, block] : slow_.tables.at(owner).blocks) {
          blocks.insert(block);
        }
      }
      REQUIRE(real_.missing_to_swap_in(tables) == slow_.missing_to_swap(blocks, false));
    }
    const std::size_t num_copies = slow_.copies.size();
    const std::uint64_t num_demoted = slow_.num_demoted;
    std::size_t num_entries = 0;
    for (const SequenceId owner : owners) {
      num_entries += slow_.tables.at(owner).blocks.size();
    }
    const bool fits = slow_.swap(owners, to_host);
    if (fits && owners.size() == 1) {
      occurred_.not_copied +=
          static_cast<int>(num_entries + slow_.num_demoted - num_demoted - slow_.copies.size() + num_copies);
    }
    REQUIRE((to_host ? real_.swap_out(tables) : real_.swap_in(tables)) == fits);
    occurred_.swaps += fits && !owners.empty() ? 1 : 0;
  }

  void recompute() {
    const SequenceId owner = any_owner();
    give_back(owner);
    ++occurred_.recomputed;
    if (!random_.once_in(4)) {
      adopt(owner);
    }
  }

  void give_back(SequenceId owner) {
    slow_.truncate(owner, 0);
    slow_.tables.at(owner).on_host = false;
    tables_.at(owner) = real_.make_table(owner);
    requests_.at(owner) = PrefixRequest{requests_.at(owner).text, 0, false, false, {}};
  }

  void reset() {
    real_.reset_prefix_cache();
    slow_.reset();
    for (auto& [owner, request] : requests_) {
      request.stale = request.stale || request.known;
    }
    ++occurred_.resets;
  }

  // What evicted blocks cost has changed; or what a table holds is in doubt.
  void turn() {
    if (random_.once_in(2)) {
      slow_.copies_evicted = !slow_.copies_evicted;
      return real_.copy_evicted(slow_.copies_evicted);
    }
    const SequenceId owner = any_owner();
    if (!slow_.tables.at(owner).on_host) {
      slow_.forget_own(owner);
      real_.forget_own(tables_.at(owner));
      ++occurred_.forgotten_as_doubtful;
    }
  }

  void run_copies() {
    contents_.copy(real_.copies().copies());
    CHECK(one_by_one(real_.take_copies()) == std::exchange(slow_.copies, {}));
  }

  // Nobody runs them: what would lie where they write is not to be found, and whoever has it starts anew.
  void lose_copies() {
    const std::vector<BlockCopy> lost = real_.take_copies();
    CHECK(one_by_one(lost) == slow_.copies);
    const std::size_t num_cached = slow_.entries.size();
    slow_.forget_written(slow_.copies);
    real_.forget_written(lost);
    occurred_.lost += static_cast<int>(num_cached - slow_.entries.size());
    std::set<SlowPlace> written;
    for (const BlockCopy& copy : std::exchange(slow_.copies, {})) {
      written.insert({copy.kind == CopyKind::kSwapOut, copy.destination});
    }
    for (auto& [owner, request] : requests_) {
      const SlowTable table = slow_.tables.at(owner);
      if (std::ranges::any_of(table.blocks,
                              [&](const auto& held) { return written.contains({table.on_host, held.second}); })) {
        give_back(owner);
      }
    }
  }

  void compare_pool(const BlockPool& pool, const SlowPool& plain) {
    for (const bool cached : {false, true}) {
      std::vector<BlockId> free;
      std::ranges::copy_if(plain.free, std::back_inserter(free),
                           [&](BlockId block) { return plain.cached.contains(block) == cached; });
      REQUIRE((cached ? pool.cached_free_blocks() : pool.free_blocks()) == free);
    }
    for (BlockId block = 0; block < plain.size; ++block) {
      REQUIRE(pool.is_cached(block) == plain.cached.contains(block));
      const auto holders = plain.holders.find(block);
      REQUIRE(pool.ref_count(block) == (holders == plain.holders.end() ? 0 : std::ssize(holders->second)));
    }
  }

  Random& random_;
  PrefixesOccurred& occurred_;
  bool roomy_;
  std::int32_t num_blocks_, block_size_, num_host_blocks_;
  bool host_tier_;
  std::int32_t vocab_size_;
  KVCacheManager real_;
  SlowPrefixCache slow_;
  SlotContents contents_;
  std::map<SequenceId, BlockTable> tables_;
  std::map<SequenceId, PrefixRequest> requests_;
  std::vector<SlowText> texts_;  // that were computed once
  struct {
    SlowText text;
    std::int64_t need = 0;
    std::uint64_t gains = 0;
  } waiting_;
  SequenceId next_owner_ = 1;
};

}  // namespace fastpaged::test
