// The loops that limits are measured with do the work that is said of them: no bytes and no products are left out.
#include "fastpaged/ops/machine_kernels.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastpaged/ops/element.h"
#include "fastpaged/ops/op_table.h"

namespace fastpaged {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

// Elements that are alike within a step: one value a step.
template <typename Element>
std::vector<Line> steps_of(const std::vector<float>& values, std::int64_t bytes_per_step) {
  std::vector<Line> lines(static_cast<std::size_t>(static_cast<std::int64_t>(values.size()) * bytes_per_step / 64 + 1));
  auto* at = reinterpret_cast<std::byte*>(lines.data());
  for (const float value : values) {
    const Element element = rounded_to<Element>(value);
    for (std::int64_t i = 0; i < bytes_per_step; i += static_cast<std::int64_t>(sizeof(Element))) {
      std::memcpy(at, &element, sizeof(Element));
      at += sizeof(Element);
    }
  }
  return lines;
}

template <typename Element>
void check_products(const MatrixKernel& kernel) {
  const std::vector<float> x = {1.0F, 2.0F, -3.0F, 0.5F, 4.0F, 1.0F, 8.0F};
  const std::vector<float> weight = {1.0F, -1.0F, 2.0F, 16.0F, 0.25F, 3.0F, -1.0F};
  REQUIRE((kernel.element_bytes == static_cast<std::int64_t>(sizeof(Element))));
  const std::vector<Line> x_steps = steps_of<Element>(x, kernel.x_bytes_per_step());
  const std::vector<Line> weight_steps = steps_of<Element>(weight, kernel.weight_bytes_per_step());
  std::vector<Line> sums(static_cast<std::size_t>(kernel.rows * kernel.columns / 16));
  auto* values = reinterpret_cast<float*>(sums.data());
  float expected = 0.0F;
  for (std::size_t step = 0; step < x.size(); ++step) {
    for (std::int64_t k = 0; k < kernel.depth; ++k) {
      expected += x[step] * weight[step];
    }
  }
  for (std::int64_t i = 0; i < kernel.rows * kernel.columns; ++i) {
    values[i] = static_cast<float>(i);
  }
  kernel.from_cache(reinterpret_cast<const std::byte*>(x_steps.data()),
                    reinterpret_cast<const std::byte*>(weight_steps.data()), static_cast<std::int64_t>(x.size()),
                    values);
  for (std::int64_t i = 0; i < kernel.rows * kernel.columns; ++i) {
    CHECK((values[i] == expected + static_cast<float>(i)));
  }
}

TEST_CASE("a matrix kernel adds every product of its steps to every sum") {
  for (const std::string& isa : supported_isas()) {
    CAPTURE(isa);
    const MachineKernels kernels = machine_kernels(isa);
    check_products<float>(kernels.float32);
    kernels.has_bfloat16() ? check_products<BFloat16>(kernels.bfloat16) : check_products<float>(kernels.bfloat16);
  }
}

TEST_CASE("reading sums all of the bytes") {
  for (const std::string& isa : supported_isas()) {
    CAPTURE(isa);
    const ReadKernel read = machine_kernels(isa).read;
    for (const std::int64_t num_steps : {0, 1, 2, 3, 7, 16}) {
      std::vector<float> numbers(static_cast<std::size_t>(num_steps * kReadStep / 4));
      float sum = 0.0F;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = static_cast<float>(i % 100);
        sum += numbers[i];
      }
      CHECK((read(reinterpret_cast<const std::byte*>(numbers.data()), num_steps * kReadStep) == sum));
    }
  }
}

TEST_CASE("what was measured is counted: whole steps of the buffer in each pass, and the flops of all threads") {
  ThreadPool pool(2);
  const MachineKernels kernels = machine_kernels("scalar");
  const std::vector<std::byte> buffer(5 * kReadStep + 100);
  for (const std::int64_t piece_bytes : {std::int64_t{1}, kReadStep, 3 * kReadStep, 100 * kReadStep}) {
    const Measurement read = measure_read(kernels, buffer, piece_bytes, 3, pool);
    CHECK((read.amount == static_cast<double>(3 * 5 * kReadStep)));
    CHECK((read.seconds > 0.0));
  }
  for (const std::int64_t weight_bytes : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 16}) {
    MatrixProbe probe(kernels.float32, weight_bytes, pool);
    const Measurement once = probe.measure(1);
    CHECK((once.amount > 0.0));
    CHECK((probe.measure(3).amount == 3.0 * once.amount));
    ThreadPool alone(1);
    CHECK((MatrixProbe(kernels.float32, weight_bytes, alone).measure(1).amount == once.amount / 2));
  }
}

TEST_CASE("kernels of a table that this CPU does not run are refused") {
  CHECK_THROWS_AS(machine_kernels("avx9000"), std::invalid_argument);
}

}  // namespace
}  // namespace fastpaged
