// What this CPU and this process may use, found out at run time.
#pragma once

#include <filesystem>
#include <optional>

namespace fastpaged {

struct CpuFeatures {
  bool avx2_fma = false;     // avx, avx2, fma and f16c, and the OS keeps their registers
  bool avx512_bf16 = false;  // and avx512f, bw, vl, dq and bf16, and the OS keeps their registers
  bool amx_bf16 = false;     // amx_tile and amx_bf16, and the OS has granted the tiles to this process
};

// Asked once per process: on Linux the first call also asks for permission to use the AMX tiles.
const CpuFeatures& cpu_features();

// CPUs this process may keep busy: the affinity mask and the cgroup's quota (rounded down), at least 1.
int available_cpus();

// The CPU quota, in CPUs, of the control groups (v1 or v2) that `membership` (/proc/self/cgroup) names and their
// parents, looked up under `root` (/sys/fs/cgroup). None if there is no limit.
std::optional<double> cgroup_cpu_quota(const std::filesystem::path& membership, const std::filesystem::path& root);

}  // namespace fastpaged
