// PrefixPins: prefixes whose cached blocks stay, used or not, so that whoever begins with them finds them. A pin holds
// the blocks through a table of its own, like a sequence; it may lack some or all of them, and takes them when
// somebody has computed them.
//
// Pins have a budget, and count as used as a request's blocks do: beside them a running request may be preempted, or
// one in line wait, that would have had room without them. They give way, by release_oldest(), as soon as a request
// that runs alone lacks room, or the first in line while nothing runs: so none that fits the pool is kept from running.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/kv_cache/kv_cache_manager.h"

namespace fastpaged {

using PinId = std::uint64_t;  // below kFirstPinOwner

struct PinnedPrefix {
  PinId id = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_blocks = 0;       // that its tokens fill: what it counts for in the budget, held or not
  std::int32_t num_held_blocks = 0;  // the first so many of them
  bool operator==(const PinnedPrefix&) const = default;
};

class PrefixPins {
 public:
  // max_blocks: of all pins together.
  PrefixPins(std::int32_t block_size, std::int32_t max_blocks) : block_size_(block_size), max_blocks_(max_blocks) {}

  // Throws std::invalid_argument, and changes nothing: an id that is in use or no pin's, tokens that fill no block, or
  // more blocks than are left of the budget (naming need and have).
  void require_fits(PinId id, std::span<const TokenId> token_ids) const;
  // table: of owner_of(id), with the first blocks of the prefix, as many as there are. REQUIRES: require_fits().
  void add(PinId id, std::vector<TokenId> token_ids, std::string root, BlockTable table);
  bool erase(PinId id);  // false if it is not here
  [[nodiscard]] static SequenceId owner_of(PinId id) { return kFirstPinOwner + id; }

  // The first num_cached blocks of `table` are cached, under this root, and hold the first of these tokens: pins that
  // lack some of them take them. Costs nothing while no pin lacks any, and little for those that lack other blocks.
  void offer(const BlockTable& table, std::int32_t num_cached, std::span<const TokenId> token_ids,
             std::string_view root);
  // These cached blocks are about to be used: so are the pins all of whose blocks are among them.
  void touch(std::span<const BlockId> blocks);
  // Of the pins that hold blocks the one unused for longest gives them back; false if none holds any. It stays listed.
  bool release_oldest();
  void release_all();
  // Blocks that are not cached any more, and those after them.
  void give_up_uncached();
  // All blocks of each pin of whose blocks this is true of one.
  void release_if(const std::function<bool(BlockId)>& has_one);

  [[nodiscard]] std::vector<PinnedPrefix> list() const;                      // in order of id
  [[nodiscard]] std::int64_t num_releases() const { return num_releases_; }  // for want of room, ever
  [[nodiscard]] std::vector<const BlockTable*> tables() const;
  [[nodiscard]] std::int64_t num_held_blocks() const;  // of all pins, shared ones more than once
  void check_invariants() const;

 private:
  struct Pin {
    PinId id;
    std::vector<TokenId> token_ids;
    std::string root;
    BlockTable table;
    std::int64_t last_use;
    std::int32_t num_blocks;

    [[nodiscard]] bool lacks_blocks() const { return table.size() < num_blocks; }
  };
  // Of a pin that lacks blocks: enough to see, mostly, that what is offered is none of them.
  struct Lacking {
    std::size_t pin;        // index
    std::int32_t num_held;  // so this is the index of the first block it lacks
    TokenId last_token;     // of that block
    bool operator==(const Lacking&) const = default;
  };
  // Whether it took any.
  bool take(Pin& pin, const BlockTable& table, std::int32_t num_cached, std::span<const TokenId> token_ids);
  [[nodiscard]] std::vector<Lacking> find_lacking() const;

  std::int32_t block_size_;
  std::int32_t max_blocks_;
  std::vector<Pin> pins_;  // in order of id
  std::vector<Lacking> lacking_;
  std::int64_t num_uses_ = 0;
  std::int64_t num_releases_ = 0;
};

}  // namespace fastpaged
