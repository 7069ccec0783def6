// Three chains with a known share of CPU time, in one goroutine that keeps its thread.
// go build -o split-go split.go
// Usage: split-go SECONDS SEED; prints the truth as one line of JSON when done. See split.h for the method.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"syscall"
	"unsafe"
)

const (
	monotonic = 1
	threadCPU = 3
)

func clockNs(clock uintptr) uint64 {
	var time syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&time)), 0)
	return uint64(time.Sec)*1_000_000_000 + uint64(time.Nsec)
}

// A leaf without a frame: its caller is only in the return address at the stack pointer.
//
//go:noinline
func leafA(n uint64) uint64 {
	v := uint64(1)
	for i := uint64(0); i < n; i++ {
		v = v*6364136223846793005 + i
	}
	return v
}

//go:noinline
func middleA(n uint64) uint64 { return leafA(n) + 1 }

//go:noinline
func chainA(n uint64) uint64 { return middleA(n) + 1 }

// A leaf with a frame.
//
//go:noinline
func leafB(n uint64) uint64 {
	var room [2000]byte
	room[n%2000] = byte(n)
	v := uint64(2)
	for i := uint64(0); i < n; i++ {
		v = v*6364136223846793005 + i
	}
	return v + uint64(room[(n+1)%2000])
}

//go:noinline
func middleB(n uint64) uint64 { return leafB(n) + 1 }

//go:noinline
func chainB(n uint64) uint64 { return middleB(n) + 1 }

// A leaf behind the library's sort.
type byValue struct {
	numbers    []int
	iterations uint64
	sink       uint64
}

func (s *byValue) Len() int      { return len(s.numbers) }
func (s *byValue) Swap(i, j int) { s.numbers[i], s.numbers[j] = s.numbers[j], s.numbers[i] }
func (s *byValue) Less(i, j int) bool {
	s.sink += leafC(s.iterations)
	return s.numbers[i] < s.numbers[j]
}

//go:noinline
func leafC(n uint64) uint64 {
	v := uint64(3)
	for i := uint64(0); i < n; i++ {
		v = v*6364136223846793005 + i
	}
	return v
}

//go:noinline
func middleC(n uint64) uint64 {
	s := byValue{numbers: make([]int, 12), iterations: n / 30}
	for i := range s.numbers {
		s.numbers[i] = (i * 7) % 12
	}
	sort.Sort(&s)
	return s.sink
}

//go:noinline
func chainC(n uint64) uint64 { return middleC(n) + 1 }

func main() {
	if len(os.Args) != 3 {
		os.Exit(2)
	}
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	seconds, _ := strconv.ParseUint(os.Args[1], 10, 64)
	seed, _ := strconv.ParseUint(os.Args[2], 10, 64)
	state := seed*2654435761 + 88172645463325252
	random := func() uint64 {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		return state
	}
	chains := [3]func(uint64) uint64{chainA, chainB, chainC}
	var chainNs [3]uint64
	var lateNs, sink uint64
	perMs := uint64(1_000_000)
	start := clockNs(monotonic)
	for {
		now := clockNs(monotonic)
		if now >= start+seconds*1_000_000_000 {
			break
		}
		draw, chain := random()%10, 2
		if draw < 5 {
			chain = 0
		} else if draw < 8 {
			chain = 1
		}
		iterations := perMs * (100 + random()%400) / 100
		before := clockNs(threadCPU)
		sink += chains[chain](iterations)
		took := clockNs(threadCPU) - before
		chainNs[chain] += took
		if now >= start+1_000_000_000 {
			lateNs += took
		}
		if took > 0 && now < start+100_000_000 {
			perMs = iterations*1_000_000/took + 1
		}
	}
	fmt.Printf("{\"language\":\"go\",\"seed\":%d,\"chains\":{\"a\":%d,\"b\":%d,\"c\":%d},\"late_ns\":%d,\"root\":null}\n",
		seed, chainNs[0], chainNs[1], chainNs[2], lateNs)
	runtime.KeepAlive(sink)
}
