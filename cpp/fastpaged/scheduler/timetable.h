// Timetable: which groups something is due for, and when, the earliest first: a point of a clock, or a step. It knows
// groups by their ids; whoever fills it takes them out before they go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "fastpaged/base/types.h"

namespace fastpaged {

class Timetable {
 public:
  struct Entry {
    std::int64_t when = 0;
    std::int64_t arrival = 0;  // of what is due at once, who came first is first
    GroupId id = 0;

    auto operator<=>(const Entry&) const = default;
  };

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  [[nodiscard]] const Entry& first() const { return *entries_.begin(); }  // REQUIRES: not empty
  [[nodiscard]] bool is_due(std::int64_t now) const { return !empty() && first().when <= now; }
  [[nodiscard]] bool contains(const Entry& entry) const { return entries_.contains(entry); }

  void insert(const Entry& entry) { entries_.insert(entry); }
  bool erase(const Entry& entry) { return entries_.erase(entry) > 0; }  // false if it is not there

 private:
  std::set<Entry> entries_;
};

}  // namespace fastpaged
