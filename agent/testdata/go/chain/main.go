// A chain of three functions whose leaf makes no frame, a method with a closure, and inlined calls.
package main

import (
	"fmt"
	"os"
	"sort"
	"time"
)

var sink uint64

//go:noinline
func leaf(a, b uint64) uint64 {
	for i := uint64(0); i < 2000000; i++ {
		a = a*6364136223846793005 + b
		b ^= a >> 17
	}
	return a + b
}

//go:noinline
func middle(n uint64) uint64 { return leaf(n, n+1) + 1 }

//go:noinline
func outer(n uint64) uint64 { return middle(n) * 3 }

func square(x uint64) uint64 { return x*x + 7 }

func twice(x uint64) uint64 { return square(x) * 2 }

//go:noinline
func inlining(n uint64) uint64 {
	s := uint64(0)
	for i := uint64(0); i < 1000000; i++ {
		s += twice(i ^ n)
	}
	return s
}

type list struct{ xs []int }

//go:noinline
func (l *list) sort() {
	sort.Slice(l.xs, func(i, j int) bool { return l.xs[i] < l.xs[j] })
}

func main() {
	seconds, _ := time.ParseDuration(os.Args[1])
	end := time.Now().Add(seconds)
	go func() {
		for {
			l := &list{make([]int, 10000)}
			for i := range l.xs {
				l.xs[i] = (i * 7919) % 10007
			}
			l.sort()
		}
	}()
	for time.Now().Before(end) {
		sink += outer(sink)
		sink += inlining(sink)
	}
	fmt.Println(sink)
}
