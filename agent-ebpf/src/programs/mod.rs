//! The programs, one module for each noun; the entry points are in [`sampler`] and [`lifecycle`].

mod go_locks;
mod lifecycle;
mod maps;
mod notes;
mod registers;
mod roots;
mod sampler;
mod stacks;
mod walker;
