#include "fastpaged/kv_cache/copy_list.h"

#include <doctest/doctest.h>

#include <vector>

using fastpaged::BlockCopy;
using fastpaged::CopyKind;
using fastpaged::CopyList;

namespace {

std::vector<BlockCopy> listed(std::vector<BlockCopy> single) {
  CopyList list;
  for (const BlockCopy& copy : single) {
    list.add(copy.kind, copy.source, copy.destination);
  }
  CHECK(list.num_blocks() == std::ssize(single));
  const std::vector<BlockCopy> copies = list.take();
  CHECK(list.copies().empty());
  CHECK(list.num_blocks() == 0);
  return copies;
}

}  // namespace

TEST_CASE("neighbours in both memories become one copy") {
  CHECK(listed({{CopyKind::kSwapOut, 3, 0, 1}, {CopyKind::kSwapOut, 4, 1, 1}, {CopyKind::kSwapOut, 5, 2, 1}}) ==
        std::vector<BlockCopy>{{CopyKind::kSwapOut, 3, 0, 3}});
}

TEST_CASE("what is not the next of both stays a copy of its own") {
  const std::vector<BlockCopy> apart = {
      {CopyKind::kSwapOut, 3, 0, 1},      // the source is the next, the destination is not
      {CopyKind::kSwapOut, 4, 2, 1},      // and the other way round
      {CopyKind::kSwapOut, 6, 3, 1},      // backwards
      {CopyKind::kSwapOut, 5, 2, 1},      // both go on, but the other way
      {CopyKind::kSwapIn, 6, 3, 1},       //
      {CopyKind::kCopyOnWrite, 7, 4, 1},  //
  };
  CHECK(listed(apart) == apart);
}

TEST_CASE("only the last copy is continued, for the order counts") {
  const std::vector<BlockCopy> in_order = {
      {CopyKind::kSwapOut, 0, 0, 1}, {CopyKind::kSwapIn, 5, 0, 1}, {CopyKind::kSwapOut, 1, 1, 1}};
  CHECK(listed(in_order) == in_order);
}

TEST_CASE("copies within one memory are merged only as long as source and destination do not overlap") {
  const auto on_write = [](int source, int destination, int n) {
    return BlockCopy{CopyKind::kCopyOnWrite, source, destination, n};
  };
  CHECK(listed({on_write(0, 1, 1), on_write(1, 2, 1)}) == std::vector{on_write(0, 1, 1), on_write(1, 2, 1)});
  CHECK(listed({on_write(1, 0, 1), on_write(2, 1, 1)}) == std::vector{on_write(1, 0, 1), on_write(2, 1, 1)});
  CHECK(listed({on_write(0, 2, 1), on_write(1, 3, 1), on_write(2, 4, 1), on_write(3, 5, 1)}) ==
        std::vector{on_write(0, 2, 2), on_write(2, 4, 2)});
  // Between two memories the same numbers are different places.
  CHECK(listed({{CopyKind::kSwapIn, 0, 1, 1}, {CopyKind::kSwapIn, 1, 2, 1}}) ==
        std::vector<BlockCopy>{{CopyKind::kSwapIn, 0, 1, 2}});
}
