// Quarantine: what was found wrong after a broken invariant, and who had to go for it.
//
// Scheduler::quarantine() comes after an invariant has broken: out of schedule(), of update(), of the building of the
// plan's batch, or of a look. It finds what is wrong, fails those that it concerns, and them alone, takes the blocks
// concerned out of circulation for good, forgets what was cached of them, has pins let go of them, and drops the plan.
// Then all invariants hold, and the others go on. If nothing is found, it changes nothing. It throws for nothing that
// may be wrong with counts, free lists, tables, pins, queues or the cache.
//
// Three looks, between any two calls:
//   references_add_up()  whether block tables have as many entries, all told, as the pools count references:
//   O(sequences
//                        that hold blocks): cheap enough for each step. Who gives back too much or too little is
//                        found before anything more is handed out.
//   check_references()   each block's count against the tables and pins that list it, the free lists, the queues:
//                        O(blocks + entries), no hashing. The engine looks once a second, between steps. Throws
//                        InvariantError. Finds also what adds up by chance: one block counted too low, another too
//                        high.
//   check_invariants()   everything, the tokens of what is cached too: for tests.
//
// Whoever lists a block that does not count as it must fails, the innocent as well: of two tables and one reference
// nobody knows whose the contents are. So a block given back too early and handed out again fails both, if one of these
// looks comes while both still list it. What no look can find: a block given back too early, handed out, and listed no
// more by one of them before the next look (its count is right again then, or, if the other one goes on, too low: that
// is found). Whoever ends and finds its own block free has had its tokens; it is not failed, but it is found, at once.
// That contents are wrong though counts are right is nothing that a scheduler sees.
#pragma once

#include <string>
#include <vector>

#include "fastpaged/base/types.h"
#include "fastpaged/scheduler/scheduler_output.h"

namespace fastpaged {

struct Quarantine {
  std::vector<std::string> found;  // a line for each thing that was wrong; empty: nothing was, and nothing has changed
  std::vector<GroupId> failed;     // requests that have gone for it, whole, with no event
  std::vector<SequenceEvent> events;  // of the others, from an update() that threw
};

}  // namespace fastpaged
