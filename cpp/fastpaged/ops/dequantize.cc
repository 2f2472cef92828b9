#include "fastpaged/ops/dequantize.h"

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/bfloat16.h"
#include "fastpaged/ops/row_tiles.h"

namespace fastpaged {
namespace {

// IEEE half precision, subnormals included: exact in float32.
float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t fraction = half & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t rebased = exponent == 31 ? 255U : exponent + 112U;
  return std::bit_cast<float>(sign | (rebased << 23) | (fraction << 13));
}

template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

template <typename Out>
Out convert(float x) {
  if constexpr (std::is_same_v<Out, BFloat16>) {
    return to_bfloat16(x);
  } else {
    return x;
  }
}

// Each kind: the elements and bytes of a block, and how to read one.

struct Q41 {
  static constexpr std::int64_t kElements = 32;
  static constexpr std::int64_t kBytes = 20;  // scale and minimum (half), then 16 bytes of low and high nibbles
  // A block holds sixteen different values at most: they are computed, then looked up.
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = half_to_float(load<std::uint16_t>(block));
    const float minimum = half_to_float(load<std::uint16_t>(block + 2));
    std::array<Out, 16> values;
    for (int q = 0; q < 16; ++q) {
      values[q] = convert<Out>(scale * static_cast<float>(q) + minimum);
    }
    for (int i = 0; i < 16; ++i) {
      const auto nibbles = std::to_integer<unsigned>(block[4 + i]);
      out[i] = values[nibbles & 15U];
      out[i + 16] = values[nibbles >> 4];
    }
  }
};

struct Q80 {
  static constexpr std::int64_t kElements = 32;
  static constexpr std::int64_t kBytes = 34;  // scale (half), then 32 signed bytes
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    const float scale = half_to_float(load<std::uint16_t>(block));
    for (int i = 0; i < 32; ++i) {
      out[i] = convert<Out>(static_cast<float>(load<std::int8_t>(block + 2 + i)) * scale);
    }
  }
};

struct F16 {
  static constexpr std::int64_t kElements = 1;
  static constexpr std::int64_t kBytes = 2;
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    *out = convert<Out>(half_to_float(load<std::uint16_t>(block)));
  }
};

struct F32 {
  static constexpr std::int64_t kElements = 1;
  static constexpr std::int64_t kBytes = 4;
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    *out = convert<Out>(load<float>(block));
  }
};

struct BF16 {
  static constexpr std::int64_t kElements = 1;
  static constexpr std::int64_t kBytes = 2;
  template <typename Out>
  static void read(const std::byte* block, Out* out) {
    *out = convert<Out>(to_float(load<BFloat16>(block)));
  }
};

template <typename Kind, typename Out>
void read_blocks(std::span<const std::byte> data, Out* out, ThreadPool& pool) {
  const auto num_blocks = static_cast<std::int64_t>(data.size()) / Kind::kBytes;
  const RowTiles tiles = RowTiles::of_size(num_blocks, Kind::kElements, 1 << 18);
  pool.parallel_for(tiles.count(), [&](std::int64_t tile, int) {
    for (std::int64_t block = tiles.begin(tile); block < tiles.end(tile); ++block) {
      Kind::read(data.data() + block * Kind::kBytes, out + block * Kind::kElements);
    }
  });
}

template <typename Kind>
void read_all(std::string_view name, std::span<const std::byte> data, const TensorView& out, ThreadPool& pool) {
  std::int64_t elements = 1;
  for (int axis = out.rank - 1; axis >= 0; --axis) {
    require(out.shape[axis] <= 1 || out.strides[axis] == elements, [] { return "dequantize: out must be contiguous"; });
    elements *= out.shape[axis];
  }
  require(elements % Kind::kElements == 0 &&
              static_cast<std::int64_t>(data.size()) == elements / Kind::kElements * Kind::kBytes,
          [&] {
            return "dequantize: data must hold out's " + std::to_string(elements) + " elements as " +
                   std::string(name) + " (" + std::to_string(Kind::kBytes) + " bytes for each " +
                   std::to_string(Kind::kElements) + "), got " + std::to_string(data.size()) + " bytes";
          });
  if (out.dtype == DType::kBFloat16) {
    read_blocks<Kind>(data, out.ptr<BFloat16>(), pool);
  } else {
    require(out.dtype == DType::kFloat32, [] { return "dequantize: out must be float32 or bfloat16, got int32"; });
    read_blocks<Kind>(data, out.ptr<float>(), pool);
  }
}

struct NamedKind {
  std::string_view name;
  GgufKind kind;
  void (*read)(std::string_view name, std::span<const std::byte> data, const TensorView& out, ThreadPool& pool);
};

constexpr std::array kKinds{
    NamedKind{"Q4_1", GgufKind::kQ41, &read_all<Q41>}, NamedKind{"Q8_0", GgufKind::kQ80, &read_all<Q80>},
    NamedKind{"F16", GgufKind::kF16, &read_all<F16>}, NamedKind{"F32", GgufKind::kF32, &read_all<F32>},
    NamedKind{"BF16", GgufKind::kBF16, &read_all<BF16>}};

}  // namespace

GgufKind gguf_kind_from_name(std::string_view name) {
  std::string allowed;
  for (const NamedKind& entry : kKinds) {
    if (entry.name == name) {
      return entry.kind;
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw std::invalid_argument("kind must be one of " + allowed + ", got '" + std::string(name) + "'");
}

void dequantize(GgufKind kind, std::span<const std::byte> data, const TensorView& out, ThreadPool& pool) {
  for (const NamedKind& entry : kKinds) {
    if (entry.kind == kind) {
      entry.read(entry.name, data, out, pool);
    }
  }
}

}  // namespace fastpaged
