//! The CPU time that the rows of one file may take, by the clock of the thread that makes them. The limits of single
//! parts bound what is read; this bounds what is made of it, whatever it costs.

use crate::clock::thread_cpu_ns;

#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    until_ns: u64,
}

impl Deadline {
    /// So much CPU time of the calling thread from now on, nanoseconds.
    pub(super) fn after(ns: u64) -> Self {
        Self { until_ns: thread_cpu_ns().saturating_add(ns) }
    }

    /// True if the time is used up. A system call.
    pub(super) fn is_over(self) -> bool {
        thread_cpu_ns() >= self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use crate::address::{ElfAddr, FileOffset};
    use crate::elf::ExecutableSegment;
    use crate::unwind::RowLosses;
    use crate::unwind::builder::{Builder, Origin};

    #[test]
    fn a_file_out_of_time_has_no_more_rows_and_says_so() {
        let size = 0x1000;
        let (address, file_offset) = (ElfAddr(0x1000), FileOffset(0));
        let mut builder = Builder::new(vec![ExecutableSegment { address, file_offset, size }]);
        builder.out_of_time();
        assert!(builder.function(0x1000..0x1010, Origin::Frames).is_none());
        let expected = RowLosses { left_out: 1, out_of_time: 1, ..RowLosses::default() };
        assert_eq!(builder.finish().losses(), expected);
    }
}
