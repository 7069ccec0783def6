// Go calls C, and C calls back into Go.
package main

/*
#include <stdint.h>

extern uint64_t back(uint64_t n);

__attribute__((noinline)) static uint64_t c_leaf(uint64_t n) {
	for (int i = 0; i < 1000000; i++)
		n = n * 6364136223846793005ull + i;
	return n;
}

__attribute__((noinline)) static uint64_t c_outer(uint64_t n) { return c_leaf(n) + back(n) + 1; }
*/
import "C"

import (
	"fmt"
	"os"
	"time"
)

//export back
func back(n C.uint64_t) C.uint64_t { return C.uint64_t(spin(uint64(n))) }

//go:noinline
func spin(n uint64) uint64 {
	for i := uint64(0); i < 1000000; i++ {
		n = n*6364136223846793005 + i
	}
	return n
}

//go:noinline
func caller(n uint64) uint64 { return uint64(C.c_outer(C.uint64_t(n))) }

func main() {
	seconds, _ := time.ParseDuration(os.Args[1])
	end := time.Now().Add(seconds)
	s := uint64(0)
	for time.Now().Before(end) {
		s += caller(s)
	}
	fmt.Println(s)
}
