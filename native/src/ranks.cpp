#include "ranks.hpp"

#include "formats.hpp"
#include "pool.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {

namespace {

// Values that a rank gives others at a time: what two of them have of both sides stays in a core's own cache.
constexpr int64_t kSlot = 32768;
// What a thread adds, or copies, at a time.
constexpr int64_t kPart = 8192;
// Looks before a rank sleeps. It does not yield: another program would have its core for milliseconds then.
constexpr int kSpins = 4000;
constexpr auto kNap = std::chrono::milliseconds(50);

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free, "Processes share these words.");

void breathe() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// Sleeps while the word has this value, for a nap at most.
void sleep_on(Word &word, uint32_t value) {
#if defined(__linux__)
    const timespec nap{0, std::chrono::nanoseconds(kNap).count()};
    syscall(SYS_futex, &word, FUTEX_WAIT, value, &nap, nullptr, 0);
#else
    if (word.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void wake(Word &word) {
#if defined(__linux__)
    syscall(SYS_futex, &word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
#else
    static_cast<void>(word);
#endif
}

template <typename Work> void in_parts(int64_t count, const Work &work) {
    const int64_t parts = (count + kPart - 1) / kPart;
    if (parts <= 1) return work(0, count);
    pool()->run(parts, [&](int64_t part) { work(part * kPart, std::min(count, (part + 1) * kPart)); });
}

} // namespace

// How far a rank has come, in a line of its own.
struct alignas(kLine) Ranks::Place {
    Word turn, sleepers, parted, beats;
};

Ranks::Ranks(uint8_t *memory, int rank, int size, double patience)
    : memory_(memory), rank_(rank), size_(size), patience_(patience) {}

size_t Ranks::bytes_for(int size) {
    return static_cast<size_t>(size) * (sizeof(Place) + 2 * kSlot * sizeof(float));
}

Ranks::Place &Ranks::place(int rank) const { return reinterpret_cast<Place *>(memory_)[rank]; }

float *Ranks::slot(int rank) const {
    uint8_t *first = memory_ + static_cast<size_t>(size_) * sizeof(Place);
    return reinterpret_cast<float *>(first) + (static_cast<int64_t>(side_) * size_ + rank) * kSlot;
}

void Ranks::part() {
    place(rank_).parted.store(1);
    wake(place(rank_).turn);
}

void Ranks::beat() { place(rank_).beats.fetch_add(1); }

uint32_t Ranks::beats(int rank) const { return place(rank).beats.load(); }

void Ranks::meet() {
    if (at_meeting_) at_meeting_();
    Place &own = place(rank_);
    own.turn.store(++turn_);
    if (own.sleepers.load() != 0) wake(own.turn);
    const auto begun = std::chrono::steady_clock::now();
    for (int other = 0; other < size_; ++other)
        if (other != rank_) wait_for(other, turn_);
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begun;
    waited_.fetch_add(waited.count(), std::memory_order_relaxed);
}

void Ranks::wait_for(int other, uint32_t turn) {
    Place &its = place(other);
    const auto come = [&] { return static_cast<int32_t>(its.turn.load() - turn) >= 0; };
    for (int spin = 0; spin < kSpins; ++spin) {
        if (come()) return;
        breathe();
    }
    // Naps count, and not the time between them: this process may have been stopped itself.
    std::chrono::duration<double> waited{0};
    auto last = std::chrono::steady_clock::now();
    its.sleepers.fetch_add(1);
    while (!come()) {
        int apart = -1;
        for (int rank = 0; rank < size_; ++rank)
            if (place(rank).parted.load() != 0) apart = rank;
        const auto now = std::chrono::steady_clock::now();
        waited += std::min<std::chrono::duration<double>>(now - last, kNap);
        last = now;
        if (apart >= 0 || waited.count() > patience_) {
            its.sleepers.fetch_sub(1);
            part();
            throw std::runtime_error(apart >= 0 ? "rank " + std::to_string(apart) + " has ended"
                                                : "rank " + std::to_string(other) + " did not come");
        }
        const uint32_t seen = its.turn.load();
        if (static_cast<int32_t>(seen - turn) < 0) sleep_on(its.turn, seen);
    }
    its.sleepers.fetch_sub(1);
}

void Ranks::publish(const float *values, int64_t count) {
    float *own = slot(rank_);
    in_parts(count, [&](int64_t first, int64_t last) {
        std::memcpy(own + first, values + first, static_cast<size_t>(last - first) * sizeof(float));
    });
    written_.fetch_add(count * static_cast<int64_t>(sizeof(float)), std::memory_order_relaxed);
}

void Ranks::sum(float *values, int64_t count) {
    for (int64_t begin = 0; begin < count; begin += kSlot) {
        const int64_t some = std::min(kSlot, count - begin);
        float *into = values + begin;
        publish(into, some);
        meet();
        in_parts(some, [&](int64_t first, int64_t last) {
            // Two are the same sum in either order, and this rank's own values need not be read from its slot.
            const float *zeroth = size_ == 2 ? into : slot(0), *next = slot(size_ == 2 ? 1 - rank_ : 1);
            for (int64_t i = first; i < last; ++i) into[i] = zeroth[i] + next[i];
            for (int rank = 2; rank < size_; ++rank) {
                const float *more = slot(rank);
                for (int64_t i = first; i < last; ++i) into[i] += more[i];
            }
        });
        side_ ^= 1;
    }
}

void Ranks::gather(const float *values, int64_t rows, const std::vector<int64_t> &widths, bool everywhere, float *whole,
                   Span read) {
    int64_t all = 0, widest = 0;
    for (const int64_t width : widths) {
        all += width;
        widest = std::max(widest, width);
    }
    const bool reads = everywhere || rank_ == 0;
    // Each rank's values are sent as they are, one piece after another: as many as the widest has.
    for (int64_t begin = 0; begin < rows * widest; begin += kSlot) {
        const int64_t left = rows * widths[static_cast<size_t>(rank_)] - begin;
        if (left > 0 && (everywhere || rank_ != 0)) publish(values + begin, std::min(kSlot, left));
        meet();
        int64_t column = 0;
        for (int rank = 0; reads && rank < size_; ++rank) {
            const int64_t width = widths[static_cast<size_t>(rank)];
            const int64_t end = std::min((read.first + read.count) * width, begin + kSlot);
            const float *from = rank == rank_ ? values + begin : slot(rank);
            for (int64_t at = std::max(begin, read.first * width); at < end;) {
                const int64_t row = at / width - read.first, inside = at % width, some = std::min(width - inside, end - at);
                std::memcpy(whole + row * all + column + inside, from + (at - begin),
                            static_cast<size_t>(some) * sizeof(float));
                at += some;
            }
            column += width;
        }
        side_ ^= 1;
    }
}

} // namespace penstock
