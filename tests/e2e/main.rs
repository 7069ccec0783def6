//! End-to-end tests: real programs, the real kernel, real sockets, one binary. Modules in reading order.
