#include "fastpaged/request/sampling_params.h"

#include <limits>
#include <string>
#include <string_view>

#include "fastpaged/base/check.h"

namespace fastpaged {

namespace {

template <typename Number>
void require_param(bool holds, std::string_view name, std::string_view allowed, Number given) {
  require(holds,
          [&] { return std::string(name) + " must be " + std::string(allowed) + ", got " + std::to_string(given); });
}

}  // namespace

void validate(const SamplingParams& params) {
  const bool finite = params.temperature <= std::numeric_limits<float>::max();
  require_param(params.temperature >= 0.0F && finite, "temperature", "finite and >= 0", params.temperature);
  require_param(params.top_p > 0.0F && params.top_p <= 1.0F, "top_p", "in (0, 1]", params.top_p);
  require_param(params.top_k >= 0, "top_k", ">= 0 (0 is off)", params.top_k);
  require_param(params.min_p >= 0.0F && params.min_p <= 1.0F, "min_p", "in [0, 1]", params.min_p);
  const std::int32_t num_logprobs = params.num_logprobs.value_or(0);
  require_param(num_logprobs >= 0, "num_logprobs", ">= 0", num_logprobs);
}

}  // namespace fastpaged
