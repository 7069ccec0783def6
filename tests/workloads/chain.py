"""A chain of three functions for `python -X perf`: outer calls middle, middle calls one of two leaves.
Usage: chain.py SECONDS SEED; prints the CPU nanoseconds of both leaves when done."""

import random
import sys
import time


def leaf_first(rounds):
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def leaf_second(rounds):
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def middle(leaf):
    # A call that CPython does not run in its caller's loop, as all calls are with -X perf.
    return leaf(40_000) + 1


def outer(seconds, choose):
    spent = {leaf_first: 0, leaf_second: 0}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        leaf = leaf_second if choose.random() < 1 / 3 else leaf_first
        before = time.thread_time_ns()
        middle(leaf)
        spent[leaf] += time.thread_time_ns() - before
    return spent[leaf_first], spent[leaf_second]


print(*outer(float(sys.argv[1]), random.Random(int(sys.argv[2]))))
