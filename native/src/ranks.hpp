// Processes of one machine that compute one model together: memory that all of them have mapped, in which they meet.
//
// Sums are in the order of ranks, so that all ranks have the same bits, and the same ones every time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace penstock {

class Ranks {
public:
    // `memory` begins with a line, has `bytes_for(size)` bytes, all zero before the first rank begins, and outlives this.
    // None waits for another rank for more than `patience` seconds.
    Ranks(uint8_t *memory, int rank, int size, double patience);

    static size_t bytes_for(int size);

    int rank() const { return rank_; }
    int size() const { return size_; }

    // Values of all ranks, added.
    void sum(float *values, int64_t count);

    // Rows of which this rank reads what others have; others it only writes.
    struct Span {
        int64_t first, count;
    };

    // Columns of all ranks beside each other, `widths` of each, as [rows that are read, all] in `whole`; in all ranks, or in the
    // first alone, and then `whole` of others is not written.
    void gather(const float *values, int64_t rows, const std::vector<int64_t> &widths, bool everywhere, float *whole) {
        gather(values, rows, widths, everywhere, whole, {0, rows});
    }
    void gather(const float *values, int64_t rows, const std::vector<int64_t> &widths, bool everywhere, float *whole, Span read);

    // All ranks have come here.
    void meet();

    // What is done each time this rank is about to meet the others; may be empty.
    void at_meeting(std::function<void()> action) { at_meeting_ = std::move(action); }

    // Those who wait, or will wait, are told that it is in vain.
    void part();

    // This rank's process is not stopped: to be said again and again, whatever it computes, by another thread.
    void beat();
    // How often a rank has said so.
    uint32_t beats(int rank) const;

    // Bytes that this rank has written for others so far, and nanoseconds that it has waited for them.
    int64_t written() const { return written_.load(std::memory_order_relaxed); }
    int64_t waited() const { return waited_.load(std::memory_order_relaxed); }

private:
    struct Place;
    Place &place(int rank) const;
    float *slot(int rank) const;
    void publish(const float *values, int64_t count);
    void wait_for(int rank, uint32_t turn);

    uint8_t *memory_;
    const int rank_, size_;
    const double patience_;
    uint32_t turn_ = 0;
    // Slots take turns: who writes in one has met all since they read it.
    int side_ = 0;
    std::function<void()> at_meeting_;
    std::atomic<int64_t> written_{0}, waited_{0};
};

} // namespace penstock
