#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>

#include "fastpaged/base/cpu_features.h"

namespace fastpaged {
namespace {

// A made-up /sys/fs/cgroup and /proc/self/cgroup, removed at the end.
class FakeCgroups {
 public:
  FakeCgroups()
      : root_(std::filesystem::temp_directory_path() /
              ("fastpaged_cgroups_" + std::to_string(std::random_device{}()))) {}
  ~FakeCgroups() { std::filesystem::remove_all(root_); }
  FakeCgroups(const FakeCgroups&) = delete;
  FakeCgroups& operator=(const FakeCgroups&) = delete;

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] std::optional<double> quota(const std::string& membership) const {
    write("membership", membership);
    return cgroup_cpu_quota(root_ / "membership", root_ / "mount");
  }

 private:
  std::filesystem::path root_;
};

TEST_CASE("no control group and no limit are no quota") {
  const FakeCgroups cgroups;
  CHECK_FALSE(cgroups.quota(""));
  CHECK_FALSE(cgroups.quota("0::/a/b\n"));
  cgroups.write("mount/a/b/cpu.max", "max 100000\n");
  CHECK_FALSE(cgroups.quota("0::/a/b\n"));
}

TEST_CASE("the tightest group from here to the root counts (v2)") {
  const FakeCgroups cgroups;
  cgroups.write("mount/a/b/cpu.max", "400000 100000\n");
  CHECK(cgroups.quota("0::/a/b\n") == 4.0);
  cgroups.write("mount/a/cpu.max", "250000 100000\n");
  CHECK(cgroups.quota("0::/a/b\n") == 2.5);
  CHECK(cgroups.quota("0::/a\n") == 2.5);
}

TEST_CASE("a path of the host, absent inside a container, still finds the container's own limit") {
  const FakeCgroups cgroups;
  cgroups.write("mount/cpu.max", "150000 100000\n");
  CHECK(cgroups.quota("0::/docker/0123\n") == 1.5);
  CHECK(cgroups.quota("0::/../../other\n") == 1.5);
}

TEST_CASE("v1 quotas lie under the cpu controller, and -1 is no limit") {
  const FakeCgroups cgroups;
  const std::string membership = "11:memory:/x\n4:cpu,cpuacct:/job\n3:cpuset:/x\n0::/ignored\n";
  cgroups.write("mount/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  cgroups.write("mount/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  CHECK_FALSE(cgroups.quota(membership));
  cgroups.write("mount/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  CHECK(cgroups.quota(membership) == 3.0);
}

TEST_CASE("at least one CPU is available, and the features do not change") {
  CHECK(available_cpus() >= 1);
  CHECK(&cpu_features() == &cpu_features());
}

TEST_CASE("each instruction set includes the smaller ones, and AVX2 is what the compiler's own detection finds") {
  CHECK((cpu_features().avx512_bf16 || !cpu_features().amx_bf16));
  CHECK((cpu_features().avx2_fma || !cpu_features().avx512_bf16));
#if defined(__x86_64__)
  CHECK(cpu_features().avx2_fma ==
        (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")));
  CHECK(cpu_features().avx512_bf16 ==
        (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16")));
#endif
}

}  // namespace
}  // namespace fastpaged
