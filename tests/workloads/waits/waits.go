// One goroutine waits, another lets it go: the locks of package sync, and what must not be taken for a lock. See
// waits.c for the method. GOMAXPROCS is 4, so that many threads take part whatever the machine has.
// Usage: waits-go CASE MILLISECONDS; prints one line of JSON. BESIDE works as in waits.c.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

const (
	held    = 50 * time.Millisecond
	free    = time.Millisecond
	waitMin = time.Millisecond
	waiters = 3

	heldLong   = 17 * time.Second
	beforeLong = 3 * time.Second
)

var (
	mutex     sync.Mutex
	rwlock    sync.RWMutex
	condition = sync.NewCond(new(sync.Mutex))
	channel   = make(chan int)
	stop      atomic.Bool
	waitedNs  atomic.Int64
	waits     atomic.Int64
	besides   atomic.Int64
)

func timed(wait func()) {
	before := time.Now()
	wait()
	if took := time.Since(before); took > waitMin {
		waitedNs.Add(int64(took))
		waits.Add(1)
	}
}

type way struct {
	turn func()
	wait func()
	lock uintptr
}

func untilStopped() {
	for !stop.Load() {
		time.Sleep(held)
	}
}

func hold(lock, unlock func()) {
	lock()
	time.Sleep(held)
	unlock()
	time.Sleep(free)
}

//go:noinline
func lockMutex() { mutex.Lock() }

//go:noinline
func lockRead() { rwlock.RLock() }

//go:noinline
func lockWrite() { rwlock.Lock() }

var ways = map[string]way{
	"mutex": {
		func() { hold(mutex.Lock, mutex.Unlock) },
		func() { timed(lockMutex); mutex.Unlock() },
		uintptr(unsafe.Pointer(&mutex)),
	},
	"rlock": {
		func() { hold(rwlock.Lock, rwlock.Unlock) },
		func() { timed(lockRead); rwlock.RUnlock() },
		uintptr(unsafe.Pointer(&rwlock)),
	},
	"wlock": {
		func() { hold(rwlock.RLock, rwlock.RUnlock) },
		func() { timed(lockWrite); rwlock.Unlock() },
		uintptr(unsafe.Pointer(&rwlock)),
	},
	// Held and waited for much longer than a window of the agent's, once.
	"long": {
		func() { mutex.Lock(); time.Sleep(heldLong); mutex.Unlock(); untilStopped() },
		func() { time.Sleep(beforeLong); timed(lockMutex); mutex.Unlock(); untilStopped() },
		uintptr(unsafe.Pointer(&mutex)),
	},
	"cond": {
		func() { time.Sleep(held + free); condition.L.Lock(); condition.Broadcast(); condition.L.Unlock() },
		func() { condition.L.Lock(); timed(condition.Wait); condition.L.Unlock() },
		0,
	},
	"channel": {
		func() { time.Sleep(held + free); channel <- 1 },
		func() { timed(func() { <-channel }) },
		0,
	},
	"group": {
		func() { time.Sleep(held) },
		func() {
			var group sync.WaitGroup
			group.Add(1)
			go func() { time.Sleep(held); group.Done() }()
			timed(group.Wait)
		},
		0,
	},
	"sleep": {
		func() { time.Sleep(held) },
		func() { timed(func() { time.Sleep(held) }) },
		0,
	},
}

func beside() {
	var own sync.Mutex
	var ownRW sync.RWMutex
	for n := int64(0); !stop.Load(); n++ {
		own.Lock()
		own.Unlock()
		ownRW.RLock()
		ownRW.RUnlock()
		if n%1024 == 0 {
			besides.Add(2048)
		}
	}
}

func main() {
	if len(os.Args) < 3 {
		os.Exit(2)
	}
	chosen, known := ways[os.Args[1]]
	milliseconds, err := strconv.Atoi(os.Args[2])
	if !known || err != nil {
		os.Exit(2)
	}
	runtime.GOMAXPROCS(4)
	go func() {
		for !stop.Load() {
			chosen.turn()
		}
	}()
	for range [waiters]int{} {
		go func() {
			for !stop.Load() {
				chosen.wait()
				time.Sleep(200 * time.Microsecond)
			}
		}()
	}
	if len(os.Args) > 3 && os.Args[3] == "1" {
		go beside()
	}
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	stop.Store(true)
	time.Sleep(8 * (held + free))
	fmt.Printf("{\"case\":%q,\"pid\":%d,\"tid\":0,\"waited_ns\":%d,\"waits\":%d,\"lock\":%d,\"beside\":%d}\n",
		os.Args[1], os.Getpid(), waitedNs.Load(), waits.Load(), chosen.lock, besides.Load())
}
