//! Tests of the border: decoders on bytes, and the programs on this machine's kernel.

mod bytes;
mod live;
mod programs;
mod target;
