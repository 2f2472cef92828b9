// A hundred thousand random operations, impossible ones included. After each of them everything there is to see is
// held against SlowKVCache.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/base/check.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"
#include "kv_cache/slow_kv_cache.h"
#include "proof_scale.h"
#include "random.h"

namespace fastpaged::test {
namespace {

struct Occurred {
  int reserved, refused, copied_on_write, swapped_out, swapped_in, no_room_to_swap, shared_swaps, double_frees, errors;
};

// What `call` throws, from "sequence" or the beginning on; empty if nothing.
template <typename Error, typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    const std::size_t place = message.find("broken invariant: ");
    return place == std::string::npos ? message : message.substr(place + std::string("broken invariant: ").size());
  }
  return "";
}

class World {
 public:
  World(Random& random, Occurred& occurred)
      : random_(random),
        occurred_(occurred),
        num_blocks_(random.between(3, 12)),
        block_size_(random.between(1, 4)),
        num_host_blocks_(random.between(0, 12)),
        real_(num_blocks_, block_size_, num_host_blocks_),
        slow_(num_blocks_, block_size_, num_host_blocks_) {}

  void do_something() {
    remember();
    if (tables_.empty()) {
      return make_table();
    }
    const std::int32_t choice = random_.between(1, 100);
    if (choice <= 40) {
      reserve();
    } else if (choice <= 55) {
      fork();
    } else if (choice <= 63) {
      truncate(random_.between(0, 3));
    } else if (choice <= 71) {
      destroy();
    } else if (choice <= 77) {
      swap(true);
    } else if (choice <= 84) {
      swap(false);
    } else if (choice <= 86) {
      make_table();
    } else if (choice <= 90) {
      take_copies();
    } else if (choice <= 93) {
      release_twice();
    } else if (choice <= 96) {
      ask_for_the_impossible();
    } else {
      check_writable();
    }
  }

  void compare() {
    compare_pool(real_.device_pool(), slow_.device);
    compare_pool(real_.host_pool(), slow_.host);
    REQUIRE(tables_.size() == slow_.tables.size());
    for (const auto& [owner, table] : tables_) {
      compare_table(table, slow_.tables.at(owner));
      compare_version(table);
    }
    const std::vector<BlockCopy> copies = one_by_one(real_.copies().copies());
    REQUIRE(copies == slow_.copies);
    REQUIRE(real_.copies().num_blocks() == std::ssize(slow_.copies));
    real_.check_invariants();
  }

  void end() {
    tables_.clear();
    CHECK(real_.num_free_blocks() == num_blocks_);
    CHECK(real_.host_pool().num_free() == num_host_blocks_);
    real_.check_invariants();
  }

 private:
  struct Tokens {
    std::int64_t first, count;
  };

  SequenceId any_owner() { return random_.one_of(tables_).first; }
  BlockTable& real(SequenceId owner) { return tables_.at(owner); }
  const SlowTable& slow(SequenceId owner) { return slow_.tables.at(owner); }

  // Mostly the next few, as in decoding and prefilling; sometimes any.
  Tokens any_tokens(SequenceId owner) {
    const std::int64_t held = std::int64_t{slow(owner).size()} * block_size_;
    if (random_.once_in(4)) {
      return {random_.between(0, static_cast<std::int32_t>(held)), random_.between(0, 3 * block_size_)};
    }
    const std::int64_t first = std::max<std::int64_t>(0, held - random_.between(0, block_size_));
    return {first, random_.between(1, block_size_)};
  }

  void make_table() {
    if (tables_.size() < 6) {
      tables_.emplace(next_owner_, real_.make_table(next_owner_));
      slow_.tables[next_owner_];
      ++next_owner_;
    }
  }

  void reserve() {
    const SequenceId owner = any_owner();
    const Tokens tokens = any_tokens(owner);
    if (slow(owner).on_host) {
      CHECK(error_of<InvariantError>([&] { static_cast<void>(real_.reserve(real(owner), tokens.first, 1)); }) ==
            "sequence " + std::to_string(owner) +
                " holds blocks of the host pool where it must hold the device pool's");
      ++occurred_.errors;
      return;
    }
    CHECK(real_.missing_blocks(real(owner), tokens.first, tokens.count) ==
          slow_.missing(owner, tokens.first, tokens.count));
    const std::size_t num_copies = slow_.copies.size();
    const bool fits = slow_.reserve(owner, tokens.first, tokens.count);
    REQUIRE(real_.reserve(real(owner), tokens.first, tokens.count) == fits);
    ++(fits ? occurred_.reserved : occurred_.refused);
    occurred_.copied_on_write += static_cast<int>(slow_.copies.size() - num_copies);
    if (fits) {
      real_.check_writable(real(owner), tokens.first, tokens.count);
    }
  }

  void check_writable() {
    const SequenceId owner = any_owner();
    const Tokens tokens = any_tokens(owner);
    if (slow(owner).on_host) {
      CHECK_THROWS_AS(real_.check_writable(real(owner), tokens.first, tokens.count), InvariantError);
      return;
    }
    std::string expected;
    const std::set<std::int32_t> written = slow_.written(tokens.first, tokens.count);
    const std::string who = "sequence " + std::to_string(owner) + " would write into block ";
    for (auto index = written.rbegin(); index != written.rend(); ++index) {  // the lowest shared one has the last word
      if (*index < slow(owner).size() && slow_.device.shared(slow(owner).blocks.at(*index))) {
        const BlockId block = slow(owner).blocks.at(*index);
        expected = who + std::to_string(block) + ", which " + std::to_string(slow_.device.holders.at(block).size()) +
                   " tables share";
      }
    }
    if (!written.empty() && *written.rbegin() >= slow(owner).size()) {
      expected =
          who + std::to_string(*written.rbegin()) + " of its table, which has " + std::to_string(slow(owner).size());
    }
    CHECK(error_of<InvariantError>([&] { real_.check_writable(real(owner), tokens.first, tokens.count); }) == expected);
  }

  void fork() {
    if (tables_.size() >= 6) {
      return destroy();
    }
    const SequenceId parent = any_owner();
    const std::int32_t size = slow(parent).size();
    const std::int32_t num_blocks = random_.once_in(2) ? size : random_.between(0, size);
    slow_.fork(parent, next_owner_, num_blocks);
    tables_.emplace(next_owner_, real(parent).fork(next_owner_, num_blocks));
    ++next_owner_;
  }

  void truncate(std::int32_t num_blocks) {
    const SequenceId owner = any_owner();
    slow_.truncate(owner, num_blocks);
    num_blocks == 0 ? real(owner).clear() : real(owner).truncate(num_blocks);
  }

  void destroy() {
    const SequenceId owner = any_owner();
    slow_.truncate(owner, 0);
    slow_.tables.erase(owner);
    tables_.erase(owner);
  }

  // Any tables of one tier, with or without those that share blocks with them.
  void swap(bool to_host) {
    std::vector<SequenceId> owners;
    std::vector<BlockTable*> tables;
    std::vector<const BlockTable*> views;
    for (auto& [owner, table] : tables_) {
      if (slow(owner).on_host != to_host && !random_.once_in(3)) {
        owners.push_back(owner);
        tables.push_back(&table);
        views.push_back(&table);
      }
    }
    std::int64_t num_entries = 0;
    std::set<BlockId> distinct;
    for (const SequenceId owner : owners) {
      for (const auto& [index, block] : slow(owner).blocks) {
        distinct.insert(block);
        ++num_entries;
      }
    }
    REQUIRE(KVCacheManager::num_distinct_blocks(views) == std::ssize(distinct));
    const bool fits = slow_.swap(owners, to_host);
    REQUIRE((to_host ? real_.swap_out(tables) : real_.swap_in(tables)) == fits);
    if (num_entries > 0) {
      ++(!fits ? occurred_.no_room_to_swap : to_host ? occurred_.swapped_out : occurred_.swapped_in);
      occurred_.shared_swaps += fits && std::ssize(distinct) < num_entries ? 1 : 0;
    }
  }

  void take_copies() {
    const std::vector<BlockCopy> copies = real_.take_copies();
    REQUIRE(one_by_one(copies) == slow_.copies);
    for (std::size_t i = 1; i < copies.size(); ++i) {
      const BlockCopy& last = copies[i - 1];
      const std::int32_t distance = copies[i].destination - copies[i].source;
      const bool neighbours = last.kind == copies[i].kind && last.source + last.num_blocks == copies[i].source &&
                              last.destination + last.num_blocks == copies[i].destination;
      const bool would_overlap =
          last.kind == CopyKind::kCopyOnWrite && std::max(distance, -distance) < last.num_blocks + 1;
      REQUIRE((!neighbours || would_overlap));
    }
    slow_.copies.clear();
  }

  // A table that claims a block it does not hold: giving it back, or sharing it, is refused at once and changes
  // nothing.
  void release_twice() {
    if (slow_.device.free.empty()) {
      return;
    }
    const SequenceId owner = next_owner_++;
    BlockTable table = real_.make_table(owner);
    REQUIRE(table.grow_to(1));
    slow_.device.give(slow_.device.take(owner), owner);
    const BlockId block = random_.once_in(3) ? (random_.once_in(2) ? -1 : num_blocks_ + random_.between(0, 2))
                                             : random_.one_of(slow_.device.free);
    table.replace(0, block);
    CHECK(error_of<std::invalid_argument>([&] { table.clear(); }) == slow_.device.refusal(block, owner, "release"));
    CHECK(error_of<std::invalid_argument>([&] { static_cast<void>(table.fork(next_owner_, 1)); }) ==
          slow_.device.refusal(block, next_owner_, "share"));
    ++occurred_.double_frees;
  }

  void ask_for_the_impossible() {
    const SequenceId owner = any_owner();
    const SlowPool& pool = slow_.pool_of(slow(owner));
    const std::string who = "sequence " + std::to_string(owner);
    const std::int32_t too_many = pool.size + random_.between(1, 3);
    CHECK(error_of<std::invalid_argument>([&] { static_cast<void>(real(owner).grow_to(too_many)); }) ==
          who + " cannot hold " + std::to_string(too_many) + " blocks: the " + pool.name + " pool has " +
              std::to_string(pool.size));
    const std::int32_t outside = random_.once_in(2) ? -1 : slow(owner).size() + 1;
    CHECK(error_of<std::invalid_argument>([&] { static_cast<void>(real(owner).fork(next_owner_, outside)); }) ==
          "num_blocks must be in [0, " + std::to_string(slow(owner).size()) + "], the blocks of " + who + ", got " +
              std::to_string(outside));
    BlockTable* const tables[] = {&real(owner)};
    CHECK_THROWS_AS(static_cast<void>(slow(owner).on_host ? real_.swap_out(tables) : real_.swap_in(tables)),
                    InvariantError);
    if (!slow(owner).on_host) {
      const std::int64_t capacity = std::int64_t{num_blocks_} * block_size_;
      CHECK_FALSE(real_.reserve(real(owner), capacity, 1));
    }
    occurred_.errors += 3;
  }

  void compare_pool(const BlockPool& pool, const SlowPool& plain) {
    REQUIRE(pool.free_blocks() == plain.free);
    REQUIRE(pool.num_free() == plain.num_free());
    REQUIRE(pool.num_blocks() == plain.size);
    for (BlockId block = 0; block < plain.size; ++block) {
      const auto holders = plain.holders.find(block);
      REQUIRE(pool.ref_count(block) == (holders == plain.holders.end() ? 0 : std::ssize(holders->second)));
    }
  }

  void compare_table(const BlockTable& table, const SlowTable& plain) {
    REQUIRE(&table.pool() == (plain.on_host ? &real_.host_pool() : &real_.device_pool()));
    REQUIRE(table.size() == plain.size());
    for (const auto& [index, block] : plain.blocks) {
      REQUIRE(table.blocks()[index] == block);
      REQUIRE(table.is_shared(index) == slow_.pool_of(plain).shared(block));
    }
  }

  struct Before {
    std::uint64_t version;
    const BlockPool* pool;
    std::vector<BlockId> blocks;
  };

  void remember() {
    before_.clear();
    for (const auto& [owner, table] : tables_) {
      before_[owner] = {table.version(), &table.pool(), {table.blocks().begin(), table.blocks().end()}};
    }
  }

  // A new version exactly when an entry that was there is not there any more.
  void compare_version(const BlockTable& table) {
    const auto found = before_.find(table.owner());
    if (found == before_.end()) {
      return;
    }
    const Before& before = found->second;
    const bool all_there = std::ssize(before.blocks) <= table.size() &&
                           std::equal(before.blocks.begin(), before.blocks.end(), table.blocks().begin());
    if (before.pool == &table.pool() && all_there) {
      REQUIRE(table.version() == before.version);
    } else if (!before.blocks.empty()) {
      REQUIRE(table.version() > before.version);
    }
  }

  Random& random_;
  Occurred& occurred_;
  std::int32_t num_blocks_, block_size_, num_host_blocks_;
  KVCacheManager real_;
  SlowKVCache slow_;
  std::map<SequenceId, BlockTable> tables_;
  std::map<SequenceId, Before> before_;
  SequenceId next_owner_ = 1;
};

}  // namespace

TEST_CASE("a hundred thousand random operations leave what the slow model has, and refuse what it refuses") {
  Occurred occurred{};
  int num_operations = 0;
  const int enough = 100'000 * proof_scale();
  for (std::uint32_t seed = 0; num_operations < enough; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    World world(random, occurred);
    for (int i = 0; i < 400; ++i, ++num_operations) {
      CAPTURE(i);
      world.do_something();
      world.compare();
    }
    world.end();
  }
  std::printf(
      "kv_cache: %d operations against the slow model (%d reservations, %d refused, %d blocks copied on write, "
      "%d groups swapped out, %d in, %d double frees)\n",
      num_operations, occurred.reserved, occurred.refused, occurred.copied_on_write, occurred.swapped_out,
      occurred.swapped_in, occurred.double_frees);
  for (const int times :
       {occurred.reserved, occurred.refused, occurred.copied_on_write, occurred.swapped_out, occurred.swapped_in,
        occurred.no_room_to_swap, occurred.shared_swaps, occurred.double_frees, occurred.errors}) {
    CHECK(times > 500);
  }
}

}  // namespace fastpaged::test
