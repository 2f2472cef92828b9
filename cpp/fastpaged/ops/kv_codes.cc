#include "fastpaged/ops/kv_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/shape_check.h"

namespace fastpaged {
namespace {

constexpr std::uint8_t kSign = 0x80;

// Of a code without its sign. Exponent 0 has no leading one; the largest one is as any other.
float fp8_magnitude(unsigned code, int num_mantissa_bits, int bias) {
  const unsigned leading = 1U << num_mantissa_bits;
  const int exponent = static_cast<int>(code / leading);
  const unsigned mantissa = code % leading;
  return std::ldexp(static_cast<float>(exponent == 0 ? mantissa : leading + mantissa),
                    std::max(exponent, 1) - bias - num_mantissa_bits);
}

// Of an fp8 code without its sign.
float magnitude_of_code(DType dtype, unsigned code) {
  if (dtype == DType::kFp8E4M3) {
    return fp8_magnitude(code, 3, 7);
  }
  if (code >= 0x7C) {
    return code == 0x7C ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return fp8_magnitude(code, 2, 15);
}

float worth(DType dtype, unsigned code) {
  if (dtype == DType::kInt8) {
    return static_cast<float>(static_cast<std::int8_t>(code));
  }
  return code < kSign ? magnitude_of_code(dtype, code) : -magnitude_of_code(dtype, code % kSign);
}

std::array<float, 256> all_values(DType dtype) {
  std::array<float, 256> values;
  for (unsigned code = 0; code < values.size(); ++code) {
    values.at(code) = worth(dtype, code);
  }
  return values;
}

// Of the magnitude that is nearest to x >= 0.
std::uint8_t nearest_magnitude(DType dtype, float x) {
  const auto& all = values_of_codes(dtype);  // the first half in order of magnitude, in every format
  if (x >= largest_code(dtype)) {
    x = largest_code(dtype);
  }
  const auto above = std::lower_bound(all.begin(), all.begin() + 127, x);  // the first that is not below x
  const auto code = static_cast<std::uint8_t>(above - all.begin());
  if (code == 0 || *above == x) {
    return code;
  }
  const double to_above = double{*above} - double{x};
  const double to_below = double{x} - double{*(above - 1)};
  const bool takes_below = to_below < to_above || (to_below == to_above && code % 2 == 1);
  return static_cast<std::uint8_t>(takes_below ? code - 1 : code);
}

}  // namespace

DType kv_code_dtype(std::string_view name) {
  for (const DType dtype : {DType::kFp8E4M3, DType::kFp8E5M2, DType::kInt8}) {
    if (name == name_of(dtype)) {
      return dtype;
    }
  }
  require(false, [&] {
    return "kv_cache_dtype must be 'auto', 'fp8_e4m3', 'fp8_e5m2' or 'int8', got '" + std::string(name) + "'";
  });
  return DType::kInt8;
}

const std::array<float, 256>& values_of_codes(DType dtype) {
  static const std::array<float, 256> e4m3 = all_values(DType::kFp8E4M3);
  static const std::array<float, 256> e5m2 = all_values(DType::kFp8E5M2);
  static const std::array<float, 256> int8 = all_values(DType::kInt8);
  return dtype == DType::kInt8 ? int8 : dtype == DType::kFp8E4M3 ? e4m3 : e5m2;
}

std::uint8_t nearest_code(DType dtype, float x) {
  const std::uint8_t code = nearest_magnitude(dtype, std::abs(x));
  if (dtype == DType::kInt8) {
    return static_cast<std::uint8_t>(x < 0.0F ? -code : code);
  }
  return static_cast<std::uint8_t>(std::signbit(x) ? code + kSign : code);
}

namespace {

float squared_error(DType dtype, const float* x, std::int64_t size, float scale) {
  std::array<float, kKVErrorSums> sums{};
  for (std::int64_t i = 0; i < size; ++i) {
    const float wanted = x[i] / scale;
    const float off = value_of_code(dtype, nearest_code(dtype, wanted)) - wanted;
    sums.at(static_cast<std::size_t>(i % kKVErrorSums)) += off * off;
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0F);
}

float scale_of(DType dtype, const float* x, std::int64_t size, float amax) {
  if (dtype == DType::kInt8) {
    return amax / largest_code(dtype);
  }
  float scale = 0.0F;
  float least = std::numeric_limits<float>::infinity();
  for (const KVScaleChoice& choice : fp8_scale_choices(dtype)) {
    const float error = squared_error(dtype, x, size, amax / choice.amax_code) * choice.weight;
    if (error < least) {
      least = error;
      scale = amax / choice.amax_code;
    }
  }
  return scale;
}

}  // namespace

float quantize(DType dtype, const float* x, std::int64_t size, std::uint8_t* codes) {
  float amax = 0.0F;
  bool all_finite = true;
  for (std::int64_t i = 0; i < size; ++i) {
    amax = std::max(amax, std::abs(x[i]));
    all_finite = all_finite && std::isfinite(x[i]);
  }
  if (!all_finite || amax < kLeastKVMagnitude) {
    std::fill_n(codes, size, std::uint8_t{0});
    return all_finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = scale_of(dtype, x, size, std::min(amax, kMostKVMagnitude));
  for (std::int64_t i = 0; i < size; ++i) {
    codes[i] = nearest_code(dtype, x[i] / scale);
  }
  return scale;
}

TensorView kv_code_view(const char* argument, const TensorView& bytes, std::int64_t head_dim) {
  const int last = bytes.rank - 1;
  require(bytes.rank >= 1 && bytes.rank < TensorView::kMaxRank && head_dim > 0 &&
              bytes.shape[last] % (head_dim + kKVScaleBytes) == 0 && bytes.strides[last] == 1,
          [&] {
            return std::string(argument) + " must be bytes [..., block_size * (head_dim + 4)] with head_dim " +
                   std::to_string(head_dim) + ", contiguous along the last axis, got " +
                   (bytes.rank < 1 ? "no axis" : "a last axis of " + std::to_string(bytes.shape[last]));
          });
  TensorView view = bytes;
  view.rank = bytes.rank + 1;
  view.shape[last] = bytes.shape[last] / (head_dim + kKVScaleBytes);
  view.strides[last] = head_dim + kKVScaleBytes;
  view.shape[last + 1] = head_dim;
  view.strides[last + 1] = 1;
  return view;
}

}  // namespace fastpaged
