"""Work of many kinds for so many seconds: the interpreter, its C library, threads. Usage: busy.py SECONDS"""
import hashlib
import json
import re
import sys
import threading
import time
import zlib

END = time.monotonic() + float(sys.argv[1])


def tree(depth):
    return {} if depth == 0 else {f"key-{i}": tree(depth - 1) for i in range(4)}


def rounds():
    done = 0
    while time.monotonic() < END:
        text = json.dumps(tree(5), indent=1)
        words = re.findall(r"key-(\d)+", text)
        words.sort(key=lambda word: (word, len(word)))
        hashlib.sha256(zlib.compress(text.encode())).hexdigest()
        done += len(json.loads(text)) + sum(i * i for i in range(2000))
        time.sleep(0.002)
    return done


threads = [threading.Thread(target=rounds) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
