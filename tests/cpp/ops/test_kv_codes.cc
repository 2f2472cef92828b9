// 8-bit codes of keys and values: what they are worth, which is nearest, and that every table writes the same ones.
#include "fastpaged/ops/kv_codes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/op_table.h"
#include "ops/kv_code_memory.h"
#include "ops/table_runs.h"

namespace fastpaged {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Codes of finite values that are ever written, with a sign.
std::vector<std::uint8_t> codes_of(DType dtype) {
  std::vector<std::uint8_t> codes;
  const int largest = dtype == DType::kInt8 ? 127 : dtype == DType::kFp8E4M3 ? 0x7E : 0x7B;
  for (int code = 0; code <= largest; ++code) {
    codes.push_back(static_cast<std::uint8_t>(code));
    if (dtype != DType::kInt8 || code > 0) {
      codes.push_back(static_cast<std::uint8_t>(dtype == DType::kInt8 ? -code : code + 0x80));
    }
  }
  return codes;
}

// Every number at which the nearest code changes or may, to the last bit, of either sign.
Floats numbers_around_codes(DType dtype) {
  Floats numbers;
  const std::vector<std::uint8_t> codes = codes_of(dtype);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float value = value_of_code(dtype, codes[i]);
    numbers.push_back(value);
    for (std::size_t j = i + 1; j < std::min(i + 3, codes.size()); ++j) {  // the next one of the same sign
      const float other = value_of_code(dtype, codes[j]);
      const float middle = (value + other) / 2.0F;
      numbers.insert(numbers.end(), {middle, std::nextafter(middle, kInfinity), std::nextafter(middle, -kInfinity)});
    }
  }
  return numbers;
}

TEST_CASE("codes are worth what their bits say") {
  for (int code = -128; code < 128; ++code) {
    CHECK((value_of_code(DType::kInt8, static_cast<std::uint8_t>(code)) == static_cast<float>(code)));
  }
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const double sign = code < 128 ? 1.0 : -1.0;
    const auto worth = [&](unsigned mantissa_bits, int bias) {
      const unsigned exponent = (code & 0x7FU) >> mantissa_bits;
      const double fraction = (code & ((1U << mantissa_bits) - 1U)) / static_cast<double>(1U << mantissa_bits);
      return sign * (exponent == 0 ? fraction * std::pow(2.0, 1 - bias)
                                   : (1.0 + fraction) * std::pow(2.0, static_cast<int>(exponent) - bias));
    };
    CHECK((value_of_code(DType::kFp8E4M3, byte) == worth(3, 7)));
    if ((code & 0x7FU) < 0x7C) {
      CHECK((value_of_code(DType::kFp8E5M2, byte) == worth(2, 15)));
    } else {
      CHECK_FALSE(std::isfinite(value_of_code(DType::kFp8E5M2, byte)));
    }
  }
  CHECK((value_of_code(DType::kFp8E4M3, 0x7E) == largest_code(DType::kFp8E4M3)));
  CHECK((value_of_code(DType::kFp8E5M2, 0x7B) == largest_code(DType::kFp8E5M2)));
}

TEST_CASE("the nearest code is nearest, ties go to the even one, and what is too large becomes the largest") {
  for (const DType dtype : kCodeDTypes) {
    CAPTURE(dtype);
    const std::vector<std::uint8_t> codes = codes_of(dtype);
    for (const std::uint8_t code : codes) {
      CHECK((nearest_code(dtype, value_of_code(dtype, code)) == code));
    }
    Floats numbers = numbers_around_codes(dtype);
    for (const float x : {1.001F, 1e6F, 1e38F, kInfinity}) {
      numbers.insert(numbers.end(), {x * largest_code(dtype), -x * largest_code(dtype)});
    }
    for (const float x : numbers) {
      CAPTURE(x);
      const std::uint8_t code = nearest_code(dtype, x);
      const double distance = std::abs(double{value_of_code(dtype, code)} - double{x});
      REQUIRE((std::signbit(x) == std::signbit(value_of_code(dtype, code)) || value_of_code(dtype, code) == 0.0F));
      for (const std::uint8_t other : codes) {
        const double to_other = std::abs(double{value_of_code(dtype, other)} - double{x});
        REQUIRE(distance <= to_other);
        if (std::isfinite(x) && distance == to_other && value_of_code(dtype, other) != value_of_code(dtype, code)) {
          REQUIRE(code % 2 == 0);
        }
      }
    }
  }
}

TEST_CASE("what is read is as near to what was written as the header says") {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponents(-90.0F, 90.0F);
  for (const DType dtype : kCodeDTypes) {
    CAPTURE(dtype);
    const double of_x = dtype == DType::kInt8 ? 0.0 : dtype == DType::kFp8E4M3 ? 0x1p-4 : 0x1p-3;
    const double of_scale = dtype == DType::kInt8 ? 0.5 : dtype == DType::kFp8E4M3 ? 0x1p-10 : 0x1p-17;
    for (int round = 0; round < 500; ++round) {
      Floats x = random_numbers<float>(random, 64, std::exp2(exponents(random)));
      for (float& number : x) {
        number = std::ldexp(number, -static_cast<int>(random() % 20));  // of every magnitude
      }
      std::uint8_t codes[64];
      const float scale = quantize(dtype, x.data(), 64, codes);
      REQUIRE(scale > 0.0F);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double read = double{value_of_code(dtype, codes[i])} * double{scale};
        const double allowed = std::max(std::abs(double{x[i]}) * of_x, double{scale} * of_scale);
        REQUIRE(std::abs(read - double{x[i]}) <= allowed + std::abs(double{x[i]}) * 0x1p-22);
      }
    }
  }
}

TEST_CASE("fp8 keeps the largest number to the last bit, by the scale with the least squared error of four") {
  std::mt19937 random(5);
  for (const DType dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    CAPTURE(dtype);
    int num_with_another = 0;
    for (int round = 0; round < 300; ++round) {
      const Floats x = random_numbers<float>(random, 64, 3.0F);
      const auto squared_error = [&](float scale) {
        double sum = 0.0;
        for (const float number : x) {
          sum += std::pow(double{value_of_code(dtype, nearest_code(dtype, number / scale))} * scale - number, 2.0);
        }
        return sum;
      };
      std::uint8_t codes[64];
      const float scale = quantize(dtype, x.data(), 64, codes);
      const auto largest = static_cast<std::size_t>(
          std::ranges::max_element(x, {}, [](float number) { return std::abs(number); }) - x.begin());
      const float kept = value_of_code(dtype, codes[largest]) * scale;
      REQUIRE(std::abs(double{kept} - x[largest]) <= std::abs(double{x[largest]}) * 0x1p-22);
      for (const float sevenths : {7.0F, 6.0F, 5.0F, 4.0F}) {
        const float other = std::abs(x[largest]) / (largest_code(dtype) / 7.0F * sevenths);
        REQUIRE(squared_error(scale) <= squared_error(other) * (1.0 + 1e-5));
      }
      num_with_another += scale > std::abs(x[largest]) / largest_code(dtype) * 1.01F ? 1 : 0;
    }
    CHECK(num_with_another > 100);
  }
}

TEST_CASE("zeros have a scale of 0, what is not finite one of NaN, and the largest float stays finite") {
  for (const DType dtype : kCodeDTypes) {
    std::uint8_t codes[2] = {1, 1};
    const Floats zeros{-0.0F, 0x1p-101F};
    CHECK((quantize(dtype, zeros.data(), 2, codes) == 0.0F));
    CHECK((codes[0] == 0 && codes[1] == 0));
    for (const float x : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      const Floats bad{1.0F, x};
      CHECK(std::isnan(quantize(dtype, bad.data(), 2, codes)));
      CHECK((codes[0] == 0 && codes[1] == 0));
    }
    const Floats large{std::numeric_limits<float>::max(), 1.0F};
    const float scale = quantize(dtype, large.data(), 2, codes);
    CHECK(std::isfinite(scale * value_of_code(dtype, codes[0])));
    CHECK((value_of_code(dtype, codes[0]) == largest_code(dtype)));
  }
}

TEST_CASE("8-bit dtypes go by name") {
  for (const DType dtype : kCodeDTypes) {
    CHECK((kv_code_dtype(dtype == DType::kInt8      ? "int8"
                         : dtype == DType::kFp8E4M3 ? "fp8_e4m3"
                                                    : "fp8_e5m2") == dtype));
  }
  CHECK_THROWS_WITH(kv_code_dtype("fp8"), "kv_cache_dtype must be 'auto', 'fp8_e4m3', 'fp8_e5m2' or 'int8', got 'fp8'");
}

// Rows of keys and values of one head of 32: around every code with a scale of 1, of any magnitude, and not finite.
std::vector<Floats> rows_of_every_kind(DType dtype) {
  std::vector<Floats> rows;
  Floats numbers = numbers_around_codes(dtype);
  for (std::size_t i = 0; i < numbers.size(); i += 31) {
    Floats row(32, largest_code(dtype));
    std::copy(numbers.begin() + static_cast<std::ptrdiff_t>(i),
              numbers.begin() + static_cast<std::ptrdiff_t>(std::min(i + 31, numbers.size())), row.begin());
    rows.push_back(row);
  }
  std::mt19937 random(11);
  for (const float scale : {1.0F, 1e30F, 0x1p-95F, 0x1p-102F, 0x1p-130F, 0.0F}) {
    rows.push_back(random_numbers<float>(random, 32, scale));
  }
  for (const float x : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
                        std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), 0x1p-100F, 0x1p-140F}) {
    rows.push_back(random_numbers<float>(random, 32, std::min(1.0F, x > 0.0F ? x : 1.0F)));
    rows.back()[random() % 32] = x;
  }
  return rows;
}

// What the table makes of the rows as keys and, in another order, as values: all bytes of the cache.
template <typename A>
std::vector<std::uint8_t> written(const std::string& isa, DType dtype, std::int64_t block_size,
                                  const std::vector<Floats>& rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  Floats qkv;
  std::vector<std::int32_t> slots;
  for (std::int64_t t = 0; t < count; ++t) {
    qkv.insert(qkv.end(), 32, 1.0F);
    qkv.insert(qkv.end(), rows[static_cast<std::size_t>(t)].begin(), rows[static_cast<std::size_t>(t)].end());
    qkv.insert(qkv.end(), rows.rbegin()[t].begin(), rows.rbegin()[t].end());
    slots.push_back(static_cast<std::int32_t>(count - t));  // slot 0 is left alone
  }
  CodeMemory memory(dtype, (count + 1 + block_size - 1) / block_size, 1, block_size, 32);
  std::vector<A> q(static_cast<std::size_t>(count * 32));
  ThreadPool pool(2);
  op_table(isa).rotary_cache_write({.qkv = view_of(qkv, {count, 96}),
                                    .slot_mapping = view_of(slots, {count}),
                                    .kv_cache = memory.view(),
                                    .q = view_of(q, {count, 1, 32})},
                                   pool);
  return memory.bytes();
}

TEST_CASE_TEMPLATE("every table writes the codes and scales of the plain loops, and touches no other byte", A, BFloat16,
                   float) {
  for (const DType dtype : kCodeDTypes) {
    const std::vector<Floats> rows = rows_of_every_kind(dtype);
    for (const std::int64_t block_size : {16, 48, 5}) {
      const std::vector<std::uint8_t> want = written<A>("scalar", dtype, block_size, rows);
      for (const std::string& isa : fast_isas()) {
        CAPTURE(isa);
        CAPTURE(dtype);
        CAPTURE(block_size);
        CHECK((written<A>(isa, dtype, block_size, rows) == want));
      }
    }
  }
}

}  // namespace
}  // namespace fastpaged
