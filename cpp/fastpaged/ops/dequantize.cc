#include "fastpaged/ops/dequantize.h"

#include <array>
#include <string>

#include "fastpaged/base/check.h"
#include "fastpaged/ops/gguf_blocks.h"
#include "fastpaged/ops/gguf_k_blocks.h"
#include "fastpaged/ops/row_tiles.h"

namespace fastpaged {
namespace {

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
    NamedKind{"F32", GgufKind::kF32, &read_all<gguf::F32>},    NamedKind{"F16", GgufKind::kF16, &read_all<gguf::F16>},
    NamedKind{"BF16", GgufKind::kBF16, &read_all<gguf::BF16>}, NamedKind{"Q8_0", GgufKind::kQ80, &read_all<gguf::Q80>},
    NamedKind{"Q4_0", GgufKind::kQ40, &read_all<gguf::Q40>},   NamedKind{"Q4_1", GgufKind::kQ41, &read_all<gguf::Q41>},
    NamedKind{"Q5_0", GgufKind::kQ50, &read_all<gguf::Q50>},   NamedKind{"Q5_1", GgufKind::kQ51, &read_all<gguf::Q51>},
    NamedKind{"Q4_K", GgufKind::kQ4K, &read_all<gguf::Q4K>},   NamedKind{"Q5_K", GgufKind::kQ5K, &read_all<gguf::Q5K>},
    NamedKind{"Q6_K", GgufKind::kQ6K, &read_all<gguf::Q6K>}};

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
