"""The seeded faults: each is one small mistake that a person could make, as an exact replacement of text.

First the ten that were promised for the core; then further ways to go wrong at the same places, and what sharing of
prefixes, samples and beams adds; then kernels, the graph and the sampler. Those of pressure are in pressure_faults.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """In `file`, below cpp/fastpaged, `good` (there exactly once) becomes `bad`."""

    name: str
    file: str
    good: str
    bad: str


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="skipped incref: a fork's blocks are not counted",
        file="kv_cache/block_table.cc",
        good="    pool_->retain(block, owner);\n",
        bad="",
    ),
    Fault(
        name="missed copy-on-write: a branch writes into a shared block",
        file="kv_cache/kv_cache_manager.cc",
        good="""    if (table.is_shared(i)) {
      const BlockId copy""",
        bad="""    if (table.is_shared(i) && i + 1 < table.size()) {
      const BlockId copy""",
    ),
    Fault(
        name="wrong free order: the free list is a queue",
        file="kv_cache/block_pool.cc",
        good="    cached_[block] ? free_list_.push_back(block) : free_list_.push_front(block);\n",
        bad="    free_list_.push_back(block);\n",
    ),
    Fault(
        name="lost wake-up: once a group was swapped out, none comes back",
        file="scheduler/scheduler_preemption.cc",
        good="  swapped_for_room_ = false;\n",
        bad="",
    ),
    Fault(
        name="copy list out of order: last decided, first run",
        file="scheduler/scheduler_planning.cc",
        good="  output.copies = kv_cache_.take_copies();\n",
        bad="  output.copies = kv_cache_.take_copies();\n  std::reverse(output.copies.begin(), output.copies.end());\n",
    ),
    Fault(
        name="off by one in slots: each token goes one slot further",
        file="scheduler/batch_builder.cc",
        good="(blocks[index] - index) * block_size;",
        bad="(blocks[index] - index) * block_size + 1;",
    ),
    Fault(
        name="table not truncated: a group leaves with blocks it never wrote",
        file="scheduler/scheduler_preemption.cc",
        good="    sequence->table().truncate(kv_cache_.blocks_for(sequence->num_computed_tokens()));\n",
        bad="",
    ),
    Fault(
        name="double free swallowed: releasing a free block does nothing",
        file="kv_cache/block_pool.cc",
        good='  require_held(block, "release", owner);\n',
        bad="  if (ref_count(block) == 0) {\n    return;\n  }\n",
    ),
    Fault(
        name="watermark ignored: a group is let in down to the last block",
        file="scheduler/scheduler_planning.cc",
        good="kv_cache_.num_free_blocks() - num_watermark_blocks_ - blocks_beside(group, running);",
        bad="kv_cache_.num_free_blocks() - blocks_beside(group, running);",
    ),
    Fault(
        name="abort leaves a table: its blocks never come back",
        file="scheduler/scheduler.cc",
        good="""    return false;
  }
  remove(found->second);
""",
        bad="""    return false;
  }
  static_cast<void>(new BlockTable(std::move(found->second.sequences.front()->table())));
  remove(found->second);
""",
    ),
    Fault(
        name="copy-on-write without the copy: the branch's new block holds anything",
        file="kv_cache/kv_cache_manager.cc",
        good="      copies_.add(CopyKind::kCopyOnWrite, table.blocks()[i], copy);\n",
        bad="",
    ),
    Fault(
        name="unshared swap: a block that two branches share is counted once on the other tier",
        file="kv_cache/kv_cache_manager_tiers.cc",
        good="        to.retain(known->second, table->owner());\n",
        bad="",
    ),
    Fault(
        name="forgotten needs: who came in by this plan counts as if it lacked nothing",
        file="scheduler/scheduler_planning.cc",
        good="        add_needs(*group, *running);\n",
        bad="",
    ),
    Fault(
        name="merged too far: copies are one if their sources are neighbours, wherever they go",
        file="kv_cache/copy_list.cc",
        good=" || destination != copy.destination + n",
        bad="",
    ),
    Fault(
        name="trusted copies: a plan that was never updated counts as carried out",
        file="scheduler/scheduler_tiers.cc",
        good="  if (plan_.spent() || lost.empty()) {\n",
        bad="  if (plan_.spent() || !lost.empty()) {\n",
    ),
    Fault(
        name="stale row: the builder believes what a table held before it changed",
        file="scheduler/batch_builder.cc",
        good=" && last.version == table.version()",
        bad="",
    ),
    Fault(
        name="no row kept: a prompt with logprobs takes the rows of those that decode",
        file="scheduler/scheduler_planning.cc",
        good="config_.max_num_rows - config_.max_num_seqs;",
        bad="config_.max_num_rows - 1;",
    ),
    Fault(
        name="row lent: a sequence that needs no row gives its own to a prompt with logprobs",
        file="scheduler/step_plan.cc",
        good="return std::max(what.num_rows() - 1, 0);",
        bad="return what.num_rows() - 1;",
    ),
    Fault(
        name="scored again: what a preempted prompt's logprobs are is forgotten with its blocks",
        file="scheduler/sequence.cc",
        good="  num_computed_tokens_ = 0;\n  published_ = {};\n  table_ = std::move(empty);\n",
        bad="  num_computed_tokens_ = 0;\n  num_scored_ = 0;\n  published_ = {};\n  table_ = std::move(empty);\n",
    ),
    Fault(
        name="scored late: a chunk that begins within what is scored has its rows at its beginning",
        file="scheduler/batch_builder.cc",
        good="first_row + position - planned.what.first_token;",
        bad="first_row + i;",
    ),
    Fault(
        name="stale hash: a block that holds something else by now is still looked up by what it held",
        file="kv_cache/prefix_cache.cc",
        good="  index_.erase(entries_[block].hash, block);\n",
        bad="",
    ),
    Fault(
        name="missing token compare: whatever has the same hash after the same block is a hit",
        file="kv_cache/prefix_cache.cc",
        good=" && std::ranges::equal(this->tokens(block), tokens);",
        bad=";",
    ),
    Fault(
        name="pinned block evicted: pins give way to a group that is not alone",
        file="scheduler/scheduler_planning.cc",
        good="    if (running_.size() == 1 && pins_.release_oldest()) {",
        bad="    if (pins_.release_oldest()) {",
    ),
    Fault(
        name="missed partial copy: the block that begins as another one does holds anything",
        file="kv_cache/kv_cache_manager_prefixes.cc",
        good="  copies_.add(match.partial_on_host ? CopyKind::kSwapIn : CopyKind::kCopyOnWrite, "
        "match.partial_block, *copy);\n",
        bad="",
    ),
    Fault(
        name="wrong parent after re-parenting: every further child is the best beam's",
        file="scheduler/scheduler_beams.cc",
        good="    const Sequence& parent = *group.sequences[live[rank].parent];",
        bad="    const Sequence& parent = *group.sequences.front();",
    ),
    Fault(
        name="siblings left behind: one branch turns to cached blocks, the others keep what it shared with them",
        file="scheduler/scheduler_prefixes.cc",
        good="    static_cast<void>(publish_one(group, *sibling));\n",
        bad="    static_cast<void>(sibling);\n",
    ),
    Fault(
        name="last token found too: nothing is left to compute a prompt's answer from",
        file="scheduler/scheduler_prefixes.cc",
        good="  return scored ? sequence.num_tokens() - 1 : sequence.num_scored();",
        bad="  return scored ? sequence.num_tokens() : sequence.num_scored();",
    ),
    Fault(
        name="scores found too: a prompt's logprobs are never computed where its prefix is cached",
        file="scheduler/scheduler_prefixes.cc",
        good="  return scored ? sequence.num_tokens() - 1 : sequence.num_scored();",
        bad="  return scored ? sequence.num_tokens() - 1 : sequence.num_tokens() - 1;",
    ),
    Fault(
        name="most recently used first: a cached block that is given back is the next to be evicted",
        file="kv_cache/block_pool.cc",
        good="    cached_[block] ? free_list_.push_back(block) : free_list_.push_front(block);",
        bad="    free_list_.push_front(block);",
    ),
    Fault(
        name="published too late: what a request has computed goes with it when the step ends it",
        file="scheduler/scheduler_results.cc",
        good="    publish(*planned.group, *planned.sequence);  // before it shares its blocks, or gives them back\n",
        bad="    if (num_results == 0) {\n      publish(*planned.group, *planned.sequence);\n    }\n",
    ),
    Fault(
        name="one draw for all: each sample draws the first one's token",
        file="scheduler/batch_builder.cc",
        good=".sample_index = sequence.branch() + i",
        bad=".sample_index = sequence.branch()",
    ),
    Fault(
        name="samples not counted: those to come take no place among running sequences",
        file="scheduler/scheduler_planning.cc",
        good="num_running_sequences_ + group.num_counted() > config_.max_num_seqs",
        bad="num_running_sequences_ + group.num_sequences() > config_.max_num_seqs",
    ),
    Fault(
        name="half a pair: the last of an odd number of k is left out",
        file="ops/cpu/packed_rows.h",
        good="(in_features + kDepthStep<A> - 1) / kDepthStep<A>;",
        bad="in_features / kDepthStep<A>;",
    ),
    Fault(
        name="folded too eagerly: a linear adds to the very buffer it reads",
        file="graph/record.cc",
        good="last.output != y || last.input == x || params->adds",
        bad="last.output != y || params->adds",
    ),
    Fault(
        name="lanes beyond the row: they hold what is left when a zero loses the mean",
        file="ops/cpu/row_math.h",
        good="first_lanes(size - at, sub(load(x + at, size - at), centers), zero());",
        bad="sub(load(x + at, size - at), centers);",
    ),
    Fault(
        name="first key of the window: one key too many is seen",
        file="ops/cpu/attention_work.h",
        good="position - window + 1 : 0;",
        bad="position - window : 0;",
    ),
    Fault(
        name="unmasked: keys of a tile that lie before the window count too",
        file="ops/cpu/attention_softmax.h",
        good="  return seen.begin > first_key ? first_lanes(seen.begin - first_key, other, x) : x;",
        bad="  return x;",
    ),
    Fault(
        name="the other key of a pair: its value, which may be NaN, is multiplied by zero",
        file="ops/cpu/attention_values.h",
        good="one_of_each(values, in_step), sum);",
        bad="values, sum);",
    ),
    Fault(
        name="factor of the join: what is joined stays relative to the largest score of its first span",
        file="ops/cpu/attention_values.h",
        good="  *into.largest = largest;\n",
        bad="",
    ),
    Fault(
        name="a span apart too few: the last is not joined to the others",
        file="ops/cpu/attention_run.h",
        good="span < spans.end; ++span) {",
        bad="span + 1 < spans.end; ++span) {",
    ),
    Fault(
        name="tiles of values: what nobody sees is multiplied by zero, NaN included",
        file="ops/cpu/amx_values.h",
        good="_mm512_set1_epi32(static_cast<int>(kept));",
        bad="_mm512_set1_epi32(-1);",
    ),
    Fault(
        name="a value that is not finite: rows of one tile that do not see it get it all the same",
        file="ops/cpu/amx_values.h",
        good="  return not_finite == 0;\n",
        bad="  return true;\n",
    ),
    Fault(
        name="weights of a row beyond the keys it sees: those of another row are left there",
        file="ops/cpu/amx_attention.h",
        good="    clear_weights(weights, {groups_of(seen).end, groups.end});\n",
        bad="",
    ),
    Fault(
        name="half a tile of D: the keys that follow in memory are multiplied by zero, NaN included",
        file="ops/cpu/amx_attention.h",
        good="return step < whole_steps ?",
        bad="return step <= whole_steps ?",
    ),
    Fault(
        name="height of tiles: the second tile of rows begins after sixteen, however few the first has",
        file="ops/cpu/amx_products.h",
        good="load<4 + row()>(a.data + row() * height * a.stride",
        bad="load<4 + row()>(a.data + row() * 16 * a.stride",
    ),
    Fault(
        name="tail of the rotation: what fills no vector is not rotated",
        file="ops/cpu/rotary_cache_write.cc",
        good="for (std::int64_t i = 0; i < half; i += kLanes) {",
        bad="for (std::int64_t i = 0; i + kLanes <= half; i += kLanes) {",
    ),
    Fault(
        name="limit of positions: that of the table recorded last",
        file="graph/record.cc",
        good="std::min(limits_.max_positions, num_rows);",
        bad="num_rows;",
    ),
    Fault(
        name="given token's rank: tokens equal to it never come before it",
        file="sampling/token_order.cc",
        good="count_from(logits, id, logit)",
        bad="count_from(logits, id, next)",
    ),
    Fault(
        name="given token's alternatives: as many as a sampled one would have",
        file="sampling/row_sampler.cc",
        good="request.params.num_prompt_logprobs.value_or(0)",
        bad="request.params.num_logprobs.value_or(0)",
    ),
    Fault(
        name="greedy on the raw row: what logit edits bar can come",
        file="sampling/row_sampler.cc",
        good="choose(edited, edited_scan_, request);",
        bad="choose(edited, scan_, request);",
    ),
)
