#include "fastpaged/scheduler/prefix_pins.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "fastpaged/base/check.h"

namespace fastpaged {

void PrefixPins::require_fits(PinId id, std::span<const TokenId> token_ids) const {
  require(id < kFirstPinOwner, [&] { return "pin_id must be below 2^63, got " + std::to_string(id); });
  const bool in_use = std::ranges::any_of(pins_, [&](const Pin& pin) { return pin.id == id; });
  require(!in_use, [&] { return "pin_id " + std::to_string(id) + " is in use"; });
  const std::int64_t need = std::ssize(token_ids) / block_size_;
  require(need > 0, [&] {
    return "token_ids must fill at least one block of " + std::to_string(block_size_) + " to be pinned, got " +
           std::to_string(token_ids.size());
  });
  std::int64_t have = max_blocks_;
  for (const Pin& pin : pins_) {
    have -= pin.num_blocks;
  }
  require(need <= have, [&] {
    return "token_ids fill " + std::to_string(need) + " blocks, and " + std::to_string(have) + " of the " +
           std::to_string(max_blocks_) + " that may be pinned are left";
  });
}

void PrefixPins::add(PinId id, std::vector<TokenId> token_ids, std::string root, BlockTable table) {
  const auto num_blocks = static_cast<std::int32_t>(std::ssize(token_ids) / block_size_);
  const auto place = std::ranges::lower_bound(pins_, id, {}, &Pin::id);
  pins_.insert(place, Pin{.id = id,
                          .token_ids = std::move(token_ids),
                          .root = std::move(root),
                          .table = std::move(table),
                          .last_use = ++num_uses_,
                          .num_blocks = num_blocks});
  lacking_ = find_lacking();
}

bool PrefixPins::erase(PinId id) {
  const bool erased = std::erase_if(pins_, [&](const Pin& pin) { return pin.id == id; }) > 0;
  lacking_ = find_lacking();
  return erased;
}

void PrefixPins::offer(const BlockTable& table, std::int32_t num_cached, std::span<const TokenId> token_ids,
                       std::string_view root) {
  bool taken = false;
  for (const Lacking& lacking : lacking_) {
    const std::size_t end = (static_cast<std::size_t>(lacking.num_held) + 1) * static_cast<std::size_t>(block_size_);
    if (lacking.num_held < num_cached && token_ids[end - 1] == lacking.last_token && pins_[lacking.pin].root == root) {
      taken = take(pins_[lacking.pin], table, num_cached, token_ids) || taken;
    }
  }
  if (taken) {
    lacking_ = find_lacking();
  }
}

bool PrefixPins::take(Pin& pin, const BlockTable& table, std::int32_t num_cached, std::span<const TokenId> token_ids) {
  const std::int32_t held = pin.table.size();
  // Whoever holds a cached block holds those before it: one in common, and all before it are.
  if (held > 0 && table.blocks()[held - 1] != pin.table.blocks().back()) {
    return false;
  }
  const std::int32_t most = std::min(num_cached, pin.num_blocks);
  std::int32_t common = held;
  while (common < most &&
         std::ranges::equal(token_ids.subspan(std::size_t{1} * common * block_size_, block_size_),
                            std::span(pin.token_ids).subspan(std::size_t{1} * common * block_size_, block_size_))) {
    ++common;
  }
  if (common == held) {
    return false;
  }
  pin.table = table.fork(pin.table.owner(), common);
  pin.last_use = ++num_uses_;
  return true;
}

void PrefixPins::touch(std::span<const BlockId> blocks) {
  for (Pin& pin : pins_) {
    const std::int32_t held = pin.table.size();
    if (held > 0 && std::cmp_greater_equal(blocks.size(), held) && blocks[held - 1] == pin.table.blocks().back()) {
      pin.last_use = ++num_uses_;
    }
  }
}

bool PrefixPins::release_oldest() {
  Pin* oldest = nullptr;
  for (Pin& pin : pins_) {
    if (pin.table.size() > 0 && (oldest == nullptr || pin.last_use < oldest->last_use)) {
      oldest = &pin;
    }
  }
  if (oldest == nullptr) {
    return false;
  }
  oldest->table.clear();
  ++num_releases_;
  lacking_ = find_lacking();
  return true;
}

void PrefixPins::release_all() {
  for (Pin& pin : pins_) {
    pin.table.clear();
  }
  lacking_ = find_lacking();
}

void PrefixPins::give_up_uncached() {
  for (Pin& pin : pins_) {
    const auto is_cached = [&](BlockId block) { return pin.table.pool().is_cached(block); };
    const auto first = std::ranges::find_if_not(pin.table.blocks(), is_cached);
    pin.table.truncate(static_cast<std::int32_t>(first - pin.table.blocks().begin()));
  }
  lacking_ = find_lacking();
}

void PrefixPins::release_if(const std::function<bool(BlockId)>& has_one) {
  for (Pin& pin : pins_) {
    if (std::ranges::any_of(pin.table.blocks(), has_one)) {
      pin.table.clear();
    }
  }
  lacking_ = find_lacking();
}

std::vector<PinnedPrefix> PrefixPins::list() const {
  std::vector<PinnedPrefix> list;
  list.reserve(pins_.size());
  for (const Pin& pin : pins_) {
    list.push_back({pin.id, static_cast<std::int32_t>(pin.token_ids.size()), pin.num_blocks, pin.table.size()});
  }
  return list;
}

std::vector<const BlockTable*> PrefixPins::tables() const {
  std::vector<const BlockTable*> tables;
  tables.reserve(pins_.size());
  for (const Pin& pin : pins_) {
    tables.push_back(&pin.table);
  }
  return tables;
}

std::int64_t PrefixPins::num_held_blocks() const {
  std::int64_t num_blocks = 0;
  for (const Pin& pin : pins_) {
    num_blocks += pin.table.size();
  }
  return num_blocks;
}

std::vector<PrefixPins::Lacking> PrefixPins::find_lacking() const {
  std::vector<Lacking> lacking;
  for (std::size_t i = 0; i < pins_.size(); ++i) {
    if (pins_[i].lacks_blocks()) {
      const std::int32_t held = pins_[i].table.size();
      const std::size_t end = (static_cast<std::size_t>(held) + 1) * static_cast<std::size_t>(block_size_);
      lacking.push_back({i, held, pins_[i].token_ids[end - 1]});
    }
  }
  return lacking;
}

void PrefixPins::check_invariants() const {
  std::int64_t num_blocks = 0;
  for (const Pin& pin : pins_) {
    num_blocks += pin.num_blocks;
    invariant(pin.num_blocks > 0 && pin.table.size() <= pin.num_blocks, "PrefixPins: holds more than its prefix");
    invariant(std::ranges::all_of(pin.table.blocks(), [&](BlockId block) { return pin.table.pool().is_cached(block); }),
              "PrefixPins: pins a block that nobody can find");
  }
  invariant(num_blocks <= max_blocks_, "PrefixPins: over the budget");
  invariant(lacking_ == find_lacking(), "PrefixPins: lost count of the pins that lack blocks");
  invariant(std::ranges::adjacent_find(pins_, std::ranges::greater_equal{}, &Pin::id) == pins_.end(),
            "PrefixPins: not in order of id");
}

}  // namespace fastpaged
