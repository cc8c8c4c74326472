// One pool of threads for all kernels. Each thread has its own range of a job's tasks, which it takes in ascending order, so
// that it knows what it will do next; one that is done takes half of what another has left, so that none waits for a slower
// one's share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock {

class Pool {
public:
    // `threads` take part in a job, the caller among them.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls work(task) for every task in [0, tasks), on any thread, and returns when all are done. There are fewer than
    // 2^32 of them. Behind a task the thread will most often do the one after it.
    // Where `work` itself calls `run`, its thread does all of those tasks. If it throws, the process ends. Callers from several
    // threads take turns.
    template <typename Work> void run(int64_t tasks, const Work &work) {
        run(tasks,
            [](const void *context, int64_t task) noexcept { (*static_cast<const Work *>(context))(task); }, &work);
    }

private:
    using Function = void (*)(const void *context, int64_t task) noexcept;
    struct Job {
        Function function = nullptr;
        const void *context = nullptr;
        int64_t tasks = 0;
    };

    // The tasks [first, last) that a thread has left, as last · 2^32 + first: both change at once.
    struct alignas(64) Range {
        std::atomic<uint64_t> left{0};
    };

    void run(int64_t tasks, Function function, const void *context);
    void work(size_t thread);
    void do_tasks(size_t thread);
    bool steal(size_t thread);
    uint64_t wait_for_job(uint64_t seen);
    void wait_for_workers();

    std::vector<std::thread> workers_;
    std::mutex callers_;
    Job job_;
    std::vector<Range> ranges_; // of the caller, then of each worker
    // The number of the job that may be entered, 0 between jobs; `inside_` counts the workers that are in it.
    alignas(64) std::atomic<uint64_t> open_{0};
    alignas(64) std::atomic<int> inside_{0};
    std::atomic<bool> closing_{false};
    uint64_t jobs_ = 0;
    std::mutex parking_;
    std::condition_variable bell_;
    std::atomic<int> parked_{0};
    // Whether a caller sleeps until the last worker has left its job.
    std::condition_variable left_;
    std::atomic<bool> awaited_{false};
};

// How often this thread has begun to work on tasks. Asked within tasks, it tells whether other code may have run on the thread
// since it was last asked.
uint64_t turns_of_thread();

// The pool that kernels use; made at first use, with as many threads as `set_threads` said last (1 before). Whoever holds
// it keeps it: `set_threads` ends its threads only when the last holder lets go. A forked child begins with none.
std::shared_ptr<Pool> pool();
void set_threads(int threads);

} // namespace penstock
