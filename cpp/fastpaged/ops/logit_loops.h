// The loops of LogitPasses, written once over vectors of kLanes float32: GCC's and Clang's vector types, no intrinsics.
//
// REQUIRES: included after everything else, inside a namespace (and a target region, ops/cpu/target_region.h) of its
// own, where kLanes, a divisor of 16, is defined. Everything here has internal linkage.

using Lanes = float __attribute__((vector_size(kLanes * 4)));
using IntLanes = std::int32_t __attribute__((vector_size(kLanes * 4)));  // also a comparison's: -1 is true, 0 false
using UintLanes = std::uint32_t __attribute__((vector_size(kLanes * 4)));

static inline Lanes load_lanes(const float* values) {
  Lanes lanes;
  __builtin_memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

static inline void store_lanes(const Lanes& lanes, float* values) {
  __builtin_memcpy(values, &lanes, sizeof(lanes));
}

// z <= 0, -inf included.
static inline Lanes exp_nonpositive(const Lanes& z) {
  constexpr float kLowest = -87.0F;  // exp(-87) is nearly the smallest result that is no subnormal
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 0x1.8p23F;  // adding it leaves the nearest integer in the low bits

  const Lanes lowest = Lanes{} + kLowest;
  const Lanes x = z > lowest ? z : lowest;
  const Lanes shifted = x * kLog2E + kRound;
  const Lanes n = shifted - kRound;
  const Lanes r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  // e^r = 1 + r + r^2 g(r); g is the polynomial of degree 4 that makes the largest relative error of e^r smallest
  // (3.1e-9 before rounding, fitted for this file).
  Lanes g = r * 0x1.6a2434p-10F + 0x1.1239e2p-7F;
  g = g * r + 0x1.5558f2p-5F;
  g = g * r + 0x1.555492p-3F;
  g = g * r + 0x1.fffffcp-2F;
  const Lanes mantissa = (g * r * r + r) + 1.0F;
  // The low bits of `shifted` are n: moved into the exponent's place they multiply by 2^n.
  const UintLanes value = (UintLanes)mantissa + ((UintLanes)shifted << 23);
  return (Lanes)((IntLanes)value & (IntLanes)(z >= lowest));
}

static inline bool any_lane(const IntLanes& condition) {
  std::int32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    any |= condition[lane];
  }
  return any != 0;
}

static bool block_maxima(const float* logits, std::int64_t num_blocks, float* maxima) {
  IntLanes nan = {};
  for (std::int64_t b = 0; b < num_blocks; ++b, logits += kLogitBlock) {
    constexpr int kChains = 32 / kLanes;  // independent, so that a comparison need not wait for the one before
    Lanes max[kChains];
    for (int chain = 0; chain < kChains; ++chain) {
      max[chain] = load_lanes(logits + chain * kLanes);
      nan |= max[chain] != max[chain];
    }
    for (int i = kChains * kLanes; i < kLogitBlock; i += kChains * kLanes) {
      for (int chain = 0; chain < kChains; ++chain) {
        const Lanes x = load_lanes(logits + i + chain * kLanes);
        max[chain] = x > max[chain] ? x : max[chain];
        nan |= x != x;
      }
    }
    for (int chain = 1; chain < kChains; ++chain) {
      max[0] = max[chain] > max[0] ? max[chain] : max[0];
    }
    float largest = max[0][0];
    for (int lane = 1; lane < kLanes; ++lane) {
      largest = max[0][lane] > largest ? max[0][lane] : largest;
    }
    maxima[b] = largest;
  }
  return any_lane(nan);
}

static inline double sum_of_block(const float* weights) {
  constexpr int kChains = 8;
  double sum[kChains] = {};
  for (int i = 0; i < kLogitBlock; i += kChains) {
    for (int chain = 0; chain < kChains; ++chain) {
      sum[chain] += static_cast<double>(weights[i + chain]);
    }
  }
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static inline void weigh_block(const WeighParams& p, std::int64_t b, float* weights) {
  const float* logits = p.logits + b * kLogitBlock;
  // Where nothing is cut off, weights are 0 where anything could be.
  const bool cuts = p.cutoff != -__builtin_inff();
  const std::int64_t last_tie = p.last_tie - b * kLogitBlock;
  const std::int32_t last = static_cast<std::int32_t>(last_tie < kLogitBlock ? last_tie : kLogitBlock);
  IntLanes index = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    index[lane] = lane;
  }
  for (int i = 0; i < kLogitBlock; i += kLanes, index += kLanes) {
    const Lanes x = load_lanes(logits + i);
    const Lanes weight = exp_nonpositive((x - p.max) / p.temperature);
    const IntLanes kept = (x > p.cutoff) | ((x == p.cutoff) & (index <= last));
    store_lanes(cuts ? (Lanes)((IntLanes)weight & kept) : weight, weights + i);
  }
}

static void weigh(const WeighParams& p) {
  float scratch[kLogitBlock];
  for (std::int64_t b = 0; b < p.num_blocks; ++b) {
    if (p.block_max[b] >= p.cutoff) {
      float* weights = p.weights == nullptr ? scratch : p.weights + b * kLogitBlock;
      weigh_block(p, b, weights);
      p.block_sums[b] = sum_of_block(weights);
    } else {
      p.block_sums[b] = 0.0;
    }
  }
}

static std::int64_t count_from(const float* logits, std::int64_t size, float floor) {
  constexpr std::int64_t kStretch = std::int64_t{kLanes} << 20;  // a lane's count stays small
  std::int64_t count = 0;
  std::int64_t i = 0;
  while (size - i >= kLanes) {
    const std::int64_t whole = i + (size - i) / kLanes * kLanes;
    const std::int64_t end = whole < i + kStretch ? whole : i + kStretch;
    IntLanes below_zero = {};
    for (; i < end; i += kLanes) {
      below_zero += load_lanes(logits + i) >= floor;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      count -= below_zero[lane];
    }
  }
  for (; i < size; ++i) {
    count += logits[i] >= floor ? 1 : 0;
  }
  return count;
}
