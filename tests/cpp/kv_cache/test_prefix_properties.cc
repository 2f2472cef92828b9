// Random requests with and without common beginnings, over pools of a few blocks and with hashes of 64, one and no
// bits. After each operation everything there is to see is held against SlowPrefixCache, and what a sequence, or
// whoever looks something up, would read against what was computed.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>

#include "kv_cache/prefix_world.h"
#include "proof_scale.h"
#include "random.h"

namespace fastpaged::test {
TEST_CASE("a hundred thousand lookups find what the slow model finds, and nothing that was not computed") {
  PrefixesOccurred occurred{};
  const int enough = 100'000 * proof_scale();
  for (std::uint32_t seed = 0; occurred.lookups < enough; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    PrefixWorld world(random, occurred);
    for (int i = 0; i < 400; ++i) {
      CAPTURE(i);
      world.do_something();
      world.compare();
      for (int j = 0; j < 2; ++j) {
        world.look_something_up();
      }
    }
    world.end();
  }
  std::printf(
      "prefix cache: %d lookups against the slow model (%d found whole blocks, %d the beginning of one), %d free "
      "blocks "
      "taken again, %d evicted, %d duplicates given up, %d forgotten because somebody wrote into them\n",
      occurred.lookups, occurred.whole, occurred.partial, occurred.revived, occurred.evicted, occurred.duplicates,
      occurred.forgotten_by_writing);
  std::printf(
      "prefix cache on the host: %d lookups found whole blocks there, %d the beginning of one; %d blocks demoted, %d "
      "promoted, %d evicted; without a copy: %d demoted, %d taken over by who published them, %d swapped; %d forgotten "
      "with lost copies\n",
      occurred.on_host, occurred.partial_on_host, occurred.demoted, occurred.promoted, occurred.host_evicted,
      occurred.taken_as_copies, occurred.taken_over, occurred.not_copied, occurred.lost);
  for (const int times : {occurred.whole,
                          occurred.partial,
                          occurred.revived,
                          occurred.no_room_for_a_copy,
                          occurred.crowded,
                          occurred.published,
                          occurred.duplicates,
                          occurred.evicted,
                          occurred.forgotten_by_writing,
                          occurred.forgotten_with_it,
                          occurred.forks,
                          occurred.swaps,
                          occurred.recomputed,
                          occurred.resets,
                          occurred.on_host,
                          occurred.partial_on_host,
                          occurred.demoted,
                          occurred.promoted,
                          occurred.taken_as_copies,
                          occurred.taken_over,
                          occurred.not_copied,
                          occurred.host_evicted,
                          occurred.lost,
                          occurred.forgotten_as_doubtful}) {
    CHECK(times > 50);
  }
}

}  // namespace fastpaged::test
