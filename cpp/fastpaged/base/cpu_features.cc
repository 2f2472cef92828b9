#include "fastpaged/base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

namespace fastpaged {
namespace {

#if defined(__x86_64__)

bool has_bits(std::uint64_t value, std::uint64_t bits) {
  return (value & bits) == bits;
}
constexpr std::uint32_t bit(int i) {
  return std::uint32_t{1} << i;
}

// XCR0: the register states the OS saves. REQUIRES: OSXSAVE.
std::uint64_t saved_states() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

// The tile registers must be asked for, once per process; other systems do not offer them.
bool may_use_amx_tiles() {
#if defined(__linux__)
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
#else
  return false;
#endif
}

struct CpuId {
  std::uint32_t eax = 0;
  std::uint32_t ebx = 0;
  std::uint32_t ecx = 0;
  std::uint32_t edx = 0;
};

// All zero where this CPU has no such leaf.
CpuId cpu_id(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  CpuId id;
  __get_cpuid_count(leaf, subleaf, &id.eax, &id.ebx, &id.ecx, &id.edx);
  return id;
}

CpuFeatures detect() {
  constexpr std::uint64_t kYmmStates = 0x6;       // SSE, AVX
  constexpr std::uint64_t kZmmStates = 0xE6;      // and opmask, ZMM_Hi256, Hi16_ZMM
  constexpr std::uint64_t kTileStates = 0x60000;  // XTILECFG, XTILEDATA
  CpuFeatures features;
  const CpuId basic = cpu_id(1);
  if (!has_bits(basic.ecx, bit(27))) {  // OSXSAVE
    return features;
  }
  const std::uint64_t states = saved_states();
  const CpuId extended = cpu_id(7);
  // FMA, AVX, F16C; AVX2
  const bool avx2 = has_bits(basic.ecx, bit(12) | bit(28) | bit(29)) && has_bits(extended.ebx, bit(5));
  const bool avx512 = has_bits(extended.ebx, bit(16) | bit(17) | bit(30) | bit(31));  // F, DQ, BW, VL
  const bool amx = has_bits(extended.edx, bit(22) | bit(24));                         // AMX-BF16, AMX-TILE
  features.avx2_fma = avx2 && has_bits(states, kYmmStates);
  features.avx512_bf16 =
      features.avx2_fma && avx512 && has_bits(cpu_id(7, 1).eax, bit(5)) && has_bits(states, kZmmStates);
  features.amx_bf16 = features.avx512_bf16 && amx && has_bits(states, kTileStates) && may_use_amx_tiles();
  return features;
}

#else

CpuFeatures detect() {
  return {};
}

#endif

std::optional<double> ratio(const std::string& quota, const std::string& period) {
  try {
    const double q = std::stod(quota);  // "max" (v2) throws, -1 (v1) is no limit
    const double p = std::stod(period);
    return q > 0 && p > 0 ? std::optional<double>(q / p) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<double> group_quota(const std::filesystem::path& group) {
  std::string quota;
  std::string period;
  if (std::ifstream v2(group / "cpu.max"); v2 >> quota >> period) {
    return ratio(quota, period);
  }
  if (std::ifstream(group / "cpu.cfs_quota_us") >> quota && std::ifstream(group / "cpu.cfs_period_us") >> period) {
    return ratio(quota, period);
  }
  return std::nullopt;
}

int cpus_in_affinity_mask() {
#if defined(__linux__)
  constexpr int kMaxCpus = 1 << 14;
  cpu_set_t* mask = CPU_ALLOC(kMaxCpus);
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  const bool known = mask != nullptr && sched_getaffinity(0, bytes, mask) == 0;
  const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
  CPU_FREE(mask);
  if (count > 0) {
    return count;
  }
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

int available_cpus() {
  const int cpus = cpus_in_affinity_mask();
  const std::optional<double> quota = cgroup_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  return quota ? std::clamp(static_cast<int>(std::floor(std::min(*quota, 1e6))), 1, cpus) : cpus;
}

std::optional<double> cgroup_cpu_quota(const std::filesystem::path& membership, const std::filesystem::path& root) {
  std::optional<double> least;
  std::ifstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // v2: "0::/path"; v1: "4:cpu,cpuacct:/path", mounted under its controllers' names.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) {
      continue;
    }
    const std::filesystem::path mount = root / controllers;
    // Inside a container the path may be the host's, absent here: the walk up ends at the mount, which is there.
    std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();
    for (bool more = true; more; group = group.parent_path()) {
      more = !group.empty();
      const std::optional<double> quota = group_quota(mount / group);
      if (quota && (!least || *quota < *least)) {
        least = quota;
      }
    }
  }
  return least;
}

}  // namespace fastpaged
