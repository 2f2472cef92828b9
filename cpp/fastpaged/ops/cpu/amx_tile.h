// The eight tile registers of AMX, as a policy of the kernels in amx_linear.h and amx_products.h: linear_amx.cc issues
// the instructions, linear_amx_emulated.cc carries them out in software, so that everything around them is proved on a
// CPU without AMX.
// Each defines a class, local to its file, with
//
//   kIsaName               name of the op table
//   configure(rows)        rows[t] rows of 64 bytes for register t (0: not used); all registers become zero
//   zero<T>()              tilezero
//   load<T>(from, stride)  tileloadd: rows[T] rows of 64 bytes, `stride` bytes apart
//   store<T>(to, stride)   tilestored
//   dot<C, A, B>()         tdpbf16ps: C [m][16] float32 += A [m][16 pairs of k] * B [16 pairs of k][16] bfloat16
//
// What dot() computes, after the operation section of Intel's manual: for each element of C, the products of the even k
// of the instruction are summed by fused multiply-add from +0 in order of k, those of the odd k likewise; the two sums
// are added, and the result is added to C. Rounding is to nearest even, denormals count as zero and are flushed to
// zero; MXCSR is neither read nor written.
#pragma once

#include <array>
#include <cstdint>

namespace fastpaged::cpu {

constexpr int kNumTiles = 8;
constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

using TileRowCounts = std::array<std::uint8_t, kNumTiles>;

}  // namespace fastpaged::cpu
