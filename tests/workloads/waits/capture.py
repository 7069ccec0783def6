#!/usr/bin/env python3
"""Prints rows for agent/src/waits/fixtures.tsv: what a waiting thread's system call and stack really are, as gdb and the
kernel see them. Run it as root; gdb's names are those of the symbol tables.

usage: capture.py NAME THREAD COMMAND...    (THREAD: name of the thread that waits; COMMAND runs for 3 s)
"""

import os
import re
import subprocess
import sys
import time

name, thread, command = sys.argv[1], sys.argv[2], sys.argv[3:]
process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
time.sleep(1.5 if "java" in command[0] else 0.5)
rows = {}
for _ in range(12):
    time.sleep(0.037)
    gdb = subprocess.run(
        ["gdb", "-q", "-batch", "-p", str(process.pid), "-ex", "set print frame-arguments none",
         "-ex", "set backtrace limit 24", "-ex", "info sharedlibrary",
         "-ex", "thread apply all -s printf \"SYSCALL %ld %ld %ld %ld %ld SP %ld\\n\", $orig_rax, $rdi, $rsi, $rdx, $r10, $rsp",
         "-ex", "thread apply all bt"], capture_output=True, text=True)
    head = r"^Thread \d+ \((?:Thread 0x[0-9a-f]+ \()?LWP (\d+)\)?(?: \"[^\"]*\")?\):$"
    parts = re.split(head, gdb.stdout, flags=re.M)
    by_tid = {}
    for tid, body in zip(parts[1::2], parts[2::2]):
        by_tid.setdefault(tid, []).append(body)
    for tid, bodies in by_tid.items():
        try:
            comm = open(f"/proc/{process.pid}/task/{tid}/comm").read().strip()
        except OSError:
            continue
        if comm != thread or len(bodies) < 2:
            continue
        call = re.search(r"SYSCALL (-?\d+) (-?\d+) (-?\d+) (-?\d+) (-?\d+) SP (-?\d+)", bodies[0])
        if not call:
            continue
        number, word, operation, expected = (int(call.group(i)) for i in range(1, 5))
        frames = []
        for line in bodies[1].splitlines():
            frame = re.match(r"#\d+\s+(?:0x[0-9a-f]+ in )?(.*?) \(", line)
            if frame and frame.group(1) != "??":
                frames.append(re.sub(r"\(.*", "", frame.group(1)))
            elif line.startswith("#"):
                frames.append("")
        stack = "<".join(frames[:16])
        key = (number, operation, expected & 0xffffffff, stack)
        rows.setdefault(key, set()).add(word)
process.kill()
for (number, operation, expected, stack), words in rows.items():
    print(f"{name}\t{number} {operation} {expected:#x}\t{','.join(hex(word) for word in sorted(words))}\t{stack}")
