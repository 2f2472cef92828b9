// This test binary's own operator new counts.
#pragma once

namespace fastpaged::testing {

int num_allocations();  // so far, by any thread

}  // namespace fastpaged::testing
