#include "fastpaged/ops/cpu/linear_epilogue.h"

#include "fastpaged/ops/cpu/activate.h"
#include "fastpaged/ops/cpu/vector.h"
#include "fastpaged/ops/cpu/weight_panels.h"
#include "fastpaged/ops/element.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

namespace {

// The sums of one row and panel, `count` of which are outputs, with their biases; bias: null for none.
struct Outputs {
  const float* sums;
  const float* bias;
  std::int64_t count;
};

}  // namespace

FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES)

static inline Floats biased(const Outputs& y, std::int64_t i) {
  const Floats sums = load(y.sums + i);
  return y.bias == nullptr ? sums : add(sums, load(y.bias + i, y.count - i));
}

// The whole panel, padding too.
static inline void keep_gates(const Outputs& y, float* gates) {
  for (std::int64_t i = 0; i < kPanelWidth; i += kLanes) {
    store(gates + i, biased(y, i));
  }
}

static inline void write(const Outputs& y, float* out) {
  for (std::int64_t i = 0; i < kPanelWidth; i += kLanes) {
    store(out + i, biased(y, i), y.count - i);
  }
}

static inline void add_to_output(const Outputs& y, float* out) {
  for (std::int64_t i = 0; i < kPanelWidth; i += kLanes) {
    store(out + i, add(load(out + i, y.count - i), biased(y, i)), y.count - i);
  }
}

template <typename Out>
static inline void write_activated(const Outputs& y, Activation activation, Out* out) {
  for (std::int64_t i = 0; i < kPanelWidth; i += kLanes) {
    store(out + i, activate(activation, biased(y, i)), y.count - i);
  }
}

template <typename Out>
static inline void write_gated(const Outputs& y, Activation activation, const float* gates, Out* out) {
  for (std::int64_t i = 0; i < kPanelWidth; i += kLanes) {
    store(out + i, mul(activate(activation, load(gates + i)), biased(y, i)), y.count - i);
  }
}

template <typename Out>
static void finish_panel(const LinearParams& params, const PanelSums& block, std::int64_t p) {
  const PackedLinear& weight = *params.weight;
  const PanelOutputs outputs = panel_outputs(weight.out_features(), weight.gated(), block.panel + p);
  const float* bias = params.bias.empty() ? nullptr : params.bias.ptr<const float>() + outputs.first;
  const bool are_gates = holds_gates(block.panel + p, weight.gated());
  const Activation activation = *params.activation;  // NOLINT(bugprone-unchecked-optional-access): the caller looked
  for (std::int64_t r = 0; r < block.num_rows; ++r) {
    const Outputs y{block.sums + r * block.stride + p * kPanelWidth, bias, outputs.count};
    Out* out = params.out.row<Out>(block.row + r) + outputs.column;
    if (are_gates) {
      keep_gates(y, block.gates + r * kPanelWidth);
    } else if (weight.gated()) {
      write_gated(y, activation, block.gates + r * kPanelWidth, out);
    } else {
      write_activated(y, activation, out);
    }
  }
}

static void finish_plain_panel(const LinearParams& params, const PanelSums& block, std::int64_t p) {
  const PanelOutputs outputs = panel_outputs(params.weight->out_features(), /*gated=*/false, block.panel + p);
  const float* bias = params.bias.empty() ? nullptr : params.bias.ptr<const float>() + outputs.first;
  for (std::int64_t r = 0; r < block.num_rows; ++r) {
    const Outputs y{block.sums + r * block.stride + p * kPanelWidth, bias, outputs.count};
    float* out = params.out.row<float>(block.row + r) + outputs.column;
    params.adds ? add_to_output(y, out) : write(y, out);
  }
}

FASTPAGED_END_TARGET

void finish_sums(const LinearParams& params, const PanelSums& block) {
  for (std::int64_t p = 0; p < block.num_panels; ++p) {
    if (params.activation) {
      with_element(params.out.dtype, [&](auto element) { finish_panel<decltype(element)>(params, block, p); });
    } else {
      finish_plain_panel(params, block, p);
    }
  }
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
