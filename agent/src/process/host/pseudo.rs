//! File systems whose files are the kernel's own doing: regular ones by their mode, and to open one may act
//! (`trace_pipe` takes lines from their reader, `free_buffer` empties a buffer, `kmsg` and a control group's
//! events wait). No program lies there. All others are allowed: nobody can list what programs lie on.

use super::OpenError;
use std::io;
use std::os::fd::AsFd;

/// `include/uapi/linux/magic.h` of Linux 6.12, where nothing else is said.
const MAGICS: [u64; 29] = [
    0x0000_9fa0, // proc
    0x6265_6572, // sysfs
    0x7472_6163, // tracefs
    0x6462_6720, // debugfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinux
    0x4341_5d53, // smack
    0x5a3c_69f0, // apparmor
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x6265_6570, // configfs (fs/configfs/mount.c)
    0x4249_4e4d, // binfmt_misc
    0x0765_5821, // resctrl
    0x6573_5543, // fusectl (fs/fuse/control.c)
    0x6e73_6673, // nsfs
    0x5049_4446, // pidfs
    0x0904_1934, // anonymous inodes
    0x1980_0202, // mqueue
    0x6c6f_6f70, // binder
    0xabba_1974, // xenfs
    0x6e66_7364, // nfsd (fs/nfsd/nfsctl.c)
    0x6759_6969, // rpc_pipefs (net/sunrpc/rpc_pipe.c)
    0x76a9_f425, // dlmfs (fs/ocfs2/dlmfs/dlmfs.c): to open a file takes a lock
    0x0a64_7361, // functionfs (drivers/usb/gadget/function/f_fs.c)
    0xaee7_1ee7, // gadgetfs (drivers/usb/gadget/legacy/inode.c)
    0x5345_434d, // secretmem: its bytes cannot be read
];

/// Refuses a file of such a file system. `file` may be an `O_PATH` descriptor (fstatfs takes them since
/// Linux 3.12).
pub(super) fn refuse(file: impl AsFd) -> Result<(), OpenError> {
    let stat = rustix::fs::fstatfs(file).map_err(io::Error::from)?;
    let is_pseudo = u64::try_from(stat.f_type).is_ok_and(|magic| MAGICS.contains(&magic));
    if is_pseudo { Err(OpenError::NotRegular) } else { Ok(()) }
}
