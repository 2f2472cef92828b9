// Vectors of float32, of the instruction set a file is compiled for.
//
// Kernels that work with any vectors are compiled once per FASTPAGED_VECTOR_ISA, avx2 or avx512, and live in namespace
// fastpaged::cpu::FASTPAGED_VECTOR_ISA. vector_avx2.h and vector_avx512.h give both the same functions:
//
//   kIsaName                           name of the op table
//   Floats                             kLanes float32
//   load(from, count)                  the first `count` lanes (none below 1, all from kLanes on), of float32 or
//                                      bfloat16; the others are zero
//   store(to, x, count)                likewise; nothing else is written. bfloat16 is rounded to the nearest, ties to
//                                      even; NaN stays a quiet NaN, denormals become zero
//   zero(), set1(x)
//   add, sub, mul, div, sqrt
//   fma(a, b, c) = a b + c, fms(a, b, c) = a b - c, fnma(a, b, c) = c - a b, rounded once
//   max(a, b), min(a, b)               b where one of them is NaN
//   abs(x), copy_sign(x, sign)
//   if_less(a, b, yes, no)             yes in the lanes where a < b, no elsewhere and where one of them is NaN
//   first_lanes(count, x, other)       x in the first `count` lanes, `other` in the rest
//   round_to_integer(x)                ties to even
//   times_power_of_2(x, n)             x 2^n for an integral n in [-190, 190]
//   sum_of_lanes(x), max_of_lanes(x)   one fixed tree: lanes kLanes / 2 apart, then half of that, ..., 1
//   first_lane(x), lane_numbers()      a float; 0, 1, 2, ...
//   transpose(rows)                    kLanes x kLanes, in place
//
//   Pairs                              2 kLanes bfloat16: kLanes pairs of neighbours
//   load_pairs(from)                   2 kLanes elements
//   broadcast_pair(from)               two elements, in every lane
//   round_to_pairs(low, high)          pairs of neighbours, first those of low; rounded as by store
//   pair_up(first, second)             a pair of each lane; both are values of bfloat16, and kept bit by bit
//   store_pairs(to, pairs)
//   store_alternate(to, from)          kLanes elements to to[0], to[2], ...; those between are not touched
//   first_of(pairs), second_of(pairs)  of each pair, as Floats
//   one_of_each(pairs, which)          pairs with the other element zero; which: 0 or 1
//   dot(a, b, c)                       c, plus the products of the two elements of each pair; one instruction where
//                                      kHasDot
//
// Include it after everything else; open a region with FASTPAGED_BEGIN_TARGET(FASTPAGED_VECTOR_FEATURES), and define
// only functions and templates of internal linkage (static) inside. NaN and denormals as for_each_tile.h sets them.
#pragma once

#include "fastpaged/base/tensor_view.h"
#include "fastpaged/ops/cpu/intrinsics.h"
#include "fastpaged/ops/cpu/target_region.h"

#ifndef FASTPAGED_VECTOR_ISA
#error "FASTPAGED_VECTOR_ISA must be avx2 or avx512"
#endif
#define FASTPAGED_LANES_avx2 8
#define FASTPAGED_LANES_avx512 16
#define FASTPAGED_JOIN(a, b) a##b
#define FASTPAGED_LANES_OF(isa) FASTPAGED_JOIN(FASTPAGED_LANES_, isa)

#if FASTPAGED_LANES_OF(FASTPAGED_VECTOR_ISA) == 8
#include "fastpaged/ops/cpu/vector_avx2.h"
#else
#include "fastpaged/ops/cpu/vector_avx512.h"
#endif
