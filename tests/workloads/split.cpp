// Three chains with a known share of CPU time, in a second thread: inlined functions, exceptions, a template.
// g++ -O2 -g -fomit-frame-pointer -o split-cpp split.cpp -pthread
// Usage: split-cpp SECONDS SEED; prints the truth as one line of JSON when done.
#include "split.h"

#include <stdexcept>
#include <thread>

namespace truth_of {

// Inlined into its caller: a line of its own, but no frame.
static inline __attribute__((always_inline)) uint64_t inlined_step(uint64_t value, uint64_t n) {
    return churn(value, n);
}

template <int Start>
struct Worker {
    APART uint64_t leaf_a(uint64_t n) { return inlined_step(Start, n); }
    APART uint64_t middle_a(uint64_t n) { uint64_t v = leaf_a(n); STAY; return v + 1; }
};

APART static uint64_t chain_a(uint64_t n) {
    Worker<1> worker;
    uint64_t v = worker.middle_a(n);
    STAY;
    return v + 1;
}

// Leaves by an exception, after its work: two frames are unwound by the language itself.
APART static uint64_t leaf_b(uint64_t n) {
    if (churn(2, n) != 0) throw std::runtime_error("done");
    return 0;
}
APART static uint64_t middle_b(uint64_t n) { uint64_t v = leaf_b(n); STAY; return v + 1; }
APART static uint64_t chain_b(uint64_t n) {
    try {
        return middle_b(n);
    } catch (const std::runtime_error &error) {
        STAY;
        return static_cast<uint64_t>(error.what()[0]);
    }
}

static uint64_t compare_iterations;
APART static int leaf_c(const void *left, const void *right) {
    volatile uint64_t v = churn(3, compare_iterations);
    (void)v;
    return *static_cast<const int *>(left) - *static_cast<const int *>(right);
}
APART static uint64_t middle_c(uint64_t n) {
    int numbers[16];
    for (int i = 0; i < 16; i++) numbers[i] = (i * 7) % 16;
    compare_iterations = n / 45;
    qsort(numbers, 16, sizeof numbers[0], leaf_c);
    STAY;
    return static_cast<uint64_t>(numbers[3]);
}
APART static uint64_t chain_c(uint64_t n) { uint64_t v = middle_c(n); STAY; return v + 1; }

}  // namespace truth_of

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const uint64_t seconds = strtoull(arguments[1], nullptr, 10);
    const uint64_t seed = strtoull(arguments[2], nullptr, 10);
    std::thread worker([=] {
        struct truth truth = {{0}, 0};
        uint64_t (*chains[3])(uint64_t) = {truth_of::chain_a, truth_of::chain_b, truth_of::chain_c};
        split(seconds, seed, chains, &truth);
        print_truth("c++", seed, &truth);
        print_root();
        puts("}");
    });
    worker.join();
    return 0;
}
