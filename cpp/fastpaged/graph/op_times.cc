#include "fastpaged/graph/op_times.h"

#include <algorithm>

#include "fastpaged/ops/packed_linear.h"

namespace fastpaged {
namespace {

std::array<std::int64_t, 2> shape_of(const NodeParams& params) {
  if (const auto* linear = std::get_if<LinearParams>(&params)) {
    return {linear->weight->in_features(), linear->weight->out_features()};
  }
  if (const auto* attention = std::get_if<PagedAttentionParams>(&params)) {
    return {attention->window, 0};
  }
  return {};
}

}  // namespace

const char* OpTime::name() const {
  return OpTimes::kNames.at(op);
}

std::string OpTime::label() const {
  std::string text = name();
  if (shape[1] > 0) {
    text.append(" ").append(std::to_string(shape[0])).append("x").append(std::to_string(shape[1]));
  } else if (shape[0] > 0) {
    text.append(" window ").append(std::to_string(shape[0]));
  }
  return text;
}

void OpTimes::count(const NodeParams& params, std::chrono::nanoseconds time) {
  const std::array<std::int64_t, 2> shape = shape_of(params);
  auto of_op = std::find_if(times_.begin(), times_.end(),
                            [&](const OpTime& other) { return other.op == params.index() && other.shape == shape; });
  if (of_op == times_.end()) {
    of_op = times_.insert(times_.end(), OpTime{.op = params.index(), .shape = shape, .time = {}, .cost = {}});
  }
  const OpCost cost = std::visit([](const auto& op) { return op_cost(op); }, params);
  ++of_op->num_calls;
  of_op->time += time;
  of_op->cost += cost;
  of_op->limit_seconds += limits_.seconds(cost);
  run_cost_ += cost;
}

}  // namespace fastpaged
