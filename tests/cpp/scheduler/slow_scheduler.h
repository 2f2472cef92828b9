// The scheduling policy said as plainly as possible: one list of requests in order of arrival, blocks as mere counts,
// everything looked up and summed up again each time. The real scheduler must decide the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "fastpaged/scheduler/scheduler.h"

namespace fastpaged::test {

struct SlowRequest {
  std::int64_t prompt = 0;
  std::int64_t tokens = 0;
  std::int64_t computed = 0;
  std::int64_t blocks = 0;
  bool running = false;
  StopConditions stop;
};

struct SlowPlan {
  std::vector<std::tuple<GroupId, std::int64_t, std::int64_t>> scheduled;  // id, first token, number of tokens
  std::vector<GroupId> preempted;
  std::vector<GroupId> ended;
};

class SlowScheduler {
 public:
  explicit SlowScheduler(const SchedulerConfig& config) : config_(config) {}

  // REQUIRES: ids grow with arrival, so that the map is in order of arrival.
  void add(const NewRequest& request) {
    const std::int64_t prompt = std::ssize(request.prompt_token_ids);
    requests[request.id] = {.prompt = prompt, .tokens = prompt, .stop = request.stop};
  }

  SlowPlan schedule() {
    plan_ = {};
    for (const bool decodes : {true, false}) {
      for (const GroupId id : ids_where(true)) {
        if (requests.contains(id) && requests[id].running &&
            decodes == (requests[id].tokens - requests[id].computed == 1)) {
          grow(id);
        }
      }
    }
    for (const GroupId id : ids_where(false)) {
      const std::int64_t num_tokens = chunk(requests[id]);
      if (num_tokens == 0 || std::ssize(ids_where(true)) == config_.max_num_seqs) {
        break;
      }
      std::int64_t wanted = blocks_for(requests[id].tokens);
      for (const GroupId other : ids_where(true)) {
        wanted += std::max<std::int64_t>(0, blocks_for(requests[other].tokens) - requests[other].blocks);
      }
      if (wanted > free_blocks()) {
        break;
      }
      requests[id].running = true;
      requests[id].blocks = blocks_for(num_tokens);
      plan_.scheduled.emplace_back(id, 0, num_tokens);
    }
    return plan_;
  }

  // tokens: what each sampling request got; -1 for a failed one.
  void update(const SlowPlan& plan, const std::map<GroupId, TokenId>& tokens) {
    for (const auto& [id, first, num_tokens] : plan.scheduled) {
      if (!requests.contains(id)) {
        continue;
      }
      SlowRequest& request = requests[id];
      request.computed += num_tokens;
      if (request.computed < request.tokens) {
        continue;
      }
      const TokenId token = tokens.at(id);
      const std::vector<TokenId>& stops = request.stop.stop_token_ids;
      ++request.tokens;
      if (token == -1 || std::count(stops.begin(), stops.end(), token) > 0 ||
          request.tokens - request.prompt == request.stop.max_tokens || request.tokens == config_.max_model_len) {
        requests.erase(id);
      }
    }
  }

  [[nodiscard]] std::int64_t free_blocks() const {
    std::int64_t free = config_.num_blocks;
    for (const auto& [id, request] : requests) {
      free -= request.blocks;
    }
    return free;
  }

  std::map<GroupId, SlowRequest> requests;

 private:
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return tokens / config_.block_size + (tokens % config_.block_size == 0 ? 0 : 1);
  }

  [[nodiscard]] std::vector<GroupId> ids_where(bool running) const {
    std::vector<GroupId> ids;
    for (const auto& [id, request] : requests) {
      if (request.running == running) {
        ids.push_back(id);
      }
    }
    return ids;
  }

  [[nodiscard]] std::int64_t chunk(const SlowRequest& request) const {
    std::int64_t num_tokens = config_.max_num_batched_tokens;
    for (const auto& [id, first, planned] : plan_.scheduled) {
      num_tokens -= planned;
    }
    num_tokens = std::min(num_tokens, request.tokens - request.computed);
    const std::int64_t threshold = config_.long_prefill_token_threshold;
    return threshold == 0 ? num_tokens : std::min(num_tokens, threshold);
  }

  void grow(GroupId id) {
    const std::int64_t num_tokens = chunk(requests[id]);
    if (num_tokens == 0) {
      return;
    }
    const std::int64_t first = requests[id].computed;
    while (blocks_for(first + num_tokens) - requests[id].blocks > free_blocks()) {
      const GroupId youngest = ids_where(true).back();
      if (ids_where(true).size() == 1) {
        requests.erase(id);
        plan_.ended.push_back(id);
        return;
      }
      SlowRequest& victim = requests[youngest];
      victim.running = false;
      victim.blocks = victim.computed = 0;
      plan_.preempted.push_back(youngest);
      std::erase_if(plan_.scheduled, [&](const auto& planned) { return std::get<0>(planned) == youngest; });
      if (youngest == id) {
        return;
      }
    }
    requests[id].blocks = std::max(requests[id].blocks, blocks_for(first + num_tokens));
    plan_.scheduled.emplace_back(id, first, num_tokens);
  }

  SchedulerConfig config_;
  SlowPlan plan_;
};

}  // namespace fastpaged::test
