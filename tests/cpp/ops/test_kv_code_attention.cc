// Attention over 8-bit codes has, in every table, the bits of attention over a cache that holds what they are worth: so
// that whatever holds of the one holds of the other.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fastpaged/ops/kv_codes.h"
#include "fastpaged/ops/kv_layout.h"
#include "fastpaged/ops/op_table.h"
#include "ops/kv_code_memory.h"
#include "ops/table_runs.h"

namespace fastpaged {
namespace {

struct Shape {
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t block_size;
  std::int32_t window = 0;
  float soft_cap = 0.0F;
  bool alibi = false;
};

struct Counts {  // of a sequence
  std::int32_t queries;
  std::int32_t context;
};

// Two caches of the same blocks: codes, and what they are worth. In both, slots that no query sees hold NaN.
template <typename A>
class Twins {
 public:
  Twins(const Shape& shape, DType dtype, const std::vector<Counts>& sequences, unsigned seed)
      : shape_(shape),
        random_(seed),
        codes_(dtype, blocks_of(shape, sequences), shape.num_kv_heads, shape.block_size, shape.head_dim),
        elements_(static_cast<std::size_t>(blocks_of(shape, sequences) * 2 * shape.num_kv_heads * shape.block_size *
                                           shape.head_dim),
                  rounded_to<A>(std::numeric_limits<float>::quiet_NaN())) {
    std::int64_t max_context = 1;
    for (const Counts& counts : sequences) {
      query_start_.push_back(query_start_.back() + counts.queries);
      context_lens_.push_back(counts.context);
      max_context = std::max<std::int64_t>(max_context, counts.context);
    }
    max_blocks_ = (max_context + shape.block_size - 1) / shape.block_size;
    std::vector<std::int32_t> free(static_cast<std::size_t>(blocks_of(shape, sequences)));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random_);
    for (const Counts& counts : sequences) {
      write(counts, dtype, free);
    }
    q_ = random_numbers<A>(random_, query_start_.back() * shape.num_heads * shape.head_dim, 2.0F);
    for (std::int64_t head = 0; shape.alibi && head < shape.num_heads; ++head) {
      slopes_.push_back(0.5F / static_cast<float>(1 + head));
    }
  }

  Floats attend_codes(const std::string& isa, int num_threads) { return attend(isa, codes_.view(), num_threads); }
  Floats attend_elements(const std::string& isa) { return attend(isa, element_view(), 1); }

 private:
  static std::int64_t blocks_of(const Shape& shape, const std::vector<Counts>& sequences) {
    std::int64_t count = 0;
    for (const Counts& counts : sequences) {
      count += (counts.context + shape.block_size - 1) / shape.block_size;
    }
    return count;
  }

  TensorView element_view() {
    const std::int64_t num_blocks = codes_.view().shape[0];
    return view_of(elements_, {num_blocks, 2, shape_.num_kv_heads, shape_.block_size, shape_.head_dim});
  }

  void write(const Counts& counts, DType dtype, std::vector<std::int32_t>& free) {
    const std::int32_t first_query = counts.context - counts.queries;
    const std::int64_t first_seen = shape_.window > 0 ? std::max(0, first_query - shape_.window + 1) : 0;
    for (std::int64_t block = 0; block < max_blocks_; ++block) {
      const bool is_used = block * shape_.block_size < counts.context;
      block_tables_.push_back(is_used ? free.back() : -1);
      for (std::int64_t slot = 0; is_used && slot < shape_.block_size; ++slot) {
        const std::int64_t position = block * shape_.block_size + slot;
        if (position >= first_seen && position < counts.context) {
          write_slot(dtype, free.back(), slot);
        }
      }
      if (is_used) {
        free.pop_back();
      }
    }
  }

  // Codes at random, but for those that are no numbers, and scales of several sizes.
  void write_slot(DType dtype, std::int64_t block, std::int64_t slot) {
    const KVCodeLayout<A> codes(codes_.view());
    const KVLayout<A> elements(element_view());
    for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
      for (const bool is_key : {true, false}) {
        std::uint8_t* const piece = is_key ? codes.keys(block, head) : codes.values(block, head);
        const float scale = std::exp2(static_cast<float>(random_() % 40) / 8.0F - 4.0F) / largest_code(dtype);
        std::memcpy(piece + codes.scale(slot), &scale, sizeof(scale));
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
          auto code = static_cast<std::uint8_t>(random_());
          code = dtype == DType::kFp8E5M2 && (code & 0x7C) == 0x7C ? code & 0x83 : code;
          const A worth = rounded_to<A>(value_of_code(dtype, code) * scale);
          if (is_key) {
            piece[codes.key_code(slot, d)] = code;
            elements.keys(block, head)[elements.key_element(slot, d)] = worth;
          } else {
            piece[codes.value_code(slot, d)] = code;
            elements.values(block, head)[elements.value_element(slot, d)] = worth;
          }
        }
      }
    }
  }

  Floats attend(const std::string& isa, const TensorView& cache, int num_threads) {
    std::vector<A> out(q_.size());
    ThreadPool pool(num_threads);
    const auto num_sequences = static_cast<std::int64_t>(context_lens_.size());
    op_table(isa).paged_attention({.q = view_of(q_, {query_start_.back(), shape_.num_heads, shape_.head_dim}),
                                   .kv_cache = cache,
                                   .query_start = view_of(query_start_, {num_sequences + 1}),
                                   .context_lens = view_of(context_lens_, {num_sequences}),
                                   .block_tables = view_of(block_tables_, {num_sequences, max_blocks_}),
                                   .alibi_slopes = view_of(slopes_, {shape_.num_heads}),
                                   .out = view_of(out, {query_start_.back(), shape_.num_heads * shape_.head_dim}),
                                   .scale = 0.25F,
                                   .soft_cap = shape_.soft_cap,
                                   .window = shape_.window},
                                  pool);
    return widened(out);
  }

  Shape shape_;
  std::mt19937 random_;
  CodeMemory codes_;
  std::vector<A> elements_;
  std::int64_t max_blocks_ = 0;
  std::vector<std::int32_t> query_start_ = {0};
  std::vector<std::int32_t> context_lens_;
  std::vector<std::int32_t> block_tables_;
  std::vector<A> q_;
  Floats slopes_;
};

bool same_bits(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

template <typename A>
void expect_the_bits_of_elements(const Shape& shape, DType dtype, const std::vector<Counts>& sequences, unsigned seed) {
  CAPTURE(shape.head_dim);
  CAPTURE(shape.block_size);
  CAPTURE(dtype);
  Twins<A> twins(shape, dtype, sequences, seed);
  for (const std::string& isa : supported_isas()) {
    CAPTURE(isa);
    const Floats want = twins.attend_elements(isa);
    REQUIRE(std::all_of(want.begin(), want.end(), [](float x) { return std::isfinite(x); }));
    CHECK(same_bits(twins.attend_codes(isa, 1), want));
    CHECK(same_bits(twins.attend_codes(isa, 2), want));
  }
}

const std::vector<Counts> kSequences = {{1, 1}, {3, 17}, {1, 256}, {40, 290}, {1, 257}, {2, 513}};

TEST_CASE_TEMPLATE("attention over codes has the bits of attention over what they are worth", A, BFloat16, float) {
  unsigned seed = 0;
  for (const DType dtype : kCodeDTypes) {
    for (const Shape& shape : {Shape{.num_heads = 3, .num_kv_heads = 1, .head_dim = 64, .block_size = 16},
                               {.num_heads = 2, .num_kv_heads = 2, .head_dim = 80, .block_size = 48, .window = 21},
                               {.num_heads = 4,
                                .num_kv_heads = 2,
                                .head_dim = 48,
                                .block_size = 5,
                                .window = 90,
                                .soft_cap = 4.0F,
                                .alibi = true},
                               {.num_heads = 8, .num_kv_heads = 1, .head_dim = 128, .block_size = 256, .alibi = true},
                               {.num_heads = 1, .num_kv_heads = 1, .head_dim = 32, .block_size = 1}}) {
      expect_the_bits_of_elements<A>(shape, dtype, kSequences, ++seed);
    }
  }
}

TEST_CASE_TEMPLATE("codes serve every head size", A, BFloat16, float) {
  for (std::int64_t head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (const DType dtype : kCodeDTypes) {
      for (const std::int64_t block_size : {16, 7}) {
        expect_the_bits_of_elements<A>(
            {.num_heads = 2, .num_kv_heads = 1, .head_dim = head_dim, .block_size = block_size}, dtype,
            {{1, 40}, {21, 33}}, static_cast<unsigned>(head_dim));
      }
    }
  }
}

// One query that sees one key: what it reads of a value that has every code.
template <typename A>
std::vector<A> read_every_code(const std::string& isa, DType dtype, std::int64_t block_size, float scale) {
  CodeMemory memory(dtype, 1, 1, block_size, 256);
  const KVCodeLayout<A> layout(memory.view());
  std::memcpy(layout.keys(0, 0) + layout.scale(0), &scale, sizeof(scale));
  std::memcpy(layout.values(0, 0) + layout.scale(0), &scale, sizeof(scale));
  for (std::int64_t d = 0; d < 256; ++d) {
    layout.keys(0, 0)[layout.key_code(0, d)] = 0;
    layout.values(0, 0)[layout.value_code(0, d)] = static_cast<std::uint8_t>(d);
  }
  std::vector<A> q(256);
  std::vector<A> out(256);
  std::vector<std::int32_t> query_start{0, 1};
  std::vector<std::int32_t> context_lens{1};
  std::vector<std::int32_t> block_tables{0};
  ThreadPool pool(1);
  op_table(isa).paged_attention({.q = view_of(q, {1, 1, 256}),
                                 .kv_cache = memory.view(),
                                 .query_start = view_of(query_start, {2}),
                                 .context_lens = view_of(context_lens, {1}),
                                 .block_tables = view_of(block_tables, {1, 1}),
                                 .out = view_of(out, {1, 256})},
                                pool);
  return out;
}

TEST_CASE_TEMPLATE("every table reads every code as what it is worth, and all as NaN with a scale of NaN", A, BFloat16,
                   float) {
  for (const DType dtype : kCodeDTypes) {
    for (const std::string& isa : supported_isas()) {
      CAPTURE(isa);
      CAPTURE(dtype);
      for (const std::int64_t block_size : {16, 5}) {
        for (const float scale : {1.0F, 0.3F, 3e-20F}) {
          const std::vector<A> read = read_every_code<A>(isa, dtype, block_size, scale);
          for (unsigned code = 0; code < 256; ++code) {
            const float value = value_of_code(dtype, static_cast<std::uint8_t>(code));
            if (std::isfinite(value)) {
              REQUIRE((to_float(read[code]) == to_float(rounded_to<A>(value * scale))));
            }
          }
        }
        const std::vector<A> read = read_every_code<A>(isa, dtype, block_size, std::nanf(""));
        CHECK((std::all_of(read.begin(), read.end(), [](A x) { return std::isnan(to_float(x)); })));
      }
    }
  }
}

}  // namespace
}  // namespace fastpaged
