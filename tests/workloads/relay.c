/* A program that executes another over itself, again and again: same pid, another file each time.
 * Built twice, with -DSELF=a and -DSELF=b, static and at a fixed address: both have the same layout, so that an
 * address of one, taken for the other's, gives a wrong name and never none.
 * gcc -O2 -fomit-frame-pointer -static -no-pie -DSELF=a -o relay-a relay.c
 * Usage: relay-a MORE MICROSECONDS NS_A NS_B OTHER: spins, then becomes OTHER, MORE times. The CPU time spun in
 * each goes along in the arguments; the last prints it: {"a":NS,"b":NS}. */
#include "split.h"
#include <unistd.h>

#define JOIN(left, right) left##right
#define NAMED(left, right) JOIN(left, right)
#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)

APART static uint64_t NAMED(leaf_, SELF)(uint64_t end_ns) {
    uint64_t v = 1;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns) v = churn(v, 10000);
    return v;
}
APART static uint64_t NAMED(middle_, SELF)(uint64_t end_ns) {
    uint64_t v = NAMED(leaf_, SELF)(end_ns);
    STAY;
    return v + 1;
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    const uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    volatile uint64_t v = NAMED(middle_, SELF)(before + strtoull(arguments[2], NULL, 10) * 1000);
    (void)v;
    const int is_a = strcmp(TEXT_OF(SELF), "a") == 0;
    uint64_t ns[2] = {strtoull(arguments[3], NULL, 10), strtoull(arguments[4], NULL, 10)};
    ns[is_a ? 0 : 1] += clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    const uint64_t more = strtoull(arguments[1], NULL, 10);
    if (more == 0) {
        printf("{\"a\":%llu,\"b\":%llu}\n", (unsigned long long)ns[0], (unsigned long long)ns[1]);
        return 0;
    }
    char numbers[3][24];
    snprintf(numbers[0], sizeof numbers[0], "%llu", (unsigned long long)(more - 1));
    snprintf(numbers[1], sizeof numbers[1], "%llu", (unsigned long long)ns[0]);
    snprintf(numbers[2], sizeof numbers[2], "%llu", (unsigned long long)ns[1]);
    char *next[] = {arguments[5], numbers[0], arguments[2], numbers[1], numbers[2], arguments[0], NULL};
    execv(arguments[5], next);
    perror("execv");
    return 1;
}
