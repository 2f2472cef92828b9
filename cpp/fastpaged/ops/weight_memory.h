// Memory for packed weights.
#pragma once

#include <cstddef>
#include <memory>

namespace fastpaged {

// num_bytes (> 0) of zeroed memory that begins with a page. Weights that are packed one after the other lie side by
// side in slabs of huge pages, where the system lends them: most matrices of a small model are smaller than such a
// page. A slab goes with the last weight in it; what is let go before is not used again. For any thread. Throws
// std::bad_alloc.
std::shared_ptr<std::byte> weight_memory(std::size_t num_bytes);

}  // namespace fastpaged
