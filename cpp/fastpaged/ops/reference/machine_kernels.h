// What plain loops reach: the limit of the scalar table.
#pragma once

#include "fastpaged/ops/machine_kernels.h"

namespace fastpaged::reference {

MachineKernels machine_kernels();

}  // namespace fastpaged::reference
