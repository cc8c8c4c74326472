// Memory that grows and is kept: a step must not wait for the allocator.
#pragma once

#include "formats.hpp"

#include <cstdlib>
#include <memory>
#include <new>

namespace penstock {

static inline int64_t aligned(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

class Memory {
public:
    // At least `bytes` bytes that begin with a line; what was in them before may be lost.
    uint8_t *take(int64_t bytes) {
        if (bytes > size_) {
            data_.reset(static_cast<uint8_t *>(std::aligned_alloc(kLine, static_cast<size_t>(aligned(bytes)))));
            if (!data_) throw std::bad_alloc();
            size_ = aligned(bytes);
        }
        return data_.get();
    }

private:
    struct Free {
        void operator()(uint8_t *pointer) const { std::free(pointer); }
    };
    std::unique_ptr<uint8_t, Free> data_;
    int64_t size_ = 0;
};

} // namespace penstock
