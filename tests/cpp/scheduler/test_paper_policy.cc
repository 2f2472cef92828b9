// SchedulerPolicy::paper_2023() against the paper, section 4.5: each rule as a trace worked out by hand.
//
// A step is written as text: "1[0,7) 2x2[4,5) preempted 3 out 3 in 4" computes tokens 0-6 of group 1 and token 4 of
// each of group 2's two branches, preempts group 3 by swapping it out, and swaps group 4 in. Blocks hold 4 tokens. Each
// step gives every sequence that samples one more token, which it computes in its next step.
#include <doctest/doctest.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged::test {

namespace {

using Blocks = std::vector<BlockId>;

std::string text_of(const SchedulerOutput& plan) {
  std::string text;
  for (auto at = plan.scheduled.begin(); at != plan.scheduled.end();) {
    std::int64_t branches = 0;
    const ScheduledSequence& first = *at;
    for (; at != plan.scheduled.end() && at->group_id == first.group_id && at->first_token == first.first_token; ++at) {
      REQUIRE(at->num_tokens == first.num_tokens);
      ++branches;
    }
    text += text.empty() ? "" : " ";
    text += std::to_string(first.group_id);
    if (branches > 1) {
      text.append("x").append(std::to_string(branches));
    }
    text.append("[").append(std::to_string(first.first_token)).append(",");
    text.append(std::to_string(first.first_token + first.num_tokens)).append(")");
  }
  const auto name = [&](const char* what, const std::vector<GroupId>& groups) {
    for (const GroupId group : groups) {
      text.append(text.empty() ? "" : " ").append(what).append(" ").append(std::to_string(group));
    }
  };
  name("preempted", plan.preempted);
  name("out", plan.swapped_out);
  name("in", plan.swapped_in);
  return text;
}

class Paper {
 public:
  explicit Paper(std::int32_t num_blocks, SchedulerPolicy policy = SchedulerPolicy::paper_2023())
      : scheduler_({.num_blocks = num_blocks,
                    .block_size = 4,
                    .num_host_blocks = 50,
                    .max_num_batched_tokens = 2560,
                    .max_model_len = 2048,
                    .policy = policy}) {}

  void add(GroupId id, std::int32_t num_prompt_tokens, std::int32_t max_tokens = 1000) {
    scheduler_.add({.id = id,
                    .prompt_token_ids = std::vector<TokenId>(num_prompt_tokens, 7),
                    .sampling = {},
                    .stop = {max_tokens, {}}});
  }

  void fork(GroupId id, std::int32_t num_times) {
    for (std::int32_t i = 0; i < num_times; ++i) {
      scheduler_.fork(id, scheduler_.group(id).sequences.front()->id());
    }
  }

  std::string step() {
    plan_ = scheduler_.schedule();
    scheduler_.check_invariants();
    events_ = scheduler_.update(plan_, std::vector<SampledToken>(plan_.num_samples, {kEndToken, true}));
    scheduler_.check_invariants();
    return text_of(plan_);
  }

  [[nodiscard]] Blocks blocks_of(GroupId id, std::int32_t branch = 0) const {
    const auto blocks = scheduler_.group(id).sequences[branch]->table().blocks();
    return {blocks.begin(), blocks.end()};
  }
  [[nodiscard]] std::int32_t num_free() const { return scheduler_.kv_cache().num_free_blocks(); }
  [[nodiscard]] Scheduler& scheduler() { return scheduler_; }
  [[nodiscard]] const SchedulerOutput& plan() const { return plan_; }
  [[nodiscard]] const std::vector<SequenceEvent>& events() const { return events_; }

 private:
  static constexpr TokenId kEndToken = 2;

  Scheduler scheduler_;
  SchedulerOutput plan_;
  std::vector<SequenceEvent> events_;
};

}  // namespace

TEST_CASE("rule: first come, first served, whole prompts and decodes together in one iteration") {
  Paper paper(100);
  paper.add(1, 9);
  CHECK(paper.step() == "1[0,9)");
  paper.add(2, 300);
  paper.add(3, 5);
  CHECK(paper.step() == "1[9,10) 2[0,300) 3[0,5)");
  CHECK(paper.step() == "1[10,11) 2[300,301) 3[5,6)");
}

TEST_CASE("rule: prompts and decodes of an iteration have at most 2560 tokens, and no prompt is cut to fit") {
  Paper paper(1000);
  paper.add(1, 10);
  paper.add(2, 10);
  CHECK(paper.step() == "1[0,10) 2[0,10)");
  paper.add(3, 2000);
  SUBCASE("2 + 2000 + 558 is 2560") {
    paper.add(4, 558);
    CHECK(paper.step() == "1[10,11) 2[10,11) 3[0,2000) 4[0,558)");
    CHECK(paper.plan().num_tokens == 2560);
  }
  SUBCASE("2 + 2000 + 559 is one too many; 4 waits, whole, and keeps 5 waiting") {
    paper.add(4, 559);
    paper.add(5, 1);
    CHECK(paper.step() == "1[10,11) 2[10,11) 3[0,2000)");
    CHECK(paper.step() == "1[11,12) 2[11,12) 3[2000,2001) 4[0,559) 5[0,1)");
  }
}

TEST_CASE("rule: a waiting group is admitted if the watermark, 1 % of the blocks, stays free") {
  // 200 blocks, watermark 2. Group 1 takes 100 of them.
  Paper paper(200);
  paper.add(1, 400);
  SUBCASE("98 more leave 2") {
    paper.add(2, 392);
    CHECK(paper.step() == "1[0,400) 2[0,392)");
    CHECK(paper.num_free() == 2);
  }
  SUBCASE("99 more would leave 1") {
    paper.add(2, 393);
    CHECK(paper.step() == "1[0,400)");
  }
}

TEST_CASE("rule: head-of-line blocking: nobody overtakes a waiting group that does not fit") {
  // 10 blocks, watermark 0. 1 has 4 of them; 2 would need 7, with 6 free; 3 would need 1.
  Paper paper(10);
  paper.add(1, 14, 4);
  paper.add(2, 28);
  paper.add(3, 4);
  CHECK(paper.step() == "1[0,14)");
  CHECK(paper.step() == "1[14,15)");
  CHECK(paper.step() == "1[15,16)");
  CHECK(paper.step() == "1[16,17)");  // its fourth token: it ends
  CHECK(paper.step() == "2[0,28) 3[0,4)");
}

TEST_CASE("rule: in order of arrival each running group asks a free block per sequence, or the latest arrived goes") {
  // 6 blocks, watermark 0: three prompts of 7 tokens fill them.
  Paper paper(6);
  paper.add(1, 7);
  paper.add(2, 7);
  paper.add(3, 7);
  CHECK(paper.step() == "1[0,7) 2[0,7) 3[0,7)");
  // Token 7 has its slot already, but 0 blocks are free for 1: 3 goes, and its 2 blocks are enough for 1 and 2.
  CHECK(paper.step() == "1[7,8) 2[7,8) preempted 3");
  // Token 8 takes one block each: 2 free, 1 free.
  CHECK(paper.step() == "1[8,9) 2[8,9)");
  CHECK(paper.num_free() == 0);
  // 0 free for 1: of 1 and 2, now 2 came last.
  CHECK(paper.step() == "1[9,10) preempted 2");
}

TEST_CASE("rule: as many groups go as must, latest arrived first, and maybe the one that asks") {
  SUBCASE("two have to go for one of four branches") {
    // 7 blocks. 1 has 2, shared by four branches; 2 and 3 have 2 each; 1 is free. Four are asked for: 3 goes (3 free),
    // then 2 (5 free). Token 5 of 1 copies the shared last block for three of the branches.
    Paper paper(7);
    paper.add(1, 5);
    paper.add(2, 7);
    paper.add(3, 7);
    CHECK(paper.step() == "1[0,5) 2[0,7) 3[0,7)");
    paper.fork(1, 3);
    CHECK(paper.step() == "1x4[5,6) preempted 3 preempted 2");
    CHECK(paper.num_free() == 2);
  }
  SUBCASE("the latest is the one that asks") {
    // 6 blocks: 2 and 3 of them taken. 1 takes the last one for token 8; 2 finds none, and is itself the latest.
    Paper paper(6);
    paper.add(1, 8);
    paper.add(2, 11);
    CHECK(paper.step() == "1[0,8) 2[0,11)");
    CHECK(paper.step() == "1[8,9) preempted 2");
  }
}

TEST_CASE("rule: a group of one sequence is recomputed, one of several is swapped") {
  // 7 blocks; 1 and 2 have 3 each, 1 is free. Both of 1's branches ask, so 2 goes.
  Paper paper(7);
  paper.add(1, 11);
  paper.add(2, 11);
  CHECK(paper.step() == "1[0,11) 2[0,11)");
  paper.fork(1, 1);
  SUBCASE("of one") {
    CHECK(paper.step() == "1x2[11,12) preempted 2");
    CHECK(paper.scheduler().group(2).state == GroupState::kWaiting);
    // 1's first branch had its shared last block copied.
    CHECK(paper.plan().copies == std::vector<BlockCopy>{{CopyKind::kCopyOnWrite, 2, 3, 1}});
  }
  SUBCASE("of several: a shared block is copied to the host once") {
    paper.fork(2, 1);
    CHECK(paper.step() == "1x2[11,12) preempted 2 out 2");
    CHECK(paper.scheduler().group(2).state == GroupState::kSwapped);
    CHECK(paper.plan().copies ==
          std::vector<BlockCopy>{{CopyKind::kSwapOut, 3, 0, 3}, {CopyKind::kCopyOnWrite, 2, 3, 1}});
  }
}

TEST_CASE("rule: or all groups are swapped, where that is chosen") {
  SchedulerPolicy policy = SchedulerPolicy::paper_2023();
  policy.preemption_mode = PreemptionMode::kSwap;
  Paper paper(4, policy);
  paper.add(1, 6);
  paper.add(2, 6);
  CHECK(paper.step() == "1[0,6) 2[0,6)");
  CHECK(paper.step() == "1[6,7) preempted 2 out 2");
}

TEST_CASE("rule: all or nothing: a group's branches leave together, come back together and decode together") {
  // 10 blocks. Step 2: 1 takes a fourth block for token 12; 2 has one shared block, and each branch takes one for token
  // 4: 2 are free. Step 3: three branches ask for 3, so all of 2 goes, with its 4 blocks: 6 are free. To come back, it
  // asks for 4 + 3: not before 1, which takes one more in step 6, has ended.
  Paper paper(10);
  paper.add(1, 12, 6);
  paper.add(2, 4);
  CHECK(paper.step() == "1[0,12) 2[0,4)");
  paper.fork(2, 2);
  CHECK(paper.step() == "1[12,13) 2x3[4,5)");
  CHECK(paper.num_free() == 2);
  CHECK(paper.step() == "1[13,14) preempted 2 out 2");
  for (std::int32_t branch = 0; branch < 3; ++branch) {
    CHECK(&paper.scheduler().group(2).sequences[branch]->table().pool() == &paper.scheduler().kv_cache().host_pool());
  }
  CHECK(paper.step() == "1[14,15)");
  CHECK(paper.step() == "1[15,16)");
  CHECK(paper.step() == "1[16,17)");
  CHECK(paper.step() == "2x3[5,6) in 2");
}

TEST_CASE("rule: recompute puts prompt and output back in line, in order of arrival, and prefills all of it at once") {
  // 5 blocks. 1 and 2 have 2 each; 3 would need 2, with 1 free.
  Paper paper(5);
  paper.add(1, 7, 4);
  paper.add(2, 7);
  paper.add(3, 7);
  CHECK(paper.step() == "1[0,7) 2[0,7)");
  CHECK(paper.step() == "1[7,8) 2[7,8)");
  // 1 takes the last block for token 8; 2 finds none and goes: before 3, which came later.
  CHECK(paper.step() == "1[8,9) preempted 2");
  CHECK(paper.num_free() == 2);
  // 2 knows 9 tokens, 3 blocks, and 2 are free: 3, which would fit, waits behind it.
  CHECK(paper.step() == "1[9,10)");  // ends
  // 7 tokens of prompt and 2 of output are one prompt now.
  CHECK(paper.step() == "2[0,9) 3[0,7)");
}

TEST_CASE("rule: a group preempted in this iteration is not admitted by it, though it would fit") {
  // 4 blocks, 2 each, none free; 1 asks for one it does not need, 2 goes and leaves 2: just what its 7 tokens need.
  Paper paper(4);
  paper.add(1, 6);
  paper.add(2, 6);
  CHECK(paper.step() == "1[0,6) 2[0,6)");
  CHECK(paper.step() == "1[6,7) preempted 2");
  CHECK(paper.num_free() == 2);
  CHECK(paper.step() == "1[7,8) 2[0,7)");
}

TEST_CASE("rule: nobody is swapped in by an iteration that swapped somebody out, though it would fit") {
  // 11 blocks. Step 2: 1's four branches share 2 blocks and copy the last one three times: 5. 2's two branches share 1
  // and take one each: 3. Free: 3. Step 3: 1 asks for 4 and needs none; 2 goes. 6 are free, and 3 + 2 are what 2 asks
  // for to come back.
  Paper paper(11);
  paper.add(1, 5);
  paper.add(2, 4);
  CHECK(paper.step() == "1[0,5) 2[0,4)");
  paper.fork(1, 3);
  paper.fork(2, 1);
  CHECK(paper.step() == "1x4[5,6) 2x2[4,5)");
  CHECK(paper.num_free() == 3);
  CHECK(paper.step() == "1x4[6,7) preempted 2 out 2");
  CHECK(paper.num_free() == 6);
  CHECK(paper.step() == "1x4[7,8) 2x2[5,6) in 2");
}

TEST_CASE("rule: a swapped group comes back if its blocks, one more per sequence, and the watermark are free") {
  // 200 blocks, watermark 2. In step 3, 2 has two branches and 3 blocks, and is told to go; 1 has 193 blocks or 194.
  const auto third_step = [](std::int32_t num_prompt_tokens) {
    Paper paper(200);
    paper.add(1, num_prompt_tokens);
    paper.add(2, 4);
    paper.step();
    paper.fork(2, 1);
    paper.step();
    CHECK(paper.scheduler().preempt(2, PreemptionMode::kSwap));
    return paper.step();
  };
  // 772 tokens in 193 blocks: 7 - (3 + 2) is the watermark.
  CHECK(third_step(770) == "1[771,772) 2x2[5,6) preempted 2 out 2 in 2");
  // 773 tokens in 194: one short.
  CHECK(third_step(771) == "1[772,773) preempted 2 out 2");
}

TEST_CASE("rule: swapped groups come back in order of arrival, and nobody is admitted before all of them are back") {
  Paper paper(20);
  paper.add(1, 48, 5);
  paper.add(2, 4);
  paper.add(3, 4);
  CHECK(paper.step() == "1[0,48) 2[0,4) 3[0,4)");
  paper.fork(2, 1);
  paper.fork(3, 1);
  CHECK(paper.step() == "1[48,49) 2x2[4,5) 3x2[4,5)");
  // Of 20 blocks 1 has 13, 2 and 3 have 3 each, 1 is free: too few for 2's branches, so 3 goes (4 free); nobody else
  // has to.
  CHECK(paper.step() == "1[49,50) 2x2[5,6) preempted 3 out 3");
  // 4 is small: its block is free. But 3 needs 3 + 2, and waits; so does 4.
  paper.add(4, 1);
  CHECK(paper.num_free() == 4);
  CHECK(paper.step() == "1[50,51) 2x2[6,7)");
  // 2 is told to go as well: 7 are free. 2 came first and needs 3 + 2 of them. Then 3 would need 5, with 4 free.
  CHECK(paper.scheduler().preempt(2, PreemptionMode::kSwap));
  CHECK(paper.step() == "1[51,52) 2x2[7,8) preempted 2 out 2 in 2");  // 1 ends
  // 17 free, each of 2's branches takes one. 3 comes back, and now 4 is let in by the same iteration.
  CHECK(paper.step() == "2x2[8,9) 3x2[5,6) 4[0,1) in 3");
}

TEST_CASE("rule: the block given back last is handed out first") {
  Paper paper(12);
  paper.add(1, 5, 2);
  paper.add(2, 9);
  CHECK(paper.step() == "1[0,5) 2[0,9)");
  CHECK(paper.blocks_of(1) == Blocks{0, 1});
  CHECK(paper.blocks_of(2) == Blocks{2, 3, 4});
  CHECK(paper.step() == "1[5,6) 2[9,10)");  // 1 ends; it gives back 1, then 0
  CHECK(paper.scheduler().abort(2));        // and 2 gives back 4, 3, 2
  paper.add(3, 22);
  CHECK(paper.step() == "3[0,22)");
  CHECK(paper.blocks_of(3) == Blocks{2, 3, 4, 0, 1, 5});
}

TEST_CASE(
    "rule: branches share the prompt's blocks, a full last block is followed by a new one, a shared one is copied") {
  Paper paper(20);
  SUBCASE("full") {
    paper.add(1, 8);
    CHECK(paper.step() == "1[0,8)");
    paper.fork(1, 2);
    for (std::int32_t branch = 0; branch < 3; ++branch) {
      CHECK(paper.blocks_of(1, branch) == Blocks{0, 1});
    }
    CHECK(paper.scheduler().kv_cache().device_pool().ref_count(0) == 3);
    CHECK(paper.scheduler().kv_cache().device_pool().ref_count(1) == 3);
    CHECK(paper.step() == "1x3[8,9)");
    CHECK(paper.plan().copies.empty());
    CHECK(paper.blocks_of(1, 0) == Blocks{0, 1, 2});
    CHECK(paper.blocks_of(1, 1) == Blocks{0, 1, 3});
    CHECK(paper.blocks_of(1, 2) == Blocks{0, 1, 4});
  }
  SUBCASE("shared: copied for all but the last that writes") {
    paper.add(1, 7);
    CHECK(paper.step() == "1[0,7)");
    paper.fork(1, 2);
    CHECK(paper.step() == "1x3[7,8)");
    CHECK(paper.plan().copies ==
          std::vector<BlockCopy>{{CopyKind::kCopyOnWrite, 1, 2, 1}, {CopyKind::kCopyOnWrite, 1, 3, 1}});
    CHECK(paper.blocks_of(1, 0) == Blocks{0, 2});
    CHECK(paper.blocks_of(1, 1) == Blocks{0, 3});
    CHECK(paper.blocks_of(1, 2) == Blocks{0, 1});
    CHECK(paper.step() == "1x3[8,9)");  // alone in their blocks from now on
    CHECK(paper.plan().copies.empty());
  }
}

TEST_CASE("rule: a request ends at its exact length, whatever it says before") {
  // Each token of these traces is the usual end token; without stop tokens (ignore_eos) it means nothing.
  Paper paper(20);
  paper.add(1, 3, 3);
  CHECK(paper.step() == "1[0,3)");
  CHECK(paper.step() == "1[3,4)");
  CHECK_FALSE(paper.events().at(0).finished);
  CHECK(paper.step() == "1[4,5)");
  CHECK(paper.events().at(0).finish_reason == FinishReason::kLength);
  CHECK(paper.events().at(0).group_finished);
  CHECK_FALSE(paper.scheduler().has_unfinished());
}

TEST_CASE(
    "beyond the paper: a group that runs alone asks for no more than it needs, and is let in past the watermark") {
  // The paper would preempt group 1 for want of a block that it does not need, admit it again, and never end.
  Paper paper(2);
  paper.add(1, 7);
  CHECK(paper.step() == "1[0,7)");
  CHECK(paper.step() == "1[7,8)");
  CHECK(paper.step().empty());  // token 8 would need a third block: the end of the pool
  CHECK(paper.events().at(0).finish_reason == FinishReason::kLength);

  Paper full(100);  // watermark 1
  full.add(1, 400);
  CHECK(full.step() == "1[0,400)");
}

}  // namespace fastpaged::test
