#include "pool.hpp"

#include <chrono>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace penstock {

namespace {

// Jobs follow each other within microseconds in a step, and so do the ends of their last tasks: whoever waits for one looks
// that long before it sleeps.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr int kLooksPerClock = 64;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Whether something has come to be within `kSpin`.
template <typename Condition> bool comes_soon(const Condition &condition) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int look = 0; look < kLooksPerClock; ++look) {
            if (condition()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

uint64_t range(uint64_t first, uint64_t last) { return last << 32 | first; }
uint64_t first_of(uint64_t range) { return range & 0xffffffffu; }
uint64_t last_of(uint64_t range) { return range >> 32; }

// Whether this thread is in a task.
thread_local bool t_in_task = false;
thread_local uint64_t t_turns = 0;

struct Shared {
    std::mutex mutex;
    std::shared_ptr<Pool> pool;
    int threads = 1;
};

Shared *make_shared_state();

// Never destroyed: at the end of the process its threads just end with it, whatever they are doing.
Shared *shared = make_shared_state();

Shared *make_shared_state() {
#if defined(__unix__) || defined(__APPLE__)
    // Of a forked child's threads only the one that forked is there, so what waits for the others is left behind.
    pthread_atfork(nullptr, nullptr, [] {
        auto *fresh = new Shared;
        fresh->threads = shared->threads;
        shared = fresh;
    });
#endif
    return new Shared;
}

} // namespace

Pool::Pool(int threads) : ranges_(static_cast<size_t>(threads)) {
    for (size_t thread = 1; thread < ranges_.size(); ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(parking_);
        closing_ = true;
    }
    bell_.notify_all();
    for (auto &worker : workers_) worker.join();
}

void Pool::do_tasks(size_t thread) {
    const Job job = job_;
    ++t_turns;
    std::atomic<uint64_t> &own = ranges_[thread].left;
    do {
        uint64_t left = own.load();
        while (first_of(left) < last_of(left)) {
            const uint64_t task = first_of(left);
            if (!own.compare_exchange_weak(left, range(task + 1, last_of(left)))) continue;
            t_in_task = true;
            job.function(job.context, static_cast<int64_t>(task));
            t_in_task = false;
            left = own.load();
        }
    } while (steal(thread));
}

// Takes the upper half of what some other thread has left; false where none has anything.
bool Pool::steal(size_t thread) {
    for (size_t step = 1; step < ranges_.size(); ++step) {
        std::atomic<uint64_t> &other = ranges_[(thread + step) % ranges_.size()].left;
        uint64_t left = other.load();
        while (first_of(left) < last_of(left)) {
            const uint64_t middle = first_of(left) + (last_of(left) - first_of(left)) / 2;
            if (!other.compare_exchange_weak(left, range(first_of(left), middle))) continue;
            ranges_[thread].left.store(range(middle, last_of(left)));
            return true;
        }
    }
    return false;
}

void Pool::run(int64_t tasks, Function function, const void *context) {
    if (tasks <= 0) return;
    const auto all = static_cast<uint64_t>(tasks);
    const auto do_all = [&] {
        for (uint64_t task = 0; task < all; ++task) function(context, static_cast<int64_t>(task));
    };
    if (t_in_task) return do_all();
    std::lock_guard<std::mutex> turn(callers_);
    if (tasks == 1 || workers_.empty()) {
        ++t_turns;
        t_in_task = true;
        do_all();
        t_in_task = false;
        return;
    }
    job_ = {function, context, tasks};
    for (size_t thread = 0; thread < ranges_.size(); ++thread)
        ranges_[thread].left.store(range(all * thread / ranges_.size(), all * (thread + 1) / ranges_.size()));
    open_.store(++jobs_);
    if (parked_.load() > 0) {
        // The lock orders this after a worker's last look at `open_` before it sleeps.
        std::lock_guard<std::mutex> lock(parking_);
        bell_.notify_all();
    }
    do_tasks(0);
    // A worker that still sleeps is not waited for: it finds the door closed.
    open_.store(0);
    wait_for_workers();
}

void Pool::wait_for_workers() {
    auto all_left = [&] { return inside_.load() == 0; };
    if (comes_soon(all_left)) return;
    // Another program has the processor of a worker that is in the midst of a task. It can only go on at this one's.
    std::unique_lock<std::mutex> lock(parking_);
    awaited_.store(true);
    left_.wait(lock, all_left);
    awaited_.store(false);
}

uint64_t Pool::wait_for_job(uint64_t seen) {
    auto is_new = [&] {
        const uint64_t open = open_.load();
        return open != 0 && open != seen;
    };
    auto is_over = [&] { return is_new() || closing_; };
    if (comes_soon(is_over)) return open_.load();
    std::unique_lock<std::mutex> lock(parking_);
    parked_.fetch_add(1);
    bell_.wait(lock, is_over);
    parked_.fetch_sub(1);
    return open_.load();
}

void Pool::work(size_t thread) {
    uint64_t seen = 0;
    while (true) {
        const uint64_t found = wait_for_job(seen);
        if (closing_) return;
        if (found == 0 || found == seen) continue;
        // The job may have ended between the look and the step inside; only one that is still open may be read.
        inside_.fetch_add(1);
        if (open_.load() == found) {
            do_tasks(thread);
            seen = found;
        }
        if (inside_.fetch_sub(1) == 1 && awaited_.load()) {
            // The lock orders this after the caller's last look at `inside_` before it sleeps.
            std::lock_guard<std::mutex> lock(parking_);
            left_.notify_one();
        }
    }
}

uint64_t turns_of_thread() { return t_turns; }

std::shared_ptr<Pool> pool() {
    std::lock_guard<std::mutex> lock(shared->mutex);
    if (!shared->pool) shared->pool = std::make_shared<Pool>(shared->threads);
    return shared->pool;
}

void set_threads(int threads) {
    std::shared_ptr<Pool> old;
    std::lock_guard<std::mutex> lock(shared->mutex);
    if (threads == shared->threads) return;
    shared->threads = threads;
    // Its threads are joined outside the lock, by the last who holds it.
    old.swap(shared->pool);
}

} // namespace penstock
