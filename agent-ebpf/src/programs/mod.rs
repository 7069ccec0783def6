//! The programs, one module for each noun; the entry points are in [`sampler`], [`wait_stacks`]
//! and [`lifecycle`].

mod chance;
mod go_locks;
mod libc_locks;
mod lifecycle;
mod lock_words;
mod maps;
mod notes;
mod record;
mod registers;
mod roots;
mod sampler;
mod stacks;
mod switches;
mod wait_maps;
mod wait_stacks;
mod walker;
