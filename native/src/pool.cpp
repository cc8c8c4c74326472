#include "pool.hpp"

#include <chrono>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace penstock {

namespace {

// Jobs follow each other within microseconds in a step, so a worker looks for the next one that long before it sleeps.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr int kLooksPerClock = 64;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

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

Pool::Pool(int threads) {
    for (int index = 1; index < threads; ++index) workers_.emplace_back([this] { work(0); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(parking_);
        closing_ = true;
    }
    bell_.notify_all();
    for (auto &worker : workers_) worker.join();
}

void Pool::claim() {
    const Job job = job_;
    for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < job.tasks;)
        job.function(job.context, task);
}

void Pool::run(int64_t tasks, Function function, const void *context) {
    if (tasks <= 0) return;
    std::lock_guard<std::mutex> turn(callers_);
    job_ = {function, context, tasks};
    next_.store(0, std::memory_order_relaxed);
    if (tasks == 1 || workers_.empty()) {
        claim();
        return;
    }
    open_.store(++jobs_);
    if (parked_.load() > 0) {
        // The lock orders this after a worker's last look at `open_` before it sleeps.
        std::lock_guard<std::mutex> lock(parking_);
        bell_.notify_all();
    }
    claim();
    // A worker that still sleeps is not waited for: it finds the door closed.
    open_.store(0);
    while (inside_.load() != 0) pause();
}

uint64_t Pool::wait_for_job(uint64_t seen) {
    auto is_new = [&] {
        const uint64_t open = open_.load();
        return open != 0 && open != seen;
    };
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int look = 0; look < kLooksPerClock; ++look) {
            if (is_new() || closing_) return open_.load();
            pause();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    std::unique_lock<std::mutex> lock(parking_);
    parked_.fetch_add(1);
    bell_.wait(lock, [&] { return is_new() || closing_; });
    parked_.fetch_sub(1);
    return open_.load();
}

void Pool::work(uint64_t seen) {
    while (true) {
        const uint64_t found = wait_for_job(seen);
        if (closing_) return;
        if (found == 0 || found == seen) continue;
        // The job may have ended between the look and the step inside; only one that is still open may be read.
        inside_.fetch_add(1);
        if (open_.load() == found) {
            claim();
            seen = found;
        }
        inside_.fetch_sub(1);
    }
}

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
