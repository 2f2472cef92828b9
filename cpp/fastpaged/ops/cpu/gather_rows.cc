#include "fastpaged/ops/cpu/for_each_tile.h"
#include "fastpaged/ops/cpu/row_math.h"
#include "fastpaged/ops/cpu/vector_ops.h"
#include "fastpaged/ops/validate.h"

namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA {

void gather_rows(const GatherRowsParams& params, ThreadPool& pool) {
  validate(params);
  const auto* rows = params.rows.ptr<const std::int32_t>();
  const std::int64_t size = params.out.shape[1];
  for_each_row(pool, params.out.shape[0], size,
               [&](std::int64_t r) { convert(params.x.row<const float>(rows[r]), size, params.out.row<float>(r)); });
}

}  // namespace fastpaged::cpu::FASTPAGED_VECTOR_ISA
