// Every sequence of operations on a tiny pool, up to a depth, each one played from the start, checked and drained.
#include <doctest/doctest.h>

#include <array>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "scheduler/world.h"

namespace fastpaged::test {
namespace {

enum class Operation : std::uint8_t {
  kAddShort,
  kAddLong,
  kStep,
  kForgottenStep,  // planned, and then the worker fails
  kSwapStep,       // a step that begins with the oldest running group swapped out
  kRecomputeStep,  // the same, put back to be recomputed
  kAbortOldest,
  kForkYoungest,       // the youngest branch of the youngest group that may be forked
  kFinishFirstBranch,  // of the youngest group that has several
  kAddPlain,           // a prompt of five tokens, of which two blocks can be found again
  kAddSamples,         // the same prompt, for two samples
  kPin,                // those two blocks
  kUnpin,
  kResetCache,
  kAddImportant,  // a short prompt of a better priority
  kAddHurried,    // one whose time is up in two steps, or in one if it is not let in
};

SchedulerConfig tiny_pool(const SchedulerPolicy& policy) {
  SchedulerConfig config;
  config.num_blocks = 3;
  config.block_size = 2;
  config.num_host_blocks = 2;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = policy.chunked_prefill ? 4 : 8;
  config.max_model_len = 8;
  config.max_num_rows = 6;  // so that a long prompt, which is scored, is cut, and more so in company
  config.policy = policy;
  return config;
}

// A block more, and what is computed can be found again.
SchedulerConfig tiny_cache(const SchedulerPolicy& policy) {
  SchedulerConfig config = tiny_pool(policy);
  config.num_blocks = 4;
  config.prefix_caching = true;
  config.max_pinned_blocks = 2;
  config.prefix_hash_mask = 1;
  return config;
}

constexpr std::array kAboutRequests = {
    Operation::kAddShort,      Operation::kAddLong,      Operation::kStep,
    Operation::kForgottenStep, Operation::kSwapStep,     Operation::kRecomputeStep,
    Operation::kAbortOldest,   Operation::kForkYoungest, Operation::kFinishFirstBranch};
constexpr std::array kAboutPrefixes = {Operation::kAddPlain,      Operation::kAddSamples, Operation::kStep,
                                       Operation::kForgottenStep, Operation::kSwapStep,   Operation::kRecomputeStep,
                                       Operation::kAbortOldest,   Operation::kPin,        Operation::kUnpin,
                                       Operation::kResetCache};

constexpr std::array kAboutTime = {Operation::kAddLong,       Operation::kAddImportant,  Operation::kAddHurried,
                                   Operation::kStep,          Operation::kForgottenStep, Operation::kSwapStep,
                                   Operation::kRecomputeStep, Operation::kAbortOldest,   Operation::kForkYoungest};

class Explorer {
 public:
  Explorer(const SchedulerConfig& config, std::span<const Operation> operations)
      : config_(config), operations_(operations.begin(), operations.end()) {}

  // All sequences that go on from here, up to `depth` operations in all.
  void explore(int depth) {
    World world(config_);
    play(world);
    std::vector<Operation> next = operations_;
    std::erase_if(next, [&](Operation operation) { return !is_possible(world, operation); });
    if (!path_.empty()) {
      ++num_sequences;
      drain(world);
    }
    if (std::ssize(path_) == depth) {
      return;
    }
    for (const Operation operation : next) {
      path_.push_back(operation);
      explore(depth);
      path_.pop_back();
    }
  }

  std::int64_t num_sequences = 0;

 private:
  void play(World& world) const {
    CAPTURE(text());
    world.checks_all = false;  // what comes before the last operation was checked as a sequence of its own
    for (std::size_t i = 0; i < path_.size(); ++i) {
      world.checks_all = i + 1 == path_.size();
      perform(world, path_[i]);
    }
  }

  void drain(World& world) const {
    CAPTURE(text());
    world.checks_all = true;
    const std::int64_t steps_before = world.num_steps;
    world.drain();
    const std::int64_t times = config_.policy.by_priority ? 4 * world.num_requests : 2;
    REQUIRE(world.num_steps - steps_before <= times * world.num_branch_tokens);
  }

  [[nodiscard]] std::string text() const {
    std::string text;
    for (const Operation operation : path_) {
      text += std::to_string(static_cast<int>(operation)) + " ";
    }
    return text;
  }

  static GroupId oldest_running(const World& world) {
    const std::vector<GroupId> running = world.slow.ids(GroupState::kRunning);
    return running.empty() ? kNobody : running.front();
  }

  static GroupId to_fork(const World& world) {
    for (const auto& [id, group] : world.slow.memory.groups | std::views::reverse) {
      if (world.slow.may_fork(id, group.branches.rbegin()->first)) {
        return id;
      }
    }
    return kNobody;
  }

  static GroupId with_branches(const World& world) {
    for (const auto& [id, group] : world.slow.memory.groups | std::views::reverse) {
      if (group.size() > 1) {
        return id;
      }
    }
    return kNobody;
  }

  static bool is_possible(const World& world, Operation operation) {
    const SlowMemory& memory = world.slow.memory;
    switch (operation) {
      case Operation::kStep:
      case Operation::kForgottenStep:
        return world.scheduler.has_unfinished();
      case Operation::kSwapStep:
      case Operation::kRecomputeStep:
        return oldest_running(world) != kNobody;
      case Operation::kAbortOldest:
        return !memory.groups.empty();
      case Operation::kForkYoungest:
        return to_fork(world) != kNobody;
      case Operation::kFinishFirstBranch:
        return with_branches(world) != kNobody;
      case Operation::kPin:
        return memory.pins.empty();
      case Operation::kUnpin:
        return !memory.pins.empty();
      case Operation::kResetCache:
        return !memory.cached.entries.empty();
      default:
        return true;
    }
  }

  static NewRequest request(const World& world, std::size_t prompt, std::int32_t num_samples = 1) {
    NewRequest request{.id = static_cast<GroupId>(world.num_requests) + 1, .num_samples = num_samples};
    request.prompt_token_ids.assign(prompt, 1);
    request.sampling.seed = request.id;
    request.stop.max_tokens = 3;
    if (prompt > 1 && !world.scheduler.config().prefix_caching) {
      request.sampling.num_prompt_logprobs = 0;
    }
    return request;
  }

  static void add(World& world, std::size_t prompt, std::int32_t num_samples = 1) {
    world.add(request(world, prompt, num_samples));
  }

  static void add_important(World& world) {
    NewRequest important = request(world, 2);
    important.priority = -1;
    world.add(important);
  }

  static void add_hurried(World& world) {
    NewRequest hurried = request(world, 3);
    hurried.deadline = world.now + 3;
    hurried.queue_deadline = world.now + 2;
    world.add(hurried);
  }

  static void perform(World& world, Operation operation) {
    const auto& groups = world.slow.memory.groups;
    switch (operation) {
      case Operation::kAddShort:
        return add(world, 1);
      case Operation::kAddLong:
        return add(world, 4);
      case Operation::kStep:
        return world.step();
      case Operation::kForgottenStep:
        static_cast<void>(world.schedule());
        return;
      case Operation::kSwapStep:
        world.preempt(oldest_running(world), PreemptionMode::kSwap);
        return world.step();
      case Operation::kRecomputeStep:
        world.preempt(oldest_running(world), PreemptionMode::kRecompute);
        return world.step();
      case Operation::kAbortOldest:
        return world.abort(groups.begin()->first);
      case Operation::kForkYoungest:
        return world.fork(to_fork(world), groups.at(to_fork(world)).branches.rbegin()->first);
      case Operation::kFinishFirstBranch:
        return world.finish(with_branches(world), groups.at(with_branches(world)).branches.begin()->first);
      case Operation::kAddPlain:
        return add(world, 5);
      case Operation::kAddSamples:
        return add(world, 5, 2);
      case Operation::kPin:
        return world.pin(1, {1, 1, 1, 1}, "");
      case Operation::kUnpin:
        return world.unpin(1);
      case Operation::kResetCache:
        return world.reset_prefix_cache();
      case Operation::kAddImportant:
        return add_important(world);
      case Operation::kAddHurried:
        return add_hurried(world);
    }
  }

  SchedulerConfig config_;
  std::vector<Operation> operations_;
  std::vector<Operation> path_;
};

void explore_all(const SchedulerConfig& config, std::span<const Operation> operations, int usual_depth) {
  const int depth = usual_depth + (proof_scale() == 1 ? 0 : proof_scale() < 20 ? 1 : 2);
  Explorer explorer(config, operations);
  explorer.explore(depth);
  MESSAGE("depth ", depth, ": ", explorer.num_sequences, " sequences of operations");
}

}  // namespace

TEST_CASE("every sequence of operations on three blocks keeps every promise: swapping") {
  SchedulerPolicy policy;
  policy.preemption_mode = PreemptionMode::kSwap;
  explore_all(tiny_pool(policy), kAboutRequests, 6);
}

TEST_CASE("every sequence of operations on three blocks keeps every promise: recomputing") {
  SchedulerPolicy policy;
  policy.preemption_mode = PreemptionMode::kRecompute;
  explore_all(tiny_pool(policy), kAboutRequests, 6);
}

TEST_CASE("every sequence of operations on three blocks keeps every promise: the paper's policy") {
  explore_all(tiny_pool(SchedulerPolicy::paper_2023()), kAboutRequests, 6);
}

TEST_CASE("every sequence of operations on three blocks keeps every promise: priorities, ageing, deadlines, shares") {
  SchedulerPolicy policy;
  policy.preemption_mode = PreemptionMode::kAuto;
  policy.by_priority = true;
  policy.ageing_steps = 2;
  policy.prefill_share = 2;
  SchedulerConfig config = tiny_pool(policy);
  config.max_num_seqs = 2;
  config.max_num_rows = 4;
  config.costs = {.seconds_per_token = 1.0, .seconds_per_block_out = 0.5, .seconds_per_block_in = 1.0};
  explore_all(config, kAboutTime, 5);
}

TEST_CASE("every sequence of operations on four blocks keeps every promise: prefixes, samples and a pin, swapping") {
  SchedulerPolicy policy;
  policy.preemption_mode = PreemptionMode::kSwap;
  explore_all(tiny_cache(policy), kAboutPrefixes, 5);
}

TEST_CASE("every sequence of operations on four blocks keeps every promise: prefixes, samples and a pin, recomputing") {
  SchedulerPolicy policy;
  policy.preemption_mode = PreemptionMode::kRecompute;
  explore_all(tiny_cache(policy), kAboutPrefixes, 5);
}

}  // namespace fastpaged::test
