// The x86 kernels of ops/machine_kernels.h. Callable anywhere; what they point to, only where cpu_features() allows.
#pragma once

#include "fastpaged/ops/machine_kernels.h"

namespace fastpaged::cpu {

namespace avx2 {
MachineKernels machine_kernels();
}  // namespace avx2

namespace avx512 {
MachineKernels machine_kernels();
}  // namespace avx512

// The avx512 kernels, but for bfloat16.
MachineKernels amx_machine_kernels();

}  // namespace fastpaged::cpu
